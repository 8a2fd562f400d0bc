"""A consumer of a Kafka topic."""
