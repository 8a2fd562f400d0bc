"""The live index of features and classes."""
