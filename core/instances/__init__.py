"""Instances: records, vectors, names, text, data formats."""
