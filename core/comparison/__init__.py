"""Comparison of two rankings: the sequential test, and the blend."""
