"""The state of a model as bytes: in the store, in the artifact store, in an export file."""
