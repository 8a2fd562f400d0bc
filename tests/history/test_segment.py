"""A segment of history: its format; damage of a segment, list or base is named, and never read as if it were whole."""

import hashlib
import json
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound.artifacts.artifact_store import ARTIFACTS_KEY
from abound.artifacts.checksums import seal
from abound.artifacts.zstandard import zstd
from abound.history import history as history_manifest
from abound.history.archive import restart_history, swap_manifest, write_segment
from abound.history.history import HistoryManifest, HistoryParams
from abound.history.replay import replay
from abound.history.segment import MAGIC, MOST_BYTES, decode_segment, encode_segment
from abound.log import stream
from abound.log.stream import Element
from abound.store.key_names import ModelKeys
from abound_core.errors import Corrupted
from tests.support.lab import Archived

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
    return sealed(len(plain), zstd.compress(plain))


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


@given(st.binary(max_size=300) | st.builds(sealed, st.integers(0, 2**64 - 1), st.binary(max_size=200)))
def test_garbage_is_damaged_with_a_right_checksum_too(garbage: bytes) -> None:
    with pytest.raises(Corrupted):
        decode_segment(garbage)


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
    bomb = zstd.compress(bytes(2**24), 19)
    for size in (MOST_BYTES + 1, 2**63, 2**24 - 1):
        with pytest.raises(Corrupted, match="size"):
            decode_segment(sealed(size, bomb))
    unsized = (frame := zstd.ZstdCompressor()).compress(bytes(1000)) + frame.flush()
    with pytest.raises(Corrupted, match="size"):
        decode_segment(sealed(1000, unsized))


Change = Callable[[Archived, HistoryManifest], Awaitable[None]]


def in_file(change: Callable[[bytes], bytes] | None) -> Change:
    async def damage(model: Archived, contents: HistoryManifest) -> None:
        path = model.artifacts.path(contents.segments[1].name)
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))

    return damage


async def exchanged(model: Archived, contents: HistoryManifest) -> None:
    one, other = (model.artifacts.path(segment.name) for segment in contents.segments[1:3])
    packed = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(packed)


DAMAGES: dict[str, Change] = {
    "flipped": in_file(lambda data: data[:60] + bytes([data[60] ^ 4]) + data[61:]),
    "missing": in_file(None),
    "exchanged": exchanged,
}


@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_damaged_segment_is_named_and_snapshots_stand_without_it(model: Archived, kind: str) -> None:
    contents = await model.archive()
    good = await replay(model.store, model.living, artifacts=model.artifacts)
    await DAMAGES[kind](model, contents)
    name = contents.segments[1].name
    with pytest.raises(Corrupted, match=rf"{name}.*(damaged|missing).*backup.*begin-anew"):
        await replay(model.store, model.living, from_start=True, artifacts=model.artifacts)
    again = await replay(model.store, model.living, artifacts=model.artifacts)
    assert await again.compute_digest() == await good.compute_digest()
    async with model.archiving() as to:  # the way out that the message names
        begun = await restart_history(to)
    assert begun.segments == []
    again = await replay(model.store, model.living, from_start=True, artifacts=model.artifacts)
    assert await again.compute_digest() == await good.compute_digest()
    for seed in (5, 6):
        await model.grow(30, seed)
    assert (await model.archive()).n_entries == 209
    assert (await model.contents()).log_bytes == (await stream.trim_of(model.store, model.living.keys.log)).log_bytes
    assert await model.past(begun.start) == model.every[120:]


async def test_an_entry_that_is_not_what_was_written_is_found_in_a_segment(model, monkeypatch):
    """The segment is just what was written; what it was made of was not."""
    contents = await model.archive(HistoryParams(segment_bytes=10**6))
    name, fields = model.every[70]
    wrong = (name, [b"e", fields[1][:9] + bytes([fields[1][9] ^ 1]) + fields[1][10:], *fields[2:]])
    async with model.archiving(HistoryParams()) as to:
        (old,) = contents.segments
        elements = [*model.every[:70], wrong, *model.every[71:119]]
        segment = await write_segment(to, elements, old.n_before, old.bytes_before, old.log_bytes)
        await swap_manifest(to, msgspec.structs.replace(contents, segments=[segment]))
    with pytest.raises(Corrupted, match=rf"{segment.name}.*{name.decode()} in it.*begin-anew"):
        await model.past()


async def test_a_list_that_is_not_what_was_written_is_damaged(model: Archived) -> None:
    contents = await model.archive()
    key = history_manifest.history_key(model.living.keys)
    plain = json.loads(await model.store.client.get(key))
    wrong = {
        "cannot be read": [b"\xff", b"[]", b"{}", json.dumps(plain | {"segments": [{}]}).encode()],
        "its checksum is wrong": [json.dumps(plain | {"artifacts": "x"}).encode()],
        "format 2": [json.dumps(plain | {"format": 2}).encode()],
        "belongs to other": [msgspec.json.encode(seal(msgspec.structs.replace(contents, model="other")))],
    }
    first, second, *others = contents.segments
    backwards = msgspec.structs.replace(first, first=first.last, last=first.first)
    for what, segments in (("a gap", [first, *others]), ("out of order", [backwards, second, *others])):
        wrong[what] = [msgspec.json.encode(seal(msgspec.structs.replace(contents, segments=segments)))]
    for what, packs in wrong.items():
        for packed in packs:
            await model.store.client.set(key, packed)
            with pytest.raises(Corrupted, match=what):
                await replay(model.store, model.living, from_start=True, artifacts=model.artifacts)
            assert (await replay(model.store, model.living, artifacts=model.artifacts)).live.n_learned == 180
            with pytest.raises(Corrupted, match=what):
                await model.archive()


@given(
    st.binary(max_size=200) | st.dictionaries(st.text(max_size=9), st.integers() | st.text()).map(msgspec.json.encode)
)
def test_garbage_in_the_place_of_a_list_is_damaged(packed: bytes) -> None:
    with pytest.raises(Corrupted):
        history_manifest.parse(packed, ModelKeys("m", "1-0"))


async def test_a_history_whose_list_or_artifact_store_is_lost_begins_anew(model: Archived, tmp_path: Path) -> None:
    await model.archive()
    await model.store.client.delete(history_manifest.history_key(model.living.keys))
    with pytest.raises(Corrupted, match="no history"):
        await replay(model.store, model.living, from_start=True, artifacts=model.artifacts)
    begun = await model.archive()
    assert (begun.start[:2], begun.segments) == (model.offset(119)[:2], [])
    await model.store.client.delete(ARTIFACTS_KEY)
    await model.artifacts.join(model.store)
    for seed in (5, 6):
        await model.grow(20, seed)
    again = await model.archive()
    assert again.artifacts == model.artifacts.id != begun.artifacts
    for from_start in (True, False):
        made = await replay(model.store, model.living, from_start=from_start, artifacts=model.artifacts)
        assert made.live.n_learned == 220
