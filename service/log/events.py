"""What stands in the log: entries, their events, and the bytes they travel as.

    Entry{version, origin, sequence, event}      one element of a model's stream: one append group
        Learn(records, n, units)                 instances with their labels, of one or more requests
        Configure(changes)                       fields of the configuration that change here
        Mark(token)                              a place at which every replica publishes its digest
        Prepare(adoption, index, after, digest)  every replica gets an index ready that may be adopted
        Adopt(adoption, index, after, digest)    the state from here on is that index + what came after ``after``
        PrepareVersion(activation, version, digest)   every replica loads a version that may be activated
        Activate(activation, version, digest)    from here on this version answers
        Weigh(version, weights)                  how the index and this version are blended from here on
    CatalogEntry{version, event}                 one element of the catalog stream
        Created(name, config)  Deleted(name, incarnation)
        Known(models)                            all models that there are here: what is before it is not needed

A stream element has two fields: ``e``, the msgpack payload, and ``c``, its CRC-32 in hex. Reading checks all of it,
since what is in the log will be applied: checksum, version, types, counts and the shape of every record. An entry
that fails is :class:`Damaged`; one that a newer release wrote is :class:`UnknownApplyVersion`. No such entry is
ever skipped.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from abound.core.errors import Damaged, UnknownApplyVersion
from abound.core.instances.record import check_records
from abound.core.model.active_version import BLEND, LIVE
from abound.core.model.apply import Unit
from abound.core.types import Offset
from abound.service.log.stream import Element

APPLY_VERSION = 2
"""The meaning of the log that this release applies. Any change of what an event does to a model raises it."""

_VERSION = re.compile(r"[0-9a-z]{1,64}")

MOST_POSITIONS = 2**26
"""Positions that an entry can have at most: the store takes no element over 512 MiB, a record has 8 bytes or more."""


class Learn(msgspec.Struct, array_like=True, tag="learn", frozen=True, gc=False):
    """Instances with their labels.

    Attributes
    ----------
    records : bytes
        Records (vector + labels part), one after the other: those of all units that are not emptied.
    n : int
        Positions of the entry.
    units : list of Unit
        The requests, in the order of their records; their ``n`` sum to ``n``.
    """

    records: bytes
    n: int
    units: list[Unit]

    @property
    def n_records(self) -> int:
        """Records that it holds: its positions without the emptied ones."""
        return sum([unit.n for unit in self.units if not unit.emptied])


class Configure(msgspec.Struct, array_like=True, tag="configure", frozen=True):
    """Fields of the model's configuration with the values that they have from here on."""

    changes: dict[str, Any]


class Mark(msgspec.Struct, array_like=True, tag="mark", frozen=True):
    """Changes nothing; every replica publishes its digest at this offset under ``token``."""

    token: str


class Prepare(msgspec.Struct, array_like=True, tag="prepare", frozen=True):
    """Changes nothing; says that an index is about to be adopted, so that replicas load it and replay up to here.

    Attributes
    ----------
    adoption : str
        Id of the attempt.
    index : str
        Id of the index in the artifact store.
    after : str
        Offset that the index stands for: what came after it is replayed on top.
    digest : str
        Of the index.
    reason : str
    """

    adoption: str
    index: str
    after: str
    digest: str
    reason: str = ""


class Adopt(msgspec.Struct, array_like=True, tag="adopt", frozen=True):
    """The state at this offset is the index with everything after ``after`` replayed on top.

    It says all that is needed, so whoever replays the log needs no ``Prepare``. It is passed over when another index
    was adopted after ``after``: of two at one time the first one stays.

    Attributes
    ----------
    adoption, index, after, digest, reason : str
        As in ``Prepare``.
    padding : bytes
        As much as the store puts into one node of a stream: so the entry begins a new one, and the nodes before it
        can be freed with all their bytes.
    """

    adoption: str
    index: str
    after: str
    digest: str
    reason: str = ""
    padding: bytes = b""


class PrepareVersion(msgspec.Struct, array_like=True, tag="prepare_version", frozen=True):
    """Changes nothing; says that a version is about to be activated, so that replicas load it.

    Attributes
    ----------
    activation : str
        Id of the attempt.
    version, digest : str
        Id and digest of the version; ``live`` and nothing for the index.
    reason : str
    """

    activation: str
    version: str
    digest: str
    reason: str = ""


class Activate(msgspec.Struct, array_like=True, tag="activate", frozen=True):
    """From here on the version answers whoever names none. It says all that is needed, as ``PrepareVersion`` does.

    Of two with one ``activation`` the second is passed over.
    """

    activation: str
    version: str
    digest: str
    reason: str = ""


class Weigh(msgspec.Struct, array_like=True, tag="weigh", frozen=True):
    """Weights for blending the index with a version; passed over unless it is the active one.

    Attributes
    ----------
    version : str
    weights : (float, float)
        Of the index and of the version: finite, >= 0, not both 0.
    """

    version: str
    weights: tuple[float, float]


class Created(msgspec.Struct, array_like=True, tag="created", frozen=True):
    """A model comes to be, with the whole of its configuration. Nothing happens when the name is in use."""

    name: str
    config: dict[str, Any]


class Deleted(msgspec.Struct, array_like=True, tag="deleted", frozen=True):
    """The model of this name and incarnation is no more. Nothing happens when it already is not."""

    name: str
    incarnation: str


