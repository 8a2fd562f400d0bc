"""Kernels for names: hashing, and the hash table that assigns dense ids."""
