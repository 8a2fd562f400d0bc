"""Kernels for instances as bytes: records, and JSON to vectors."""
