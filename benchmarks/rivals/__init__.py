"""Other libraries on the same instances; what is in here runs in an environment of its own, without the product."""
