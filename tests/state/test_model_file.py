"""A model's file: whatever comes in its place is refused with a sentence, or is the model that was written."""

import asyncio
import random
import struct
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound.artifacts.checksums import checksum_of, seal
from abound.artifacts.file_format import encode_head
from abound.log.events import APPLY_VERSION, LearnEvent
from abound.state.model_file import MAGIC, read_model_file
from abound.state.position import Position
from abound.state.state_image import MANIFEST, Part, StateManifest, load, parts_of, shapes_of, write
from abound.store.key_names import ModelKeys
from abound.tasks import do_nothing
from abound_core.errors import Corrupted, TooLarge, UnknownApplyVersion
from abound_core.instances.record import pack_labels
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel, warmup
from abound_core.model.state import STATE_FORMAT
from abound_core.types import START, Offset
from tests.core.model.forging import CONFIGS, forgery_of
from tests.randomness import examples
from tests.support.lab import apply, digest_of, model_of

REFUSALS = (Corrupted, TooLarge, UnknownApplyVersion)
LIMIT = 2**24
MIB = 2**20


def file_of(live: LiveModel) -> tuple[bytes, str]:
    files: dict[str, bytes] = {}

    async def put(name: str, data: bytes) -> None:
        files[name] = data

    keys, position = ModelKeys("news", "1-0"), Position(Offset(5, 0, 0), b"0" * 8, 5, 500)
    manifest = asyncio.run(write(put, keys, "image", live, position, 40_000, do_nothing))
    assert files.pop(MANIFEST) == msgspec.json.encode(manifest)
    assert len(files) > 2
    return encode_head(MAGIC, manifest) + b"".join(files.values()), manifest.digest


def large() -> LiveModel:
    """A model of a million bytes, more than its file has."""
    live, rng = model_of(0, 1), random.Random(1)
    for _ in range(800):
        features = ",".join(f'"{rng.randrange(2**30)}": 1' for _ in range(20))
        record = live.vectorizer.vectorize(b"{" + features.encode() + b"}", None) + pack_labels(["x"], live.limits)
        apply(live, START, LearnEvent(record, 1, [Unit(1)]))
    return live


FILE, DIGEST = file_of(model_of(25, 1))
LARGE, _ = file_of(large())
BODY_STARTS = 12 + struct.unpack_from("<I", FILE, 8)[0]
HEAD = msgspec.json.decode(FILE[12:BODY_STARTS])
BODY = FILE[BODY_STARTS:]


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def read(data: bytes, size: int = 10_000, limit: int = LIMIT) -> LiveModel:

    async def reading() -> LiveModel:
        manifest, parts = await read_model_file(in_pieces(data, size), limit)
        return await load(manifest, parts, Limits())

    return asyncio.run(reading())


def with_head(changes: dict[str, object], body: bytes = BODY) -> bytes:
    """The file with another head, its checksum right if it can be a manifest."""
    try:
        plain = msgspec.json.encode(seal(msgspec.convert({**HEAD, **changes}, StateManifest)))
    except msgspec.ValidationError:
        plain = msgspec.json.encode({**HEAD, **changes})
    return struct.pack("<8sI", MAGIC, len(plain)) + plain + body


def with_array(**fields: object) -> bytes:
    """The file with other fields of its first array."""
    return with_head({"arrays": [HEAD["arrays"][0] | fields, *HEAD["arrays"][1:]]})


@pytest.mark.parametrize("size", [7, 33, 997, 10_000, 10**9])
def test_a_file_is_the_model_however_it_comes(size):
    assert asyncio.run(digest_of(read(FILE, size))) == DIGEST


