"""Methods that vote by nearest neighbors."""
