"""The live index, which connects features to classes."""
