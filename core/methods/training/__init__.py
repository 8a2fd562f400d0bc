"""What batch methods share: matrices, clusters, parallel work, checks."""
