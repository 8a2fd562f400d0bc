"""Batch methods.

Each one is a module with ``Params``, ``fit`` and ``Model``, and one line in ``core/methods/registry.py``.
"""
