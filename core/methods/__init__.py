"""The batch methods: each one is a file with ``Params``, ``fit`` and ``Model``, and one line in
``core/methods/registry.py``."""
