"""Evaluation of the index on data sets in memory."""
