"""History: what the log has had since its beginning, or since a base, as files in the artifact store.

    ...:history                                          JSON: base and segments in order, sealed: the pointer
    <model>/<incarnation>/history/<first id>-<random>.seg   a segment (``service/history/segment.py``)
    <model>/<incarnation>/index/<id>/...                 the base: the state at which history begins
    (``service/snapshots/state_files.py``)

**beginning**: the first entry of the log, or the base: a state at an offset, behind which retention has taken the
segments away. Nothing before it can be had any more. **end**: the last entry that is archived; the log goes on from
there, without a gap and without an overlap (``service/history/past.py``).

Files are written first, under names that nobody has used; the pointer is swapped under the lease
(``service/history/archive.py``); files that are not pointed to any more go last. A reader that finds a file gone reads
the pointer again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from abound.core.errors import ArtifactsUnavailable, Damaged, UnknownArtifact, UnknownOffset
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.artifacts.checksums import checksum_of
from abound.service.history import segment as segments
from abound.service.log.events import check
from abound.service.log.stream import Element, LastFields
from abound.service.model.position import Position
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys

FORMAT = 1

MENDING = "`abound history begin-anew` starts history from the newest snapshots and gives up what was before them"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryParams:
    """How much history there is.

    Attributes
    ----------
    segment_bytes : int
        A segment is closed at about so much of the log, before compression, and behind an adoption.
    keep_bytes : int
        Of compressed segments, a model; the oldest go beyond it.
    keep_indexes_bytes : int
        Of indexes that adoptions in history need, a model; beyond it the oldest go, and history up to their adoptions
        with them. The newest stays.
    keep_seconds : float
        Segments whose entries are all older than this go; 0: no bound by age.
    slack : float, 0 to 0.5
        How far over a bound it may be, as a part of it, since making a new base takes a replay.
    """

    segment_bytes: int = 16 * 2**20
    keep_bytes: int = 16 * 2**30
    keep_indexes_bytes: int = 64 * 2**30
    keep_seconds: float = 0.0
    slack: float = 0.05

    def __post_init__(self) -> None:
        if not 1024 <= self.segment_bytes <= 256 * 2**20:
            raise ValueError("segment_bytes must be from 1024 to 268435456")
        for name in ("keep_bytes", "keep_indexes_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")
        if not self.keep_seconds >= 0:
            raise ValueError("keep_seconds must be at least 0")
        if not 0 <= self.slack <= 0.5:
            raise ValueError("slack must be from 0 to 0.5")


class Segment(msgspec.Struct, frozen=True):
    """A file of history.

    Attributes
    ----------
    name : str
        Of the artifact.
    first, last : str
        Ids of its first and last entry.
    n_before, bytes_before : int
        Entries of the log before it, and their size.
    n_entries, log_bytes : int
        Its own. Sizes are those with which entries were appended, whatever was forgotten in them since.
    size : int
        Of the file.
    checksum : str
        BLAKE2b-128 of the file.
    needs : str or None
        The least offset after which an adoption in it replays; None when it has none. No base may lie between the
        two: a replay that begins there could not carry the adoption out.
    """

    name: str
    first: str
    last: str
    n_before: int
    bytes_before: int
    n_entries: int
    log_bytes: int
    size: int
    checksum: str
    needs: str | None = None


class Base(msgspec.Struct, frozen=True):
    """The state at which history begins.

    Attributes
    ----------
    index : str
        Id of the index that it is.
    digest : str
        Of that.
    offset, entry_checksum, n_entries, log_bytes, adopted
        Its position, as in a snapshot's manifest.
    size : int
        Of its parts.
    """

    index: str
    digest: str
    offset: str
    entry_checksum: str
    n_entries: int
    log_bytes: int
    adopted: str
    size: int

    @property
    def position(self) -> Position:
        """Where in the log it is."""
        offset, adopted = Offset.parse(self.offset), Offset.parse(self.adopted)
        return Position(offset, self.entry_checksum.encode(), self.n_entries, self.log_bytes, adopted)


class Extent(NamedTuple):
    """From where to where history goes.

    Attributes
    ----------
    first : Offset
        Every entry after it can be had: START, or the base's offset.
    last : Offset
        The last entry in it.
    n_bytes, n_segments : int
    """

    first: Offset
    last: Offset
    n_bytes: int
    n_segments: int


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The pointer: all that there is of a model's history.

    Attributes
    ----------
    artifacts : str
        Id of the artifact store that has the files.
    base : Base or None
        None: from the beginning of the log.
    """

    format: int
    model: str
    incarnation: str
    artifacts: str
    base: Base | None
    segments: list[Segment]
    checksum: str = ""

    def sealed(self) -> Contents:
        """The same with the checksum of its fields."""
        plain = msgspec.json.encode(msgspec.structs.replace(self, checksum=""))
        return msgspec.structs.replace(self, checksum=checksum_of(plain))

    @property
    def beginning(self) -> Offset:
        """The first offset after which every entry can be had."""
        return START if self.base is None else Offset.parse(self.base.offset)

    @property
    def end(self) -> Offset:
        """The last entry that is archived; the beginning when none is."""
        return Offset.of_entry(self.segments[-1].last) if self.segments else self.beginning

    @property
    def n_entries(self) -> int:
        """Entries of the log up to the end, from the very first one."""
        if self.segments:
            return self.segments[-1].n_before + self.segments[-1].n_entries
        return 0 if self.base is None else self.base.n_entries

    @property
    def log_bytes(self) -> int:
        """The size of these."""
        if self.segments:
            return self.segments[-1].bytes_before + self.segments[-1].log_bytes
        return 0 if self.base is None else self.base.log_bytes

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(segment.size for segment in self.segments) + (self.base.size if self.base else 0)

    @property
    def extent(self) -> Extent:
        """From where to where it goes."""
        return Extent(self.beginning, self.end, self.size, len(self.segments))


