"""Segments: ranges of a log as files.

    bytes 0..8      ABOUNDS1, the format
    8..24           BLAKE2b-128 of all that follows
    24..32          size of the elements before compression, little-endian
    32..            one zstandard frame: msgpack, a list with a list an element: its id, then its fields as they stood

What a segment holds is checked as a whole before any of it is used; a segment that fails is :class:`Damaged`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import msgspec
import zstandard

from abound.core.errors import Damaged
from abound.core.types import Offset
from abound.service.log.stream import Element

MAGIC = b"ABOUNDS1"
LEVEL = 3
MOST_BYTES = 2**30
"""Largest content: a segment is closed at ``HistoryParams.segment_bytes``, and an entry is at most 512 MiB."""

_HEAD = struct.Struct("<8s16sQ")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[list[bytes]])


def encode(elements: Sequence[Element]) -> bytes:
    """Elements of a log, in its order, as a segment."""
    plain = _encoder.encode([[name, *fields] for name, fields in elements])
    size = struct.pack("<Q", len(plain))
    body = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(plain)
    return MAGIC + hashlib.blake2b(size + body, digest_size=16).digest() + size + body


def decode(segment: bytes) -> list[Element]:
    """The elements of a segment.

    Raises
    ------
    Damaged
        It is not what was written, or its ids do not go up.
    """
    if len(segment) < _HEAD.size:
        raise Damaged("it is cut off")
    magic, checksum, size = _HEAD.unpack_from(segment)
    if magic != MAGIC:
        raise Damaged("it is not a segment that this release reads")
    if hashlib.blake2b(memoryview(segment)[24:], digest_size=16).digest() != checksum:
        raise Damaged("it is not what was written")
    try:
        return _elements(_decoder.decode(_plain(segment[_HEAD.size :], size)))
    except (msgspec.MsgspecError, zstandard.ZstdError, ValueError, RecursionError) as error:
        raise Damaged(f"it cannot be read: {error}") from None


def _plain(body: bytes, size: int) -> bytes:
    """What a frame holds; the frame itself says how much that is, before any memory is taken for it."""
    if size > MOST_BYTES or zstandard.frame_content_size(body) != size:
        raise Damaged("it does not have the size that it says")
    return zstandard.ZstdDecompressor(max_window_size=2**27).decompress(body, allow_extra_data=False)


def _elements(lists: list[list[bytes]]) -> list[Element]:
    elements: list[Element] = []
    before = (0, 0)
    for words in lists:
        if not words:
            raise Damaged("it has an element without an id")
        at = Offset.of_entry(words[0])[:2]
        if at <= before:
            raise Damaged("its ids do not go up")
        before = at
        elements.append((words[0], words[1:]))
    return elements
