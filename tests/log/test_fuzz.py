"""Whatever bytes are read in the place of entries: a clear error, never a crash, never a wrong index."""

from __future__ import annotations

import asyncio
import zlib

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abound.log.catalog import Catalog
from abound.log.events import (
    APPLY_VERSION,
    CatalogEntry,
    ConfigureEvent,
    Entry,
    KnownModels,
    LearnEvent,
    MarkEvent,
    ModelCreated,
    ModelDeleted,
    decode_entry,
    encode,
)
from abound.state.replicated_model import ReplicatedModel
from abound.store.key_names import ModelKeys
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, UnknownApplyVersion
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset
from tests.randomness import examples
from tests.support.streams import drafts, record

RECORDS = record('{"wheat": 2, "price": 1}', "grain") + record('{"oil": 1, "é": 3}', "crude", "gas")

ENTRIES = [
    encode(Entry(APPLY_VERSION, b"12345678", 7, event))[0]
    for event in (
        LearnEvent(RECORDS, 2, [Unit(1, None, b"", "till"), Unit(1, "key", b"hash")]),
        LearnEvent(b"".join(one.records for one in drafts(5)), 5, [Unit(2, "one", b"h"), Unit(3, batch=1)]),
        ConfigureEvent({"d_max": 5, "margin": 0.5}),
        MarkEvent("token"),
    )
]
CATALOG = [
    encode(CatalogEntry(APPLY_VERSION, event))[0]
    for event in (ModelCreated("news", {"d_max": 9}), ModelDeleted("news", "1-0"))
]
CATALOG.append(
    encode(CatalogEntry(APPLY_VERSION, KnownModels([("news", "1-0", {"d_max": 9}), ("mail", "2-0", {})])))[0]
)

often = settings(max_examples=examples(150), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """One of the payloads with some bytes changed, cut out or put in."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["change", "cut", "insert"]))
        if kind == "change" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 8))]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(data)


def element(payload: bytes) -> list[bytes]:
    """The fields of a stream element with a right checksum."""
    return [b"e", payload, b"c", b"%08x" % zlib.crc32(payload)]


def model() -> ReplicatedModel:
    return ReplicatedModel(ModelKeys("default", "1-0"), ModelConfig())


async def applied(payload: bytes) -> None:
    """Apply an element to a model that has learned; what it becomes must be a state that can be kept and loaded."""
    replica = model()
    await replica.apply((b"2-0", element(ENTRIES[0])))
    before = await replica.compute_digest()
    try:
        event = decode_entry(element(payload)).event
    except (Corrupted, UnknownApplyVersion):
        with pytest.raises((Corrupted, UnknownApplyVersion)):
            await replica.apply((b"3-0", element(payload)))
        assert await replica.compute_digest() == before
        assert replica.offset == Offset(2, 0, 1)
        return
    if not isinstance(event, (LearnEvent, ConfigureEvent, MarkEvent)):
        return
    try:
        await replica.apply((b"3-0", element(payload)))
    except Corrupted:
        assert isinstance(event, ConfigureEvent)
    digest = await replica.compute_digest()
    arrays = {name: array.copy() for name, array in replica.live.to_arrays().items()}
    again = LiveModel.from_arrays(replica.live.meta(), arrays, (1, 2))
    for _ in again.digest_steps():
        pass
    assert again.digest() == digest


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=20) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
tags = st.sampled_from(["learn", "configure", "mark", "boundary", "activate", "created", "deleted"])
any_event = st.tuples(tags, values).map(lambda one: [one[0], *(one[1] if isinstance(one[1], list) else [one[1]])])


@settings(often, max_examples=examples(450))
@given(
    mutated(ENTRIES)
    | st.binary(max_size=200)
    | any_event.map(lambda event: msgspec.msgpack.encode([APPLY_VERSION, b"12345678", 1, event]))
)
def test_anything_as_an_entry_with_a_right_checksum_is_refused_or_applies(payload: bytes) -> None:
    asyncio.run(applied(payload))


@often
@given(original=st.sampled_from(ENTRIES), data=st.data())
def test_a_flipped_bit_anywhere_in_an_element_is_damage(original: bytes, data: st.DataObject) -> None:
    fields = element(original)
    field = data.draw(st.sampled_from([1, 3]))
    at = data.draw(st.integers(0, 8 * len(fields[field]) - 1))
    changed = bytearray(fields[field])
    changed[at // 8] ^= 1 << at % 8
    fields[field] = bytes(changed)
    with pytest.raises(Corrupted):
        decode_entry(fields)


@often
@given(payload=mutated(CATALOG) | st.binary(max_size=100))
def test_any_bytes_in_the_catalog_are_refused_or_apply(payload: bytes) -> None:
    catalog = Catalog()
    catalog.apply((b"1-0", element(CATALOG[0])))
    before = [living.keys for living in catalog]
    try:
        catalog.apply((b"2-0", element(payload)))
    except (Corrupted, UnknownApplyVersion):
        assert [living.keys for living in catalog] == before
        assert catalog.offset == Offset(1, 0, 0)
