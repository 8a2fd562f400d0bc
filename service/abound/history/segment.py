"""File format of segments: ranges of a log.

    bytes 0..8      ABOUNDS1, the format
    8..24           BLAKE2b-128 of all that follows
    24..32          size of the elements before compression, little-endian
    32..            one zstandard frame: msgpack, a list with a list for each element: its id, then its fields

A segment is checked as a whole before any of it is used. A segment that fails a check raises :class:`Corrupted`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import msgspec

from abound.artifacts.zstandard import zstd
from abound.log.stream import Element
from abound_core.errors import Corrupted
from abound_core.types import Offset

MAGIC = b"ABOUNDS1"
LEVEL = 3
MOST_BYTES = 2**30  # uncompressed; a segment is closed at ``segment_bytes``, and an entry is at most 512 MiB

_HEAD = struct.Struct("<8s16sQ")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[list[bytes]])


def encode_segment(elements: Sequence[Element]) -> bytes:
    plain = _encoder.encode([[name, *fields] for name, fields in elements])
    size = struct.pack("<Q", len(plain))
    body = zstd.compress(plain, LEVEL)
    return MAGIC + hashlib.blake2b(size + body, digest_size=16).digest() + size + body


def decode_segment(segment: bytes) -> list[Element]:
    """Decode the elements of a segment; Corrupted also if its ids do not ascend."""
    if len(segment) < _HEAD.size:
        raise Corrupted("it is truncated")
    magic, checksum, size = _HEAD.unpack_from(segment)
    if magic != MAGIC:
        raise Corrupted("it is not a segment in a format that this release reads")
    if hashlib.blake2b(memoryview(segment)[24:], digest_size=16).digest() != checksum:
        raise Corrupted("its checksum is wrong")
    try:
        return _elements(_decoder.decode(_plain(segment[_HEAD.size :], size)))
    except (msgspec.MsgspecError, zstd.ZstdError, ValueError, RecursionError) as error:
        raise Corrupted(f"it cannot be read: {error}") from None


def _plain(body: bytes, size: int) -> bytes:
    """Check the size first, so that a wrong one allocates no memory."""
    if size > MOST_BYTES or zstd.get_frame_info(body).decompressed_size != size:
        raise Corrupted("it does not have the size in its header")
    frame = zstd.ZstdDecompressor()
    plain = frame.decompress(body, MOST_BYTES)
    if not frame.eof or frame.unused_data:
        raise Corrupted("it is not one whole frame")
    return plain


def _elements(lists: list[list[bytes]]) -> list[Element]:
    elements: list[Element] = []
    before = (0, 0)
    for words in lists:
        if not words:
            raise Corrupted("it has an element without an id")
        at = Offset.of_entry(words[0])[:2]
        if at <= before:
            raise Corrupted("its ids do not ascend")
        before = at
        elements.append((words[0], words[1:]))
    return elements
