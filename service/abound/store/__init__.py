"""Valkey or Redis: client, connections, server info, durability, lease, replication."""
