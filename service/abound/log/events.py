"""The contents of the log: entries, their events, and their encoding.

    Entry{version, origin, sequence, event}            one element of a model's stream: one append group
        LearnEvent(records, n, units)                  labelled instances of one or more requests
        ConfigureEvent(changes)                        configuration fields that change here
        MarkEvent(token)                               an offset at which every replica publishes its digest
        PrepareEvent(adoption, index, after, digest)   every replica prepares a state file that may be adopted
        AdoptEvent(adoption, index, after, digest)     from here on: that state file + all that follows ``after``
        PrepareVersionEvent(activation, version, digest)   every replica loads a version that may be activated
        ActivateEvent(activation, version, digest)     from here on this version answers
    CatalogEntry{version, event}                       one element of the catalog stream
        ModelCreated(name, config)  ModelDeleted(name, incarnation)
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

APPLY_VERSION = 4
"""Version of the log's meaning that this release applies. Any change of how an event changes a model increments it."""

_VERSION = re.compile(r"[0-9a-z]{1,64}")

MAX_POSITIONS = 2**26  # of an entry: the store accepts no element over 512 MiB, and a record has at least 8 bytes


class LearnEvent(msgspec.Struct, array_like=True, tag="learn", frozen=True, gc=False):
    records: bytes  # of all units that are not redacted, concatenated: vector + labels part
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


class PrepareEvent(msgspec.Struct, array_like=True, tag="prepare", frozen=True):
    """Changes nothing; announces an adoption, so that replicas load the state file and replay up to here."""

    adoption: str  # id of the attempt
    index: str  # id of the state file
    after: str  # offset of the state file: everything after it is replayed on top
    digest: str  # of the state file
    reason: str = ""


class AdoptEvent(msgspec.Struct, array_like=True, tag="adopt", frozen=True):
    """Replaces the model state by a state file with everything after ``after`` replayed on top.

    The event is complete: a replay of the log needs no ``PrepareEvent``. It is ignored if another state file
    was adopted after ``after``: of two concurrent adoptions the first one stays.
    """

    adoption: str
    index: str
    after: str
    digest: str
    reason: str = ""
    # As many bytes as the store puts into one node of a stream. The entry then starts a new node, and trimming can
    # free the nodes before it completely.
    padding: bytes = b""


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


class KnownModels(msgspec.Struct, array_like=True, tag="known", frozen=True):
    """All models at this point of the catalog: a reader needs nothing from earlier entries."""

    # Name, incarnation and configuration at creation, in order of creation.
    models: list[tuple[str, str, dict[str, Any]]]


# These have an entry of their own.
ControlEvent = ConfigureEvent | MarkEvent | PrepareEvent | AdoptEvent | PrepareVersionEvent | ActivateEvent

Event = LearnEvent | ControlEvent


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One element of a model's stream."""

    version: int  # apply version
    origin: bytes  # id of the process that appended it, which recognizes its own entries by it
    sequence: int  # among the entries of that process
    event: Event


class CatalogEntry(msgspec.Struct, array_like=True, frozen=True):
    version: int
    event: ModelCreated | ModelDeleted | KnownModels


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
    elif type(event) is AdoptEvent or type(event) is PrepareEvent:
        try:
            Offset.parse(event.after)
        except ValueError as error:
            raise Corrupted(f"its offset for an adoption is {error}") from None
    elif (type(event) is ActivateEvent or type(event) is PrepareVersionEvent) and (
        _VERSION.fullmatch(event.version) is None or (event.version == LIVE) != (not event.digest)
    ):
        raise Corrupted("the name that it activates is no version")
    return entry


def decode_catalog_entry(fields: Sequence[bytes]) -> CatalogEntry:
    entry = _decode(fields, _catalog_decoder)
    if isinstance(entry.event, KnownModels):
        for _, incarnation, _ in entry.event.models:
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


def adoption_after(element: Element) -> Offset | None:
    """Return the offset after which an adoption replays the log, or None for any other entry."""
    # An entry with instances may be large; its tag is within its first bytes.
    if b"adopt" not in element[1][1][:64]:
        return None
    event = decode_entry(element[1]).event
    return Offset.parse(event.after) if isinstance(event, AdoptEvent) else None


def adopted_state_files(elements: list[Element]) -> set[str]:
    """Return the ids of the state files that the adoptions among the entries need."""
    for _, fields in elements:
        check(fields)  # a damaged adoption may not look like one
    events = [decode_entry(one[1]).event for one in elements if adoption_after(one) is not None]
    return {event.index for event in events if isinstance(event, AdoptEvent)}
