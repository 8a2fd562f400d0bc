"""Kernels that apply log entries to a model and answer from it."""
