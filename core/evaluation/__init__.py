"""Evaluation of an index on instances at hand."""
