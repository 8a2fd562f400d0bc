"""The service around the learner: HTTP, the log, snapshots, processes, the command line."""
