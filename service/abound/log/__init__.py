"""The replicated log of a model: events, stream commands, the catalog of models and the appender."""
