"""The contents of the log: entries, their events, and their encoding.

    Entry{version, origin, sequence, event}            one element of a model's stream: one append group
        LearnEvent(records, n, units)                  labelled instances of one or more requests
        ConfigureEvent(changes)                        configuration fields that change here
        MarkEvent(token)                               an offset at which every replica publishes its digest
        BoundaryEvent(replacement)                     where a replacement of the model begins or ends
        PrepareVersionEvent(activation, version, digest)   every replica loads a version that may be activated
        ActivateEvent(activation, version, digest)     from here on this version answers
    CatalogEntry{version, event}                       one element of the catalog stream
        ModelCreated(name, config)  ModelDeleted(name, incarnation)
        ReplacementBegun(name, incarnation)            the entry's id is the incarnation that shall replace that one
        ReplacementPrepared(name, incarnation, config) replicas load it beside the model that they serve
        ModelReplaced(name, incarnation, by, keep)     from here on the other incarnation is served
        IncarnationDropped(name, incarnation)          an unfinished replacement, or a replaced model
        KnownModels(models)                            all models at this point; earlier entries are not needed

A stream element has two fields: ``e``, the msgpack payload, and ``c``, its CRC-32 in hex. A reader checks
everything, because it will apply the entry: checksum, version, types, counts and the shape of every record.
An invalid entry raises :class:`Corrupted`. An entry of a newer release raises :class:`UnknownApplyVersion`.
Readers never skip such an entry.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from abound.log.stream import Element
from abound_core.errors import Corrupted, UnknownApplyVersion
from abound_core.instances.record import check_records
from abound_core.model.active_version import LIVE
from abound_core.model.entry_application import Unit
from abound_core.types import Offset

APPLY_VERSION = 5
"""Version of the log's meaning that this release applies. Any change of how an event changes a model increments it."""

_VERSION = re.compile(r"[0-9a-z]{1,64}")

MAX_POSITIONS = 2**26  # of an entry: the store accepts no element over 512 MiB, and a record has at least 8 bytes


class LearnEvent(msgspec.Struct, array_like=True, tag="learn", frozen=True, gc=False):
    records: bytes  # of all units that are not emptied, concatenated: vector + labels part
    n: int  # positions of the entry
    units: list[Unit]  # the requests, in the order of their records; their ``n`` sum to ``n``

    @property
    def n_records(self) -> int:
        return sum([unit.n for unit in self.units if not unit.emptied])


class ConfigureEvent(msgspec.Struct, array_like=True, tag="configure", frozen=True):
    """Fields of the model's configuration, with their values from here on."""

    changes: dict[str, Any]


class MarkEvent(msgspec.Struct, array_like=True, tag="mark", frozen=True):
    """Changes nothing; every replica publishes its digest at this offset under ``token``."""

    token: str


class BoundaryEvent(msgspec.Struct, array_like=True, tag="boundary", frozen=True):
    """Changes nothing: the log of a model is copied up to here, or ends here (``abound/replace/replace.py``)."""

    replacement: str  # incarnation that replaces the model


class PrepareVersionEvent(msgspec.Struct, array_like=True, tag="prepare_version", frozen=True):
    """Changes nothing; announces an activation, so that replicas load the version."""

    activation: str  # id of the attempt
    version: str  # ``live`` for the index
    digest: str  # of the version; empty for the index
    reason: str = ""


class ActivateEvent(msgspec.Struct, array_like=True, tag="activate", frozen=True):
    """Makes a version answer all requests that name none. The event is complete: a replay needs no
    ``PrepareVersionEvent``.

    A second event with the same ``activation`` is ignored.
    """

    activation: str
    version: str
    digest: str
    reason: str = ""


class ModelCreated(msgspec.Struct, array_like=True, tag="created", frozen=True):
    """Ignored if the name is in use."""

    name: str
    config: dict[str, Any]


class ModelDeleted(msgspec.Struct, array_like=True, tag="deleted", frozen=True):
    """Ignored if the model does not exist."""

    name: str
    incarnation: str


class ReplacementBegun(msgspec.Struct, array_like=True, tag="replacing", frozen=True):
    """Ends an earlier replacement that has not finished. Ignored if the model has another incarnation."""

    name: str
    incarnation: str


class ReplacementPrepared(msgspec.Struct, array_like=True, tag="prepared", frozen=True):
    """Ignored if the replacement was ended."""

    name: str
    incarnation: str  # the new one
    config: dict[str, Any]


class ModelReplaced(msgspec.Struct, array_like=True, tag="replaced", frozen=True):
    """Ignored if the model has another incarnation, or the replacement was ended."""

    name: str
    incarnation: str
    by: str
    keep: bool  # the replaced incarnation stays for an undo


