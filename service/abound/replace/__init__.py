"""Replacing a model by one with another past: refit, restore, forget, undo and import; and export."""
