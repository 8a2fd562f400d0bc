"""Programs around the service, to copy from. Each is run by a test, against a running service."""
