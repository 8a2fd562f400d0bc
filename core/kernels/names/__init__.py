"""Kernels for names: hashing, and the table that gives them dense ids."""