_contents = msgspec.json.Decoder(Contents)


def history_key(keys: ModelKeys) -> bytes:
    """The key of the pointer."""
    return keys.of("history")


def folder(keys: ModelKeys, part: str = "") -> str:
    """The folder of a model's artifacts, or of a ``part`` of them: ``history``, ``base``, ..."""
    return f"{keys.name}/{keys.incarnation}" + (f"/{part}" if part else "")


def parse(packed: bytes, keys: ModelKeys) -> Contents:
    """The pointer from what stands in the store; Damaged unless it is one of this model, whole and without a gap."""
    try:
        contents = _contents.decode(packed)
        marks = [contents.beginning[:2]]
        if contents.base is not None:
            Offset.parse(contents.base.adopted)
        for segment in contents.segments:
            marks += [Offset.of_entry(segment.first)[:2], Offset.of_entry(segment.last)[:2]]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(f"the list of the history of {keys.name} cannot be read: {error}") from None
    if (contents.format, contents.model, contents.incarnation) != (FORMAT, keys.name, keys.incarnation):
        raise Damaged(
            f"the list of the history of {keys.name} is that of {contents.model} {contents.incarnation}, "
            f"format {contents.format}"
        )
    if contents.sealed() != contents:
        raise Damaged(f"the list of the history of {keys.name} is not what was written")
    base = contents.base
    n, n_bytes = (base.n_entries, base.log_bytes) if base else (0, 0)
    for segment in contents.segments:
        if (segment.n_before, segment.bytes_before) != (n, n_bytes):
            raise Damaged(f"the list of the history of {keys.name} has a gap before {segment.first}")
        n, n_bytes = n + segment.n_entries, n_bytes + segment.log_bytes
    if marks != sorted(marks):
        raise Damaged(f"the list of the history of {keys.name} is out of order")
    return contents


