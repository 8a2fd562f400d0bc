"""Fitted models: card, repository, retention, file, activation, ranking."""
