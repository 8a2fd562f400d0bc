"""Data sets: uploaded and built-in ones, their formats, and checking them."""