class IncarnationDropped(msgspec.Struct, array_like=True, tag="dropped", frozen=True):
    """Ends an unfinished replacement, or gives up the incarnation that was kept for an undo."""

    name: str
    incarnation: str


class KnownModel(msgspec.Struct, array_like=True, frozen=True):
    name: str
    incarnation: str
    config: dict[str, Any]  # at the creation of the incarnation
    origin: str  # the first incarnation
    # The unfinished replacement with its configuration once it is prepared, and the incarnation kept for an undo.
    coming: tuple[str, dict[str, Any] | None] | None = None
    former: tuple[str, dict[str, Any], int] | None = None  # replaced at this time, in milliseconds


class KnownModels(msgspec.Struct, array_like=True, tag="known", frozen=True):
    """All models at this point of the catalog: a reader needs nothing from earlier entries."""

    models: list[KnownModel]  # in order of creation


# These have an entry of their own.
ControlEvent = ConfigureEvent | MarkEvent | BoundaryEvent | PrepareVersionEvent | ActivateEvent

Event = LearnEvent | ControlEvent


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One element of a model's stream."""

    version: int  # apply version
    origin: bytes  # id of the process that appended it, which recognizes its own entries by it
    sequence: int  # among the entries of that process
    event: Event


CatalogEvent = (
    ModelCreated
    | ModelDeleted
    | ReplacementBegun
    | ReplacementPrepared
    | ModelReplaced
    | IncarnationDropped
    | KnownModels
)


class CatalogEntry(msgspec.Struct, array_like=True, frozen=True):
    version: int
    event: CatalogEvent


_T = TypeVar("_T", Entry, CatalogEntry)

_encoder = msgspec.msgpack.Encoder()
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_catalog_decoder = msgspec.msgpack.Decoder(CatalogEntry)


def encode(entry: Entry | CatalogEntry) -> tuple[bytes, bytes]:
    payload = _encoder.encode(entry)
    return payload, b"%08x" % zlib.crc32(payload)


def checksum_of(fields: Sequence[bytes]) -> bytes:
    """Return the checksum that a stream element carries, unverified."""
    if len(fields) == 4 and fields[0] == b"e" and fields[2] == b"c":
        return fields[3]
    raise Corrupted("it lacks the two fields of an entry")


def check(fields: Sequence[bytes]) -> None:
    checksum = checksum_of(fields)
    if b"%08x" % zlib.crc32(fields[1]) != checksum:
        raise Corrupted("its checksum is wrong")


def decode_entry(fields: Sequence[bytes]) -> Entry:
    """Decode an element of a model's stream, given as a flat list of field names and values, and check all of it."""
    entry = _decode(fields, _entry_decoder)
    event = entry.event
    if type(event) is LearnEvent:
        n = n_empty = 0
        left = len(event.units)
        for unit in event.units:
            n_unit = unit.n
            if n_unit < 1 or not 1 <= unit.batch <= left:
                raise Corrupted("a request without instances, or a batch that extends past its entry")
            left -= 1
            n += n_unit
            if unit.emptied:
                n_empty += n_unit
        if not 1 <= n == event.n <= MAX_POSITIONS:
            raise Corrupted(f"its requests have {n} instances in total, and it states {event.n}")
        check_records(event.records, n - n_empty)
    elif (type(event) is ActivateEvent or type(event) is PrepareVersionEvent) and (
        _VERSION.fullmatch(event.version) is None or (event.version == LIVE) != (not event.digest)
    ):
        raise Corrupted("the name that it activates is no version")
    return entry


def decode_catalog_entry(fields: Sequence[bytes]) -> CatalogEntry:
    entry = _decode(fields, _catalog_decoder)
    if isinstance(entry.event, KnownModels):
        for one in entry.event.models:
            for incarnation in (one.incarnation, one.origin, *(one.coming or ())[:1], *(one.former or ())[:1]):
                try:
                    Offset.of_entry(incarnation.encode())
                except ValueError as error:
                    raise Corrupted(f"a model in it has an invalid incarnation: {error}") from None
    return entry


def _decode(fields: Sequence[bytes], decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    check(fields)
    payload = fields[1]
    try:
        entry = decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _refuse_other_version(payload)
        raise Corrupted(f"it cannot be read: {error}") from None
    if entry.version != APPLY_VERSION:
        raise UnknownApplyVersion(_newer(entry.version))
    return entry


def _refuse_other_version(payload: bytes) -> None:
    try:
        plain = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    if isinstance(plain, list) and plain and isinstance(plain[0], int) and plain[0] != APPLY_VERSION:
        raise UnknownApplyVersion(_newer(plain[0]))


def _newer(version: int) -> str:
    return f"it has apply version {version}, but this release applies {APPLY_VERSION}: run the release that wrote it"


def element_of(name: bytes, entry: Entry) -> Element:
    payload, checksum = encode(entry)
    return name, [b"e", payload, b"c", checksum]
