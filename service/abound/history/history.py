"""History: all entries that a log has had since its start, or since a base, as files in the artifact store.

    ...:history                                          JSON: base and segments in order, with a checksum: the manifest
    <model>/<incarnation>/history/<first id>-<random>.seg   a segment (``abound/history/segment.py``)
    <model>/<incarnation>/index/<id>/...                 states that replays begin with: the base, and that of a refit
    (``abound/state/state_files.py``)

**start**: the first entry of the log, or the base. A base is a state at an offset; retention has deleted the segments
before it, and nothing before it can be read. **end**: the last archived entry. The log continues from there, without a
gap and without an overlap (``abound/history/full_log.py``).

Files are written first, under new names. Then the manifest is swapped under the lease (``abound/history/archive.py``).
Files without a reference are deleted last. A reader that does not find a file reads the manifest again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import checksum_of, decoding, read_sealed
from abound.history import segment as segments
from abound.log.events import check
from abound.log.stream import Element
from abound.state.position import StoredPosition
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound_core.errors import ArtifactsUnavailable, Corrupted, UnknownApplyVersion, UnknownArtifact, UnknownOffset
from abound_core.types import START, Offset

FORMAT = 1

BEGIN_ANEW_HINT = "`abound history begin-anew` starts history at the oldest snapshot and gives up everything before it"
WAY_OUT = f"Restore it from a backup; or, while snapshots are good, {BEGIN_ANEW_HINT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryParams:
    """The bounds of history.

    Attributes
    ----------
    segment_bytes : int
        A segment is closed at about this many bytes of the log, before compression.
    keep_bytes : int
        Most bytes of compressed segments per model. Beyond it the oldest segments are deleted.
    keep_seconds : float
        Segments whose entries are all older than this are deleted; 0: no bound by age.
    slack : float, 0 to 0.5
        Fraction by which a bound may be exceeded before history is cut, because a new base needs a replay.
    """

    segment_bytes: int = 16 * 2**20
    keep_bytes: int = 16 * 2**30
    keep_seconds: float = 0.0
    slack: float = 0.05

    def __post_init__(self) -> None:
        if not 1024 <= self.segment_bytes <= 256 * 2**20:
            raise ValueError("segment_bytes must be from 1024 to 268435456")
        if not self.keep_bytes > 0:
            raise ValueError("keep_bytes must be more than 0")
        if not self.keep_seconds >= 0:
            raise ValueError("keep_seconds must be at least 0")
        if not 0 <= self.slack <= 0.5:
            raise ValueError("slack must be from 0 to 0.5")


class Segment(msgspec.Struct, frozen=True):
    """A file of history."""

    name: str  # of the artifact
    first: str  # id of its first entry
    last: str
    n_before: int  # entries of the log before it
    bytes_before: int
    n_entries: int
    log_bytes: int  # of its own entries
    size: int  # of the file
    checksum: str  # BLAKE2b-128 of the file


class Base(StoredPosition, frozen=True, kw_only=True):
    """A state that a replay begins with."""

    index: str  # id of its state file
    digest: str
    size: int  # of all its parts


class Extent(NamedTuple):
    """The range of the log that history covers."""

    first: Offset  # every entry after it can be read: START, or the base's offset
    last: Offset  # the last archived entry
    n_bytes: int
    n_segments: int


class HistoryManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    model: str
    incarnation: str
    artifacts: str  # id of the artifact store with the files
    base: Base | None  # None: history starts at the first entry of the log
    segments: list[Segment]
    # What a refit made of the events up to here. A replay begins with it; only the next refit reads what is before it.
    refitted: Base | None = None
    checksum: str = ""

    @property
    def start(self) -> Offset:
        """The first offset after which every entry can be read."""
        return START if self.base is None else Offset.parse(self.base.offset)

    def first_state(self, until: Offset | None = None) -> Base | None:
        """Return the state that a replay to ``until`` (default: the end) begins with; None for the empty one."""
        refitted = self.refitted
        if refitted is not None and (until is None or refitted.position.offset <= until):
            return refitted
        return self.base

    @property
    def end(self) -> Offset:
        """The last archived entry, or the start if no entry is archived."""
        return Offset.of_entry(self.segments[-1].last) if self.segments else self.start

    @property
    def n_entries(self) -> int:
        """The number of the log's entries from its very first one to the end of history."""
        if self.segments:
            return self.segments[-1].n_before + self.segments[-1].n_entries
        return 0 if self.base is None else self.base.n_entries

    @property
    def log_bytes(self) -> int:
        """The bytes that the entries counted by ``n_entries`` took in the log."""
        if self.segments:
            return self.segments[-1].bytes_before + self.segments[-1].log_bytes
        return 0 if self.base is None else self.base.log_bytes

    @property
    def size(self) -> int:
        states = [one.size for one in (self.base, self.refitted) if one is not None]
        return sum(segment.size for segment in self.segments) + sum(states)

    @property
    def extent(self) -> Extent:
        return Extent(self.start, self.end, self.size, len(self.segments))


def history_key(keys: ModelKeys) -> bytes:
    return keys.key("history")


