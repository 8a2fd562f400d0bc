"""Offline evaluation of methods on files."""
