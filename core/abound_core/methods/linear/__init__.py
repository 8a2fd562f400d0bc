"""Linear classifiers for each class."""
