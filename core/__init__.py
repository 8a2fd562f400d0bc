"""The learner itself: no I/O, no async, no clock, no environment."""
