"""The archived log: segments, reading the full log, replay, retention, garbage collection."""
