"""Schemas of requests and answers."""
