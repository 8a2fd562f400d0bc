"""Golden logs: logs of small models as a release wrote them, and the program that wrote them."""
