"""Kernels for instances as bytes: records, and JSON into records."""
