"""Container files: the start that the files of models and of versions share, and a reader for pieces of any size.

bytes 0..8      kind of file
8..12           format number, little-endian
12..16          bytes of the head
16..32          BLAKE2b-128 of the head
32..            the head, then the content
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from abound.core.errors import Corrupted, UnknownApplyVersion
from abound.service.artifacts.checksums import checksum_of

_START = struct.Struct("<8sII16s")

MOST_HEAD_BYTES = 16 * 2**20


class ContainerFormat(NamedTuple):
    """A kind of file: its first 8 bytes, its format number in this release, and how messages name its content and
    its head.
    """

    magic: bytes
    format: int
    holds: str
    head: str


def encode_head(kind: ContainerFormat, record: msgspec.Struct) -> bytes:
    """Return the start of a file: magic, format number, length and checksum of the head, then the head as JSON."""
    head = msgspec.json.encode(record)
    return _START.pack(kind.magic, kind.format, len(head), bytes.fromhex(checksum_of(head))) + head


class ContainerReader:
    """Reads parts of given sizes from pieces of any size. Buffers at most one part and one piece."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._held = bytearray()

    async def head(self, kind: ContainerFormat) -> bytes:
        """Read and check the head of a file.

        Raises
        ------
        Corrupted
            It is no file of this kind, or its head is damaged.
        UnknownApplyVersion
            It has another format.
        """
        magic, number, size, checksum = _START.unpack(await self.read(_START.size, "its first bytes"))
        if magic != kind.magic:
            raise Corrupted(f"this is not the file of a {kind.holds}")
        if number != kind.format:
            raise UnknownApplyVersion(f"the file has the format {number}, and this release reads {kind.format}")
        if size > MOST_HEAD_BYTES:
            raise Corrupted(f"the {kind.head} of the file is larger than allowed")
        plain = await self.read(size, f"its {kind.head}")
        if checksum_of(plain) != checksum.hex():
            raise Corrupted(f"the {kind.head} of the file is damaged: its checksum is wrong")
        return plain

    async def read(self, n: int, what: str) -> bytes:
        """Read the next ``n`` bytes. Corrupted if the file ends before them; ``what`` names them in the message."""
        while len(self._held) < n:
            try:
                self._held += await anext(self._pieces)
            except StopAsyncIteration:
                raise Corrupted(f"the file ends in {what}") from None
        taken = bytes(memoryview(self._held)[:n])
        del self._held[:n]
        return taken

    async def check_end(self) -> None:
        """Raise Corrupted if anything follows."""
        if self._held or await self._more():
            raise Corrupted("something follows the last part of the file")

    async def _more(self) -> bool:
        async for piece in self._pieces:
            if piece:
                return True
        return False
