"""Checksums of parts, files and manifests."""

from __future__ import annotations

import hashlib


def checksum_of(data: bytes) -> str:
    """Return the BLAKE2b-128 of ``data`` in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
