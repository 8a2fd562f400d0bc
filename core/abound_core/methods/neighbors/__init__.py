"""Methods that rank labels by votes of nearest neighbors."""
