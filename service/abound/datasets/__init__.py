"""Data sets: uploaded and built-in ones, their file formats, and the check of uploads."""