class Known(msgspec.Struct, array_like=True, tag="known", frozen=True):
    """The models that there are at this place of the catalog: whoever reads it needs nothing of what is before it.

    Attributes
    ----------
    models : list of (str, str, dict)
        Name, incarnation and configuration as it was created, in order of creation.
    """

    models: list[tuple[str, str, dict[str, Any]]]


Control = Configure | Mark | Prepare | Adopt | PrepareVersion | Activate | Weigh
"""Events of which an entry has one and no more."""

Event = Learn | Control


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One element of a model's stream.

    Attributes
    ----------
    version : int
        Apply version.
    origin : bytes
        Of the process that appended it, so that it knows its own entries again.
    sequence : int
        Counts the entries of that process.
    event : Event
    """

    version: int
    origin: bytes
    sequence: int
    event: Event


class CatalogEntry(msgspec.Struct, array_like=True, frozen=True):
    """One element of the catalog stream."""

    version: int
    event: Created | Deleted | Known


_T = TypeVar("_T", Entry, CatalogEntry)

_encoder = msgspec.msgpack.Encoder()
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_catalog_decoder = msgspec.msgpack.Decoder(CatalogEntry)


def encode(entry: Entry | CatalogEntry) -> tuple[bytes, bytes]:
    """The payload and its checksum, the values of the fields ``e`` and ``c``."""
    payload = _encoder.encode(entry)
    return payload, b"%08x" % zlib.crc32(payload)


def checksum_of(fields: Sequence[bytes]) -> bytes:
    """The checksum that a stream element carries (field ``c``), as it stands there; Damaged when it has none."""
    if len(fields) == 4 and fields[0] == b"e" and fields[2] == b"c":
        return fields[3]
    raise Damaged("it does not have the two fields of an entry")


def check(fields: Sequence[bytes]) -> None:
    """Damaged unless a stream element has its two fields and the payload is what was written. One pass over it."""
    checksum = checksum_of(fields)
    if b"%08x" % zlib.crc32(fields[1]) != checksum:
        raise Damaged("its checksum is wrong")


def decode_entry(fields: Sequence[bytes]) -> Entry:
    """An element of a model's stream, given as a flat list of field names and values.

    Raises
    ------
    Damaged
        A field is missing, the checksum or a type is wrong, or the records are not of their form and number.
    UnknownApplyVersion
        A newer release wrote it.
    """
    entry = _decode(fields, _entry_decoder)
    event = entry.event
    if type(event) is Learn:
        n = n_empty = 0
        left = len(event.units)
        for unit in event.units:
            n_unit = unit.n
            if n_unit < 1 or not 1 <= unit.batch <= left:
                raise Damaged("a request without instances, or a batch that goes on past its entry")
            left -= 1
            n += n_unit
            if unit.emptied:
                n_empty += n_unit
        if not 1 <= n == event.n <= MOST_POSITIONS:
            raise Damaged("its requests do not have as many instances as it says")
        check_records(event.records, n - n_empty)
    elif type(event) is Adopt or type(event) is Prepare:
        try:
            Offset.parse(event.after)
        except ValueError as error:
            raise Damaged(f"an index to adopt is {error}") from None
    elif type(event) is Activate or type(event) is PrepareVersion:
        if not _is_version(event.version) or (event.version == LIVE) != (not event.digest):
            raise Damaged("it activates what can be no version")
    elif type(event) is Weigh:
        live, batch = event.weights
        if not (_is_version(event.version) and 0 <= live < math.inf and 0 <= batch < math.inf and live + batch > 0):
            raise Damaged("its weights can be none")
    return entry


def _is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None and name != BLEND


def decode_catalog_entry(fields: Sequence[bytes]) -> CatalogEntry:
    """An element of the catalog stream; raises what ``decode_entry`` raises."""
    entry = _decode(fields, _catalog_decoder)
    if isinstance(entry.event, Known):
        for _, incarnation, _ in entry.event.models:
            try:
                Offset.of_entry(incarnation.encode())
            except ValueError as error:
                raise Damaged(f"a model that there is has no incarnation: {error}") from None
    return entry


def _decode(fields: Sequence[bytes], decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    check(fields)
    payload = fields[1]
    try:
        entry = decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _refuse_other_version(payload)
        raise Damaged(f"it cannot be read: {error}") from None
    if entry.version != APPLY_VERSION:
        raise UnknownApplyVersion(_newer(entry.version))
    return entry


def _refuse_other_version(payload: bytes) -> None:
    """UnknownApplyVersion when a payload that this release cannot read says that it is of another version."""
    try:
        plain = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    if isinstance(plain, list) and plain and isinstance(plain[0], int) and plain[0] != APPLY_VERSION:
        raise UnknownApplyVersion(_newer(plain[0]))


def _newer(version: int) -> str:
    return f"it is of apply version {version} and this release applies {APPLY_VERSION}: run the release that wrote it"


def adoption_after(element: Element) -> Offset | None:
    """The offset behind which an entry's adoption replays; None when it is no adoption. Damaged as ``decode_entry``."""
    # An entry of instances may be large; what it is stands in its first bytes.
    if b"adopt" not in element[1][1][:64]:
        return None
    event = decode_entry(element[1]).event
    return Offset.parse(event.after) if isinstance(event, Adopt) else None


def adopted(elements: list[Element]) -> set[str]:
    """The indexes that adoptions among entries need. Damaged."""
    for _, fields in elements:
        check(fields)  # an adoption that is damaged may look like none
    events = [decode_entry(one[1]).event for one in elements if adoption_after(one) is not None]
    return {event.index for event in events if isinstance(event, Adopt)}
