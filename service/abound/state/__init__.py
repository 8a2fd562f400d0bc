"""One model as a replicated state machine: position, apply, presence."""
