"""The sequential test that compares two rankings."""
