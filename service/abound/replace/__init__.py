"""Changing the state of a model from its past: adoption, refit, forget, import and export."""
