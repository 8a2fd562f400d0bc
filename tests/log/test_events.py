import asyncio
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abound.log.catalog import Catalog
from abound.log.events import (
    APPLY_VERSION,
    ActivateEvent,
    BoundaryEvent,
    CatalogEntry,
    ConfigureEvent,
    Entry,
    IncarnationDropped,
    KnownModel,
    KnownModels,
    LearnEvent,
    MarkEvent,
    ModelCreated,
    ModelDeleted,
    ModelReplaced,
    PrepareVersionEvent,
    ReplacementBegun,
    ReplacementPrepared,
    decode_catalog_entry,
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

RECORDS = record('{"wheat": 2, "price": 1}', "grain") + record('{"oil": 1}', "crude", "gas")


def fields(payload: bytes, checksum: bytes | None = None) -> list[bytes]:
    return [b"e", payload, b"c", b"%08x" % zlib.crc32(payload) if checksum is None else checksum]


def packed(*parts: Any) -> list[bytes]:
    return fields(msgspec.msgpack.encode(parts))


def entry(event: Any) -> Entry:
    return Entry(APPLY_VERSION, b"12345678", 7, event)


@pytest.mark.parametrize(
    "event",
    [
        LearnEvent(RECORDS, 2, [Unit(1, None, b"", "till"), Unit(1, "key", b"hash")]),
        ConfigureEvent({"d_max": 5, "analyzer": {"ngrams": [1, 2]}}),
        LearnEvent(RECORDS, 5, [Unit(3, batch=3, emptied=True), Unit(1), Unit(1, "key", b"hash")]),
        LearnEvent(b"", 2, [Unit(2, emptied=True)]),
        MarkEvent("token"),
        BoundaryEvent("5-0"),
        PrepareVersionEvent("activation", "0a1b", "digest", "a reason"),
        ActivateEvent("activation", "0a1b", "digest", "a reason"),
        ActivateEvent("activation", "live", ""),
    ],
)
def test_an_entry_survives_the_wire(event: Any) -> None:
    payload, checksum = encode(entry(event))
    assert decode_entry([b"e", payload, b"c", checksum]) == entry(event)


@pytest.mark.parametrize(
    "event",
    [
        ModelCreated("news", {"d_max": 9}),
        ModelDeleted("news", "1-0"),
        ReplacementBegun("news", "1-0"),
        ReplacementPrepared("news", "2-0", {"d_max": 9}),
        ModelReplaced("news", "1-0", "2-0", True),
        IncarnationDropped("news", "1-0"),
        KnownModels([KnownModel("news", "2-0", {}, "1-0", ("3-0", None), ("1-0", {"d_max": 9}, 1_700_000_000_000))]),
    ],
)
def test_a_catalog_entry_survives_the_wire(event: Any) -> None:
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
    assert decode_catalog_entry([b"e", payload, b"c", checksum]).event == event


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ([], "two fields"),
        ([b"e", b"x"], "two fields"),
        ([b"x", b"x", b"c", b"x"], "two fields"),
        (fields(encode(entry(MarkEvent("t")))[0], b"00000000"), "checksum"),
        (fields(b""), "cannot be read"),
        (fields(b"\xc1" * 20), "cannot be read"),
        (fields(encode(entry(MarkEvent("t")))[0][:-1]), "cannot be read"),
        (fields(encode(entry(MarkEvent("t")))[0] + b"\x00"), "cannot be read"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS]), "cannot be read"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS, "2", []]), "cannot be read"),
        (packed(APPLY_VERSION, b"o", 1, ["teach", RECORDS, 2, []]), "cannot be read"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS, 2, [[1]]]), "instances in total, and it states"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS, 2, [[3], [-1]]]), "without instances"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", b"", 0, []]), "instances in total, and it states"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS, 1, [[1]]]), "follow the last"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS, 3, [[3]]]), "runs past the end"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS, 2**20, [[2**20]]]), "too few"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS, 2, [[2, None, b"", None, 1, True]]]), "too few|follow"),
        (
            packed(APPLY_VERSION, b"o", 1, ["learn", b"", 2**40, [[2**40, None, b"", None, 1, True]]]),
            "instances in total, and it states",
        ),
        (packed(APPLY_VERSION, b"o", 1, ["boundary", 5]), "cannot be read"),
        (packed(APPLY_VERSION, b"o", 1, ["activate", "a", "live", "digest"]), "no version"),
        (packed(APPLY_VERSION, b"o", 1, ["activate", "a", "0a1b", ""]), "no version"),
        (packed(APPLY_VERSION, b"o", 1, ["activate", "a", "../0a1b", "digest"]), "no version"),
        (packed(APPLY_VERSION, b"o", 1, ["prepare_version", "a", "", "digest"]), "no version"),
        (packed(APPLY_VERSION, b"o", 1, ["learn", RECORDS[:-4] + b"\xff\xff\xff\xff", 2, [[2]]]), "record"),
    ],
)
def test_a_damaged_entry_is_named_as_such(bad: list[bytes], what: str) -> None:
    with pytest.raises(Corrupted, match=what):
        decode_entry(bad)


@pytest.mark.parametrize(
    "newer",
    [
        packed(APPLY_VERSION + 1, b"o", 1, ["mark", "t"]),
        packed(APPLY_VERSION + 1, b"o", 1, ["promote", "version", 3]),
        packed(APPLY_VERSION + 1, {"origin": b"o"}),
    ],
)
def test_an_entry_of_a_newer_release_is_not_damaged_but_unknown(newer: list[bytes]) -> None:
    with pytest.raises(UnknownApplyVersion, match=f"apply version {APPLY_VERSION + 1}"):
        decode_entry(newer)


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


def model() -> ReplicatedModel:
    return ReplicatedModel(ModelKeys("default", "1-0"), ModelConfig())


async def applied(payload: bytes) -> None:
    """Apply an element to a model that has learned; what it becomes must be a state that can be kept and loaded."""
    replica = model()
    await replica.apply((b"2-0", fields(ENTRIES[0])))
    before = await replica.compute_digest()
    try:
        event = decode_entry(fields(payload)).event
    except (Corrupted, UnknownApplyVersion):
        with pytest.raises((Corrupted, UnknownApplyVersion)):
            await replica.apply((b"3-0", fields(payload)))
        assert await replica.compute_digest() == before
        assert replica.offset == Offset(2, 0, 1)
        return
    if not isinstance(event, (LearnEvent, ConfigureEvent, MarkEvent)):
        return
    try:
        await replica.apply((b"3-0", fields(payload)))
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
    parts = fields(original)
    field = data.draw(st.sampled_from([1, 3]))
    at = data.draw(st.integers(0, 8 * len(parts[field]) - 1))
    changed = bytearray(parts[field])
    changed[at // 8] ^= 1 << at % 8
    parts[field] = bytes(changed)
    with pytest.raises(Corrupted):
        decode_entry(parts)


@often
@given(payload=mutated(CATALOG) | st.binary(max_size=100))
def test_any_bytes_in_the_catalog_are_refused_or_apply(payload: bytes) -> None:
    catalog = Catalog()
    catalog.apply((b"1-0", fields(CATALOG[0])))
    before = [living.keys for living in catalog]
    try:
        catalog.apply((b"2-0", fields(payload)))
    except (Corrupted, UnknownApplyVersion):
        assert [living.keys for living in catalog] == before
        assert catalog.offset == Offset(1, 0, 0)
