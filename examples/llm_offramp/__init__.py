"""Answers that a model gives without the language model, where the decision says so."""
