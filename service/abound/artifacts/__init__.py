"""The artifact store: files in a folder or a bucket, and the local cache of them."""
