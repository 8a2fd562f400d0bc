"""Whatever bytes are read in the place of entries and snapshots: a clear error, never a crash, never a wrong index."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abound.artifacts.checksums import seal
from abound.history.replay import compact
from abound.log.catalog import Catalog, CatalogModel
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
from abound.state.state_image import StateManifest
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, UnknownApplyVersion
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset
from tests.randomness import examples
from tests.state.test_snapshots import SMALL_PARTS, append, create, loaded
from tests.support.streams import drafts, record
from tests.support.valkey import Server

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


@often
@given(payload=mutated(ENTRIES))
def test_a_mutated_entry_with_a_right_checksum_is_refused_or_applies(payload: bytes) -> None:
    asyncio.run(applied(payload))


@often
@given(payload=st.binary(max_size=200))
def test_any_bytes_as_an_entry_are_refused_or_apply(payload: bytes) -> None:
    asyncio.run(applied(payload))


@often
@given(
    parts=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=20) | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=12,
    ),
    tag=st.sampled_from(["learn", "configure", "mark", "boundary", "activate", "created", "deleted"]),
)
def test_any_values_as_an_event_are_refused_or_apply(parts: Any, tag: str) -> None:
    event = [tag, *parts] if isinstance(parts, list) else [tag, parts]
    payload = msgspec.msgpack.encode([APPLY_VERSION, b"12345678", 1, event])
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


# snapshots


class Kept:
    """A store with two snapshots of a model, whose newest one is damaged again and again.

    Attributes
    ----------
    keys : list of bytes
        Of the newest snapshot: its parts, and at last its manifest.
    values : list of bytes
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.living, self.newest, self.older = asyncio.run(self._prepare())
        name = self.newest.id
        parts = [self.living.keys.key(f"snapshot:{name}:{i}") for i in range(len(self.newest.parts))]
        self.keys = [*parts, self.living.keys.key(f"snapshot:{name}:manifest")]
        with server.client() as client:
            self.values: list[bytes] = client.mget(self.keys)  # type: ignore[assignment]
        assert None not in self.values

    async def _prepare(self) -> tuple[CatalogModel, StateManifest, StateManifest]:
        store = Store(self.server.url, self.server.store_params)
        living = await create(store)
        await append(store, living, 60, 0)
        older = await compact(store, living, SMALL_PARTS)
        await append(store, living, 60, 1)
        newest = await compact(store, living, SMALL_PARTS)
        await store.close()
        return living, newest, older

    def load(self, at: int, value: bytes) -> tuple[str | None, list[str]]:
        """Which snapshot a start loads when one value is another, and why it passes others over."""

        async def look(then: Callable[[Store, CatalogModel], Awaitable[tuple[str | None, list[str]]]]) -> Any:
            store = Store(self.server.url, self.server.store_params)
            try:
                return await then(store, self.living)
            finally:
                await store.close()

        with self.server.client() as client:
            client.set(self.keys[at], value)
            try:
                found: tuple[str | None, list[str]] = asyncio.run(look(loaded))
            finally:
                client.set(self.keys[at], self.values[at])
        return found


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    server = Server()
    yield Kept(server)
    server.close()


seldom = settings(often, max_examples=examples(50))


@seldom
@given(data=st.data())
def test_a_flipped_bit_anywhere_in_a_snapshot_is_found(kept: Kept, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(kept.keys) - 1))
    bit = data.draw(st.integers(0, 8 * len(kept.values[at]) - 1))
    value = bytearray(kept.values[at])
    value[bit // 8] ^= 1 << bit % 8
    name, reasons = kept.load(at, bytes(value))
    assert name == kept.older.id
    assert len(reasons) == 1


@seldom
@given(data=st.data())
def test_a_snapshot_that_ends_early_anywhere_is_found(kept: Kept, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(kept.keys) - 1))
    length = data.draw(st.integers(0, len(kept.values[at]) - 1))
    assert kept.load(at, kept.values[at][:length])[0] == kept.older.id


FIELDS = [field for field in msgspec.structs.fields(StateManifest) if field.name != "checksum"]

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@seldom
@given(name=st.sampled_from([field.name for field in FIELDS]), value=plain)
def test_a_manifest_that_says_anything_with_a_right_checksum_never_gives_a_wrong_index(
    kept: Kept, name: str, value: Any
) -> None:
    fields = msgspec.json.decode(kept.values[-1]) | {name: value}
    try:
        packed = msgspec.json.encode(seal(msgspec.convert(fields, StateManifest)))
    except (msgspec.ValidationError, OverflowError):
        packed = msgspec.json.encode(fields)
    found, reasons = kept.load(len(kept.keys) - 1, packed)
    assert found in (kept.newest.id, kept.older.id)
    assert len(reasons) == (found == kept.older.id)


@seldom
@given(packed=st.binary(max_size=200) | plain.map(msgspec.json.encode))
def test_any_bytes_as_a_manifest_are_passed_over(kept: Kept, packed: bytes) -> None:
    assert kept.load(len(kept.keys) - 1, packed)[0] == kept.older.id
