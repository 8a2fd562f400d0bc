"""Batch methods.

Each one is a module with ``Params``, ``fit`` and ``Model``, and one line in ``abound_core/methods/registry.py``.
"""