@pytest.mark.parametrize(
    ("data", "kind", "what"),
    [
        (b"", Corrupted, "ends in its first bytes"),
        (FILE[:40], Corrupted, "ends in its head"),
        (FILE + b"x", Corrupted, "more bytes after its last part"),
        (b"PK" + FILE[2:], Corrupted, "not a model file"),
        (with_head({"format": STATE_FORMAT - 1}), UnknownApplyVersion, f"format {STATE_FORMAT - 1}"),
        (FILE[:8] + struct.pack("<I", 2**31) + FILE[12:], Corrupted, "larger than allowed"),
        (FILE.replace(b"news", b"nows", 1), Corrupted, "head of the file is damaged: its checksum is wrong"),
        (FILE[:12] + b"~" + FILE[13:], Corrupted, "head of the file cannot be read"),
        (FILE[:-5] + bytes([FILE[-5] ^ 1]) + FILE[-4:], Corrupted, "part .* is damaged: its size or checksum is wrong"),
        (with_head({"apply_version": APPLY_VERSION + 1}), UnknownApplyVersion, f"apply version {APPLY_VERSION + 1}"),
        (with_head({"digest": "0" * 32}), Corrupted, "another digest"),
        (with_head({"parts": []}), Corrupted, "impossible dtype, shape or size"),
        (with_head({"parts": [{"size": 2**40, "checksum": ""}]}), Corrupted, "impossible size"),
        (with_head({"parts": [{"size": 2**25, "checksum": ""}]}), TooLarge, "more than the limit of"),
        (with_head({"arrays": HEAD["arrays"][1:]}), Corrupted, "do not fill"),
        (with_array(dtype="|O"), Corrupted, "impossible dtype, shape or size"),
        (with_head({"arrays": HEAD["arrays"][1::-1] + HEAD["arrays"][2:]}), Corrupted, None),  # swapped
        (with_head({"state": {"config": {"nonsense": 1}}}), Corrupted, "no configuration"),
        (with_head({"state": []}), Corrupted, "cannot be read"),
    ],
)
def test_each_damage_is_refused_and_named(data, kind, what):
    with pytest.raises(kind, match=what):
        read(data)


@given(st.binary(max_size=300))
def test_anything_at_all_is_refused(data):
    with pytest.raises(REFUSALS):
        read(data)


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_noticed(place, change):
    with pytest.raises(REFUSALS):
        read(FILE[:place] + bytes([FILE[place] ^ change]) + FILE[place + 1 :])


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(sorted(HEAD)), values)
def test_a_head_with_anything_in_a_field_is_refused_or_gives_the_same_model(field, value):
    """As from somebody who can make checksums: an error of ours, or the state that the digest names."""
    try:
        data = with_head({field: value})
    except (OverflowError, ValueError):
        return
    try:
        live = read(data)
    except REFUSALS:
        return
    assert asyncio.run(digest_of(live)) == DIGEST


@pytest.mark.parametrize("config", CONFIGS)
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_other_numbers_in_a_file_take_no_more_than_a_small_multiple_of_it(config, data):
    """As from somebody who can make checksums: whatever the numbers are, a refusal or a model, in bounded memory."""
    arrays, state = made(config)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(["", *sorted(name for name, array in arrays.items() if array.size)]))
        if not name:
            field = data.draw(st.sampled_from(sorted(state["config"])))
            state["config"][field] = data.draw(st.integers(-1, 2**63) | st.floats(0, 1e300))
            continue
        flat = arrays[name].reshape(-1)
        flat[data.draw(st.integers(0, flat.size - 1))] = data.draw(numbers(flat.dtype))
    assert_bounded(arrays, state)


def made(config: str) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    warmup()  # a kernel that is loaded while memory is traced would count
    forgery = forgery_of(config)
    arrays = {name: array.copy() for name, array in forgery.arrays.items()}
    return arrays, msgspec.json.decode(msgspec.json.encode(forgery.meta))


def assert_bounded(arrays: dict[str, np.ndarray[Any, Any]], state: dict[str, Any]) -> None:
    body = list(parts_of(arrays, 40_000))
    changes = {"digest": "0" * 32, "state": state, "arrays": shapes_of(arrays)}
    parts = [Part(len(part), checksum_of(part)) for part in body]
    file = with_head(msgspec.to_builtins(changes | {"parts": parts}), b"".join(body))
    tracemalloc.start()
    try:
        with pytest.raises(REFUSALS):
            read(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIB + 20 * len(file)


def test_a_size_that_is_only_said_takes_no_memory():
    claimed = [{"name": "index/weights", "dtype": "<f4", "shape": [2**28]}]
    parts = [{"size": 2**26, "checksum": "0" * 32}] * 16
    file = with_head({"arrays": claimed, "parts": parts})
    tracemalloc.start()
    try:
        with pytest.raises(Corrupted):
            read(file, limit=2**32)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB + 4 * len(file)


def numbers(dtype: np.dtype[Any]) -> st.SearchStrategy[float]:
    if dtype.kind == "f":
        return st.floats(width=64 if dtype.itemsize == 8 else 32)
    info = np.iinfo(dtype)
    return st.sampled_from([0, 1, int(info.max) // 3, int(info.max)]) | st.integers(int(info.min), int(info.max))
