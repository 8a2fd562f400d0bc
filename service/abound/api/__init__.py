"""The HTTP API: the application, its routes and schemas, the protocol, streaming answers, errors."""
