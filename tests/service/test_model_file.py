"""A model's file: whatever comes in its place is refused with a sentence, or is the model that was written."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.applying import Unit
from core.errors import Damaged, TooLarge, UnknownApplyVersion
from core.limits import Limits
from core.live import LiveModel
from core.record import pack_labels
from core.types import START
from service.array_parts import Part, checksum_of, live_of, parts_of, shapes_of
from service.events import APPLY_VERSION, Learn
from service.model_file import KIND, Header, Reader, packed
from tests.service.adopting import apply, digest_of, model_of

REFUSALS = (Damaged, TooLarge, UnknownApplyVersion)
LIMIT = 2**24


def file_of(live: LiveModel) -> tuple[bytes, str]:
    """A model's file, and its digest."""
    digest = asyncio.run(digest_of(live))
    arrays = live.to_arrays()
    parts = list(parts_of(arrays, 40_000))
    header = Header(
        apply_version=APPLY_VERSION,
        model="news",
        offset="5-0.0",
        digest=digest,
        state=live.meta(),
        arrays=shapes_of(arrays),
        parts=[Part(len(part), checksum_of(part)) for part in parts],
    )
    assert len(parts) > 2
    return packed(header) + b"".join(parts), digest


def large() -> LiveModel:
    """A model of a million bytes, more than its file has."""
    live, rng = model_of(0, 1), random.Random(1)
    for _ in range(800):
        features = ",".join(f'"{rng.randrange(2**30)}": 1' for _ in range(20))
        record = live.vectorizer.vectorize(b"{" + features.encode() + b"}", None) + pack_labels(["x"], live.limits)
        apply(live, START, Learn(record, 1, [Unit(1)]))
    return live


FILE, DIGEST = file_of(model_of(25, 1))
LARGE, _ = file_of(large())
HEADER = msgspec.json.decode(FILE[32 : 32 + struct.unpack_from("<I", FILE, 12)[0]])
BODY = FILE[32 + struct.unpack_from("<I", FILE, 12)[0] :]


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def read(data: bytes, size: int = 10_000, limit: int = LIMIT) -> LiveModel:
    """The model that a file is."""

    async def reading() -> LiveModel:
        reader = Reader(in_pieces(data, size), limit)
        header = await reader.header()
        _ = header.config
        return await live_of(
            header.state, header.arrays, header.size, header.digest, reader.parts(header), Limits(), lambda done: None
        )

    return asyncio.run(reading())


def with_header(changes: dict[str, object], body: bytes = BODY) -> bytes:
    """The file with another header, its checksum right."""
    plain = msgspec.json.encode({**HEADER, **changes})
    head = struct.pack("<8sII16s", KIND.magic, KIND.format, len(plain), bytes.fromhex(checksum_of(plain)))
    return head + plain + body


@pytest.mark.parametrize("size", [1, 7, 33, 10_000, 10**9])
def test_a_file_is_the_model_however_it_comes(size: int) -> None:
    if size == 1:
        assert asyncio.run(digest_of(read(FILE, 997))) == DIGEST
        return
    assert asyncio.run(digest_of(read(FILE, size))) == DIGEST


@pytest.mark.parametrize(
    ("data", "kind", "what"),
    [
        (b"", Damaged, "ends in its first bytes"),
        (FILE[:40], Damaged, "ends in its header"),
        (FILE[:-1], Damaged, "ends in its part"),
        (FILE + b"x", Damaged, "follows the last part"),
        (b"PK" + FILE[2:], Damaged, "not the file of a model"),
        (FILE[:8] + struct.pack("<I", KIND.format - 1) + FILE[12:], UnknownApplyVersion, f"format {KIND.format - 1}"),
        (FILE[:8] + struct.pack("<I", KIND.format + 1) + FILE[12:], UnknownApplyVersion, f"format {KIND.format + 1}"),
        (FILE[:12] + struct.pack("<I", 2**31) + FILE[16:], Damaged, "longer than it can be"),
        (FILE[:60] + b"~" + FILE[61:], Damaged, "header of the file is not what was written"),
        (FILE[:-5] + bytes([FILE[-5] ^ 1]) + FILE[-4:], Damaged, "part .* is not what was written"),
        (with_header({"apply_version": APPLY_VERSION + 1}), UnknownApplyVersion, "apply version 3"),
        (with_header({"digest": "0" * 32}), Damaged, "another digest"),
        (with_header({"parts": []}), Damaged, "not one that can be in it"),
        (with_header({"parts": [{"size": 2**40, "checksum": ""}]}), Damaged, "size that cannot be"),
        (with_header({"parts": [{"size": 2**25, "checksum": ""}]}), TooLarge, "of at most"),
        (with_header({"arrays": HEADER["arrays"][1:]}), Damaged, "do not fill"),
        (with_header({"state": {}}), Damaged, "no configuration"),
        (with_header({"state": {"config": {"nonsense": 1}}}), Damaged, "no configuration"),
        (with_header({"state": []}), Damaged, "cannot be read"),
    ],
)
def test_each_damage_is_refused_and_named(data: bytes, kind: type[Exception], what: str) -> None:
    with pytest.raises(kind, match=what):
        read(data)


@given(st.binary(max_size=300))
def test_anything_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(REFUSALS):
        read(data)


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_noticed(place: int, change: int) -> None:
    with pytest.raises(REFUSALS):
        read(FILE[:place] + bytes([FILE[place] ^ change]) + FILE[place + 1 :])


@given(st.integers(0, len(FILE) - 1))
def test_a_file_cut_off_anywhere_is_noticed(end: int) -> None:
    with pytest.raises(Damaged):
        read(FILE[:end])


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(sorted(HEADER)), values)
def test_a_header_with_anything_in_a_field_is_refused_or_gives_the_same_model(field: str, value: object) -> None:
    """As from somebody who can make checksums: an error of ours, or the state that the digest names."""
    try:
        data = with_header({field: value})
    except (OverflowError, ValueError):
        return
    try:
        live = read(data)
    except REFUSALS:
        return
    assert asyncio.run(digest_of(live)) == DIGEST


@given(st.integers(0, 20), st.sampled_from(["name", "dtype", "shape"]), values)
def test_an_array_that_says_anything_of_itself_is_refused_or_gives_the_same_model(
    number: int, field: str, value: object
) -> None:
    arrays = [dict(array) for array in HEADER["arrays"]]
    arrays[number % len(arrays)][field] = value
    try:
        data = with_header({"arrays": arrays})
    except (OverflowError, ValueError):
        return
    try:
        live = read(data)
    except REFUSALS:
        return
    assert asyncio.run(digest_of(live)) == DIGEST
