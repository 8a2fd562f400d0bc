"""Kernels of the batch methods."""
