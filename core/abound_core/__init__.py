"""The learning algorithms. Code in this package uses no I/O, no async, no clock and no environment variables."""
