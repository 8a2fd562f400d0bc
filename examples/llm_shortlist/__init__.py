"""A language model that chooses among the labels that the service suggests."""
