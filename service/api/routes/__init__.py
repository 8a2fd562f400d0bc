"""The HTTP resources, a file each."""
