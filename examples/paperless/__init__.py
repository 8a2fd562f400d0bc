"""Tags for documents of paperless-ngx."""
