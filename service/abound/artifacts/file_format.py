"""Container files: the common head of model files and version files, and a reader for pieces of any size.

bytes 0..8      kind of file
8..12           bytes of the head, little-endian
12..            the head: JSON of a sealed record, which has the format number; then the content
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import msgspec

from abound_core.errors import Corrupted

_START = struct.Struct("<8sI")

MOST_HEAD_BYTES = 16 * 2**20


def encode_head(magic: bytes, record: msgspec.Struct) -> bytes:
    head = msgspec.json.encode(record)
    return _START.pack(magic, len(head)) + head


class ContainerReader:
    """Reads parts of given sizes from pieces of any size. Buffers at most one part and one piece."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._held = bytearray()

    async def head(self, magic: bytes, holds: str) -> bytes:
        """Read the head of a file. ``holds`` names the expected content in messages."""
        found, size = _START.unpack(await self.read(_START.size, "its first bytes"))
        if found != magic:
            raise Corrupted(f"this is not a {holds} file")
        if size > MOST_HEAD_BYTES:
            raise Corrupted("the head of the file is larger than allowed")
        return await self.read(size, "its head")

    async def read(self, n: int, what: str) -> bytes:
        """Read the next ``n`` bytes, named ``what`` in messages."""
        if not await self._has(n):
            raise Corrupted(f"the file ends in {what}")
        taken = bytes(memoryview(self._held)[:n])
        del self._held[:n]
        return taken

    async def check_end(self) -> None:
        if await self._has(1):
            raise Corrupted("the file has more bytes after its last part")

    async def _has(self, n: int) -> bool:
        while len(self._held) < n:
            piece = await anext(self._pieces, None)
            if piece is None:
                return False
            self._held += piece
        return True
