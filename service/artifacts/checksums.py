"""Checksums of parts, files and manifests."""

from __future__ import annotations

import hashlib


def checksum_of(data: bytes) -> str:
    """BLAKE2b-128 in hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
