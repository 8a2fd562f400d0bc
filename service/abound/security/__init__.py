"""API keys, rate limits, the audit log, and what each path requires."""
