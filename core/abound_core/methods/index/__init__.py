"""Batch forms of the live index, and simple baselines."""
