"""Comparing two rankings: the sequential test, and blending them."""
