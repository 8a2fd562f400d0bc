"""Scoring challengers against what is served, and promoting or rolling back."""
