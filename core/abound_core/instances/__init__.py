"""Conversion of instances: records, vectors, vocabularies, text, data formats."""
