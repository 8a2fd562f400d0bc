from __future__ import annotations

import hashlib
import struct

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from abound.history.segment import MAGIC, MOST_BYTES, decode_segment, encode_segment
from abound.log.stream import Element
from abound_core.errors import Corrupted

fields = st.lists(st.binary(max_size=40), max_size=6)
elements = st.lists(st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1)), unique=True, max_size=20).flatmap(
    lambda ids: st.tuples(*(st.tuples(st.just(b"%d-%d" % one), fields) for one in sorted(ids))).map(list)
)


lists = st.recursive(st.integers(0, 2**32) | st.binary(max_size=9), st.lists)


def sealed(size: int, body: bytes) -> bytes:
    """A segment with a right checksum, whatever it holds."""
    rest = struct.pack("<Q", size) + body
    return MAGIC + hashlib.blake2b(rest, digest_size=16).digest() + rest


def holding(plain: bytes) -> bytes:
    return sealed(len(plain), zstandard.compress(plain))


@given(elements)
def test_what_is_written_is_read(written: list[Element]) -> None:
    assert decode_segment(encode_segment(written)) == written


@given(elements, st.data())
def test_any_flipped_bit_and_any_cut_are_found(written: list[Element], data: st.DataObject) -> None:
    segment = encode_segment(written)
    at = data.draw(st.integers(0, len(segment) - 1))
    flipped = bytearray(segment)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), segment[:at], segment + b"\0"):
        with pytest.raises(Corrupted):
            decode_segment(damaged)


@given(st.binary(max_size=300))
def test_garbage_is_damaged(garbage: bytes) -> None:
    with pytest.raises(Corrupted):
        decode_segment(garbage)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=200))
def test_garbage_with_a_right_checksum_is_damaged(size: int, body: bytes) -> None:
    with pytest.raises(Corrupted):
        decode_segment(sealed(size, body))


@given(st.binary(max_size=200) | lists.map(msgspec.msgpack.encode))
def test_anything_in_a_right_frame_is_read_or_damaged(plain: bytes) -> None:
    try:
        read = decode_segment(holding(plain))
    except Corrupted:
        return
    assert encode_segment(read)[24:32] == struct.pack(
        "<Q", len(msgspec.msgpack.encode([[name, *rest] for name, rest in read]))
    )
    assert [name for name, _ in read] == sorted(
        (name for name, _ in read), key=lambda name: [*map(int, name.split(b"-"))]
    )


@pytest.mark.parametrize(
    ("plain", "what"),
    [
        ([[]], "without an id"),
        ([[b"2-0"], [b"1-0"]], "do not ascend"),
        ([[b"1-0"], [b"1-0"]], "do not ascend"),
        ([[b"0-0"]], "do not ascend"),
        ([[b"nothing"]], "cannot be read"),
        ([[b"\xff"]], "cannot be read"),
        ({}, "cannot be read"),
    ],
)
def test_what_cannot_have_been_a_log_is_damaged(plain: object, what: str) -> None:
    with pytest.raises(Corrupted, match=what):
        decode_segment(holding(msgspec.msgpack.encode(plain)))


def test_a_segment_that_says_too_much_takes_no_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(2**24))
    for size in (MOST_BYTES + 1, 2**63, 2**24 - 1):
        with pytest.raises(Corrupted, match="size"):
            decode_segment(sealed(size, bomb))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(Corrupted, match="size"):
        decode_segment(sealed(1000, unsized))
