"""Processes and the machine: supervisor, children, embedded store, memory, kernel cache."""
