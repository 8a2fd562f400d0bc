"""Kernels of batch methods."""