class History:
    """The history of one model, for reading.

    Parameters
    ----------
    artifacts : Artifacts or None
        None where there is no artifact store; then there is no history either.
    """

    def __init__(self, store: Store, artifacts: Artifacts | None, keys: ModelKeys) -> None:
        self._store = store
        self._artifacts = artifacts
        self.keys = keys

    async def contents(self) -> Contents | None:
        """The pointer, None when there is no history. Damaged, StoreUnavailable."""
        with reaching():
            packed = await self._store.client.get(history_key(self.keys))
        return None if packed is None else parse(packed, self.keys)

    async def extent(self) -> Extent | None:
        """From where to where it goes, None when there is no history. Damaged, StoreUnavailable."""
        contents = await self.contents()
        return None if contents is None else contents.extent

    async def read(self, after: Offset, until: Offset | None = None, most: int = 64) -> AsyncGenerator[list[Element]]:
        """The entries past ``after``, up to and with ``until`` (default: all there are), up to ``most`` at a time.

        Raises
        ------
        UnknownOffset
            ``after`` is before the beginning; names the first possible offset.
        Damaged
            A segment is missing or not what was written; names it.
        ArtifactsUnavailable, StoreUnavailable
        """
        missing = None
        while True:
            contents = await self.contents()
            if contents is None:
                return
            if after[:2] < contents.beginning[:2]:
                raise UnknownOffset(
                    f"the history of {self.keys.name} begins at {contents.beginning}; what was before is gone",
                    contents.beginning,
                )
            ahead = [one for one in contents.segments if Offset.of_entry(one.last)[:2] > after[:2]]
            if not ahead or (until is not None and Offset.of_entry(ahead[0].first)[:2] > until[:2]):
                return
            if ahead[0].name == missing:
                raise Damaged(f"the segment {missing} of the history of {self.keys.name} is missing. {self._mending()}")
            try:
                elements = await self.elements(ahead[0])
            except UnknownArtifact:
                missing = ahead[0].name  # unless retention has just taken it out of the list
                continue
            name, fields = elements[-1]
            elements[-1] = name, LastFields(fields, ahead[0].bytes_before + ahead[0].log_bytes)
            for begin in range(0, len(elements), most):
                wanted = [
                    element
                    for element in elements[begin : begin + most]
                    if after[:2] < (at := Offset.of_entry(element[0])[:2]) and (until is None or at <= until[:2])
                ]
                if wanted:
                    yield wanted
            after = Offset.of_entry(ahead[0].last)

    async def elements(self, segment: Segment) -> list[Element]:
        """All entries of a segment.

        Raises
        ------
        UnknownArtifact
            Its file is not there.
        Damaged
            Its file is not what was written; names it.
        ArtifactsUnavailable
        """
        if self._artifacts is None:
            raise ArtifactsUnavailable(
                f"the history of {self.keys.name} is needed and no artifact store is set. Set ABOUND_ARTIFACTS_URL"
            )
        packed = await self._artifacts.get(segment.name)
        try:
            elements = await asyncio.to_thread(_checked, packed, segment)
        except Damaged as error:
            path = self._artifacts.path(segment.name) or segment.name
            raise Damaged(
                f"the segment {path} of the history of {self.keys.name} is damaged: {error}. {self._mending()}"
            ) from None
        return elements

    def _mending(self) -> str:
        return f"Bring it back from a copy; or, while snapshots are good, {MENDING}"


def _checked(packed: bytes, segment: Segment) -> list[Element]:
    if len(packed) != segment.size or checksum_of(packed) != segment.checksum:
        raise Damaged("it is not what was written")
    elements = segments.decode(packed)
    ids = [name.decode() for name, _ in elements]
    if not ids or len(ids) != segment.n_entries or (ids[0], ids[-1]) != (segment.first, segment.last):
        raise Damaged("it does not have the entries that it should")
    for name, fields in elements:
        try:
            check(fields)
        except Damaged as error:
            raise Damaged(f"the entry {name.decode()} in it cannot be applied: {error}") from None
    return elements
