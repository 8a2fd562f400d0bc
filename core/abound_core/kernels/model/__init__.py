"""Kernels that apply log entries to a model and rank with it."""
