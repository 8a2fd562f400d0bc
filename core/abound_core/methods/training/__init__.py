"""Shared parts of the batch methods: matrices, clusters, parallel work, checks."""