def parse(packed: bytes, keys: ModelKeys) -> HistoryManifest:
    """Raise Corrupted unless the manifest belongs to this model, matches its checksum and has no gap."""
    what = f"the manifest of the history of {keys.name}"
    try:
        contents = read_sealed(HistoryManifest, packed, what, format=FORMAT)
    except UnknownApplyVersion as error:
        raise Corrupted(str(error)) from None
    with decoding(what):
        marks = [contents.start[:2]]
        for segment in contents.segments:
            marks += [Offset.of_entry(segment.first)[:2], Offset.of_entry(segment.last)[:2]]
    if (contents.model, contents.incarnation) != (keys.name, keys.incarnation):
        raise Corrupted(f"{what} belongs to {contents.model} {contents.incarnation}")
    base = contents.base
    n, n_bytes = (base.n_entries, base.log_bytes) if base else (0, 0)
    for segment in contents.segments:
        if (segment.n_before, segment.bytes_before) != (n, n_bytes):
            raise Corrupted(f"{what} has a gap before {segment.first}")
        n, n_bytes = n + segment.n_entries, n_bytes + segment.log_bytes
    if marks != sorted(marks):
        raise Corrupted(f"{what} is out of order")
    return contents


class History:
    """Reads the history of one model. Without an artifact store there is none."""

    def __init__(self, store: Store, artifacts: ArtifactStore | None, keys: ModelKeys) -> None:
        self._store = store
        self._artifacts = artifacts
        self.keys = keys

    async def manifest(self) -> HistoryManifest | None:
        """Return the manifest; None if there is no history."""
        with store_errors():
            packed = await self._store.client.get(history_key(self.keys))
        try:
            return None if packed is None else parse(packed, self.keys)
        except Corrupted as error:
            raise Corrupted(f"{error}. {WAY_OUT}") from error

    async def extent(self) -> Extent | None:
        contents = await self.manifest()
        return None if contents is None else contents.extent

    async def read(self, after: Offset, until: Offset | None = None, most: int = 64) -> AsyncGenerator[list[Element]]:
        """Yield the entries after ``after``, up to and including ``until`` (default: all), up to ``most`` at a time.

        Raises UnknownOffset, with the first possible offset, if ``after`` is before the start of history; Corrupted
        names the segment that is missing or damaged.
        """

        def choose(contents: HistoryManifest) -> Segment | None:
            if after[:2] < contents.start[:2]:
                raise UnknownOffset(
                    f"the history of {self.keys.name} begins at {contents.start}; earlier events are deleted",
                    contents.start,
                )
            ahead = next((one for one in contents.segments if Offset.of_entry(one.last)[:2] > after[:2]), None)
            is_past = ahead is not None and until is not None and Offset.of_entry(ahead.first)[:2] > until[:2]
            return None if is_past else ahead

        while elements := await self._read_segment(choose):
            for begin in range(0, len(elements), most):
                wanted = [
                    element
                    for element in elements[begin : begin + most]
                    if after[:2] < (at := Offset.of_entry(element[0])[:2]) and (until is None or at <= until[:2])
                ]
                if wanted:
                    yield wanted
            after = Offset.of_entry(elements[-1][0])

    async def read_newest(self, before: Offset) -> list[Element]:
        """Return the entries before ``before`` in the newest segment with any, newest first."""
        elements = await self._read_segment(
            lambda contents: next((one for one in contents.segments[::-1] if Offset.of_entry(one.first) < before), None)
        )
        return elements[: bisect_left(elements, before, key=lambda one: Offset.of_entry(one[0]))][::-1]

    async def _read_segment(self, choose: Callable[[HistoryManifest], Segment | None]) -> list[Element]:
        missing = None
        while True:
            contents = await self.manifest()
            segment = None if contents is None else choose(contents)
            if segment is None:
                return []
            if segment.name == missing:
                raise Corrupted(f"the segment {missing} of the history of {self.keys.name} is missing. {WAY_OUT}")
            try:
                return await self.elements(segment)
            except UnknownArtifact:
                missing = segment.name  # unless retention has just removed it from the manifest

    async def elements(self, segment: Segment) -> list[Element]:
        """Return all entries of a segment.

        Raises UnknownArtifact if its file is missing, Corrupted if it is damaged.
        """
        if self._artifacts is None:
            raise ArtifactsUnavailable(
                f"the history of {self.keys.name} is needed and no artifact store is set. Set ABOUND_ARTIFACTS_URL"
            )
        packed = await self._artifacts.get(segment.name)
        try:
            elements = await asyncio.to_thread(_checked, packed, segment)
        except Corrupted as error:
            path = self._artifacts.path(segment.name) or segment.name
            raise Corrupted(
                f"the segment {path} of the history of {self.keys.name} is damaged: {error}. {WAY_OUT}"
            ) from None
        return elements


def _checked(packed: bytes, segment: Segment) -> list[Element]:
    if len(packed) != segment.size or checksum_of(packed) != segment.checksum:
        raise Corrupted("its size or checksum is wrong")
    elements = segments.decode_segment(packed)
    ids = [name.decode() for name, _ in elements]
    if not ids or len(ids) != segment.n_entries or (ids[0], ids[-1]) != (segment.first, segment.last):
        raise Corrupted("it does not have the entries that the manifest lists")
    for name, fields in elements:
        try:
            check(fields)
        except Corrupted as error:
            raise Corrupted(f"the entry {name.decode()} in it cannot be applied: {error}") from None
    return elements
