from __future__ import annotations

import zlib
from typing import Any

import msgspec
import pytest

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
from abound_core.errors import Corrupted, UnknownApplyVersion
from abound_core.model.entry_application import Unit
from tests.support.streams import record

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
