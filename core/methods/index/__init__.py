"""Batch forms of the live index, and its simple rivals."""
