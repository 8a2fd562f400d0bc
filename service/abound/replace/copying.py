"""Writing a new incarnation of a model: its history, states, versions, stored predictions, and its log.

History holds everything up to the state that the incarnation begins with. Its log begins with the entry of that state,
and continues with the tail of the old log. Segments that stay as they are become links, or copies that an object store
makes itself; the others are written again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from abound.history import full_log
from abound.history.archive import ArchiveContext, make_base, swap_manifest, write_segment
from abound.history.history import FORMAT, Base, History, HistoryManifest, Segment
from abound.history.replay import cut_entry
from abound.log import stream
from abound.log.catalog import CatalogModel
from abound.log.events import APPLY_VERSION, ActivateEvent, BoundaryEvent, Entry, LearnEvent, element_of
from abound.log.stream import Element, Trim, entry_size
from abound.replace.context import ReplaceContext
from abound.replica import predictions
from abound.state import snapshots, state_files
from abound.state.position import Position
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import Lease, acquire
from abound.versions import versions as versions
from abound.versions.activation import read_active
from abound.versions.card import Card
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, UnknownApplyVersion, UnknownArtifact, UnknownVersion
from abound_core.instances.record import record_ends
from abound_core.model.active_version import LIVE
from abound_core.model.entry_application import Unit
from abound_core.types import START, Offset

Gone = list[bool]  # for each request of an entry, whether it is left out


@dataclass(kw_only=True)
class Past:
    """What a new incarnation is made of.

    Attributes
    ----------
    model : ReplicatedModel
        The state that it begins with, and the position of that state in its log.
    source : CatalogModel or None
        The incarnation with the history up to that state; None: there is none, and the state is its base.
    tail_after : Offset
        Entries of the replaced model after this one follow on the state.
    is_refitted : bool
        The state is more than a replay of history: a refit made it.
    gone : dict of list of bool by entry id
        The requests that are left out.
    gone_keys : set of str
        Idempotency keys of these requests. Repeats of them in the tail are left out too.
    gone_vectors : set of bytes
        Fingerprints of the vectors of these requests: stored predictions with one are not copied.
    keeps_version : callable
        Whether a version is copied, given its card.
    keep : bool
        The replaced incarnation is kept for an undo.
    refuses : callable
        Raises an error if an event of the tail must not follow on the state.
    versions_dropped : list of str
        Ids of the versions that were not copied, once they are.
    """

    model: ReplicatedModel | None
    source: CatalogModel | None
    tail_after: Offset
    is_refitted: bool = False
    gone: dict[bytes, Gone] = field(default_factory=dict)
    gone_keys: set[str] = field(default_factory=set)
    gone_vectors: set[bytes] = field(default_factory=set)
    keeps_version: Callable[[Card], bool] = lambda card: True
    keep: bool = True
    refuses: Callable[[Entry], None] = lambda entry: None
    versions_dropped: list[str] = field(default_factory=list)

    @property
    def first_gone(self) -> Offset | None:
        return min((Offset.of_entry(name) for name in self.gone), default=None)

    def copied(self, element: Element) -> Element:
        """Return an entry of the source without the requests that are left out."""
        gone = self.gone.get(element[0])
        return element if gone is None else without(element, gone)

    def copied_tail(self, element: Element) -> Element:
        entry = full_log.decode_element(element)
        self.refuses(entry)
        event = entry.event
        if isinstance(event, LearnEvent) and self.gone_keys:
            gone = [unit.key in self.gone_keys for unit in event.units]
            return without(element, gone) if any(gone) else element
        return element


def without(element: Element, gone: Gone) -> Element:
    """Return a log entry without some of its requests. Their positions stay, so no offset changes."""
    entry = full_log.decode_element(element)
    event = entry.event
    if not isinstance(event, LearnEvent):
        raise AssertionError("only requests are left out")
    ends = record_ends(event.records, event.n_records).tolist()
    kept: list[Unit] = []
    records: list[bytes] = []
    place = 0
    for unit, is_gone in zip(event.units, gone, strict=True):
        n = 0 if unit.emptied else unit.n
        if is_gone or unit.emptied:
            kept.append(Unit(unit.n, batch=unit.batch, emptied=True))
        else:
            kept.append(unit)
            records.append(event.records[ends[place] : ends[place + n]])
        place += n
    return element_of(element[0], msgspec.structs.replace(entry, event=LearnEvent(b"".join(records), event.n, kept)))


class Copy:
    """Writes the incarnation ``new`` from a ``past`` of the model ``living``."""

    def __init__(self, context: ReplaceContext, living: CatalogModel, new: ModelKeys, past: Past) -> None:
        if past.model is None:
            raise AssertionError("a past has a state")
        # A replay from the start of history begins with the configuration that the source began with.
        self.config: ModelConfig = past.model.live.config if past.source is None else past.source.config
        self._was_live = past.model.live.serving.is_live
        self._context = context
        self._store = context.store
        self._artifacts = context.artifacts
        self._living = living
        self._new = new
        self._past = past
        self._copied = past.tail_after  # of the replaced model's log
        self.n_entries = 0  # that the new log must have
        self._sent = START
        self._ends: Offset | None = None  # of the new log, if it is known
        self._predictions = b"-"
        self._versions: set[str] = set()

    async def write(self) -> None:
        """Write everything but the tail of the log. Nothing that follows needs the memory of the state."""
        model = self._past.model
        if model is None:
            raise AssertionError("it is written once")
        begun = ReplicatedModel(self._new, self.config)
        begun.restore(model.live, model.position)
        async with acquire(self._store, self._new) as lease:
            await self._write_history(begun, lease)
            if self._past.source is not None and not self._past.is_refitted:  # else history has the state itself
                await snapshots.write(self._store, begun, self._context.snapshots, lease, self._context.checkpoint)
        self._past.model = None
        await self._copy_versions()
        await self._copy_predictions()

    async def copy_tail(self) -> None:
        """Copy the entries that were appended to the replaced model's log since the last call."""
        # Up to where it ends now: it may grow as fast as it is read.
        until = (await stream.tail(self._store, self._living.keys.log)).last
        reading = full_log.read_entries(
            self._store, self._artifacts, self._living.keys, self._copied, until, params=self._context.log
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                await self._append([self._past.copied_tail(element) for element in elements])
                self._copied = Offset.of_entry(elements[-1][0])

    async def finish(self, at: Offset) -> None:
        """Copy what the closed log has left, up to its last entry at ``at``. May be repeated."""
        await self._copy_versions()
        await self._copy_predictions(is_last=True)
        # A replacement does not change which version is active. The state may be of a time when it was another one.
        active = await read_active(self._store, self._living.keys)
        is_gone = active.version not in (LIVE, *self._versions)
        last: ActivateEvent | BoundaryEvent = BoundaryEvent(self._new.incarnation)
        if is_gone:
            last = ActivateEvent(
                self._new.incarnation,
                LIVE,
                "",
                "the version was not copied: it is damaged, or was fitted on events that are forgotten",
            )
        elif active.version != LIVE or not self._was_live:
            last = ActivateEvent(self._new.incarnation, active.version, active.digest, "active when it was replaced")
        reading = full_log.read_entries(
            self._store, self._artifacts, self._living.keys, self._copied, params=self._context.log
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                copied = [self._past.copied_tail(one) for one in elements if Offset.of_entry(one[0])[:2] < at[:2]]
                await self._append(copied)
        await self._append([element_of(at.entry.encode(), Entry(APPLY_VERSION, b"", 0, last))])
        self._copied = at
        await self._copy_records(at if is_gone else None)

    async def store_bytes(self) -> int:
        """Return about how many bytes the replaced incarnation has in the store."""
        keys = self._living.keys
        manifests = await snapshots.read_manifests(self._store, keys)
        with store_errors():
            log_bytes = await self._store.client.memory_usage(keys.log, samples=100)
        return int(log_bytes or 0) + sum(manifest.size for manifest in manifests)

    # history

    async def _write_history(self, begun: ReplicatedModel, lease: Lease) -> None:
        context, past, source = self._context, self._past, self._past.source
        to = ArchiveContext(
            self._store,
            self._artifacts,
            CatalogModel(self._new, self.config),
            lease,
            context.history,
            context.log,
            context.checkpoint,
        )
        empty = HistoryManifest(
            format=FORMAT,
            model=self._new.name,
            incarnation=self._new.incarnation,
            artifacts=self._artifacts.id,
            base=None,
            segments=[],
        )
        if source is None:
            boundary = Entry(APPLY_VERSION, b"", 0, BoundaryEvent(""))
            last, before, size = element_of(past.tail_after.entry.encode(), boundary), past.tail_after.before, 0
            # It counts one entry for what is not in history, so that the log is never taken for a whole one.
            begun.position = Position(past.tail_after, last[1][3], 2, entry_size(last[1]))
            written = msgspec.structs.replace(empty, base=await make_base(to, begun))
        else:
            written, last, before = await self._copy_history(to, empty, source, begun.offset)
            begun.position = Position(begun.offset, last[1][3], written.n_entries, written.log_bytes)
            size = written.log_bytes - entry_size(last[1])
            if past.is_refitted:
                written = msgspec.structs.replace(written, refitted=await make_base(to, begun))
        n_before = begun.position.n_entries - 1
        await swap_manifest(to, written, Trim(before, n_before, size) if n_before else None)
        await self._append([last])

    async def _copy_history(
        self, to: ArchiveContext, written: HistoryManifest, source: CatalogModel, until: Offset
    ) -> tuple[HistoryManifest, Element, Offset]:
        """Copy history and log up to ``until``; return the manifest, the last entry, and the offset before it."""
        past, first_gone = self._past, self._past.first_gone
        history = History(self._store, self._artifacts, source.keys)
        contents = await history.manifest()
        last: Element | None = None
        after = START
        if contents is not None:
            after = contents.start
            if contents.base is not None:
                written = msgspec.structs.replace(written, base=await self._copy_state(source, contents.base))
            refitted = contents.refitted
            if (
                refitted is not None
                and not past.is_refitted
                and (at := refitted.position.offset) <= until
                and (first_gone is None or at[:2] < first_gone[:2])
            ):
                written = msgspec.structs.replace(written, refitted=await self._copy_state(source, refitted))
            for segment in contents.segments:
                await to.between()
                ends = Offset.of_entry(segment.last)
                if ends[:2] >= until[:2] or (first_gone is not None and ends[:2] >= first_gone[:2]):
                    break
                written = _with(written, await self._link(segment, written))
                after = ends
        before = after
        elements: list[Element] = []
        size = 0
        reading = full_log.read_entries(self._store, self._artifacts, source.keys, after, until, params=to.log_params)
        async with contextlib.aclosing(reading):
            async for read in reading:
                for element in read:
                    if last is not None:
                        before = Offset.of_entry(last[0])
                    last = past.copied(cut_entry(element, until))
                    elements.append(last)
                    size += entry_size(last[1])
                    if size >= to.params.segment_bytes:
                        written = await _add(to, written, elements, size)
                        elements, size = [], 0
                await to.between()
        if elements:
            written = await _add(to, written, elements, size)
        if last is None:
            raise Corrupted(f"the log of {self._new.name} has no entry at {until}")
        return written, last, before

    async def _link(self, segment: Segment, written: HistoryManifest) -> Segment:
        name = f"{self._new.folder}/history/{segment.name.rpartition('/')[2]}"
        await self._artifacts.link(segment.name, name)
        return msgspec.structs.replace(segment, name=name, n_before=written.n_entries, bytes_before=written.log_bytes)

    async def _copy_state(self, source: CatalogModel, base: Base) -> Base:
        await state_files.copy(self._artifacts, source.keys, self._new, base.index)
        return base

    # log

    async def _append(self, elements: list[Element]) -> None:
        """Append entries under their own ids, without those that the log has already."""
        if not elements:
            return
        self.n_entries += sum(Offset.of_entry(name)[:2] > self._sent[:2] for name, _ in elements)
        self._sent = max(self._sent, Offset.of_entry(elements[-1][0]))
        if self._ends is None:  # an earlier attempt may have been interrupted
            self._ends = (await stream.tail(self._store, self._new.log)).last
        ends, self._ends = self._ends, None
        with store_errors():
            async with self._store.client.pipeline(transaction=False) as pipe:
                for name, fields in elements:
                    if Offset.of_entry(name)[:2] > ends[:2]:
                        pipe.execute_command("XADD", self._new.log, name, *fields)
                await pipe.execute()
        self._ends = max(ends, Offset.of_entry(elements[-1][0]))

    # versions and records

    async def _copy_versions(self) -> None:
        for name in await versions.ids(self._artifacts, self._living.keys):
            if name not in self._versions:
                with contextlib.suppress(Corrupted, UnknownApplyVersion, UnknownArtifact, UnknownVersion):
                    card = await versions.card_of(self._artifacts, self._living.keys, name)
                    if self._past.keeps_version(card):
                        await versions.copy(self._artifacts, self._living.keys, self._new, card)
                        self._versions.add(name)
                    elif name not in self._past.versions_dropped:
                        self._past.versions_dropped.append(name)

    async def _copy_predictions(self, is_last: bool = False) -> None:
        self._predictions = await predictions.copy(
            self._store, self._living.keys, self._new, self._predictions, self._past.gone_vectors, is_last=is_last
        )

    async def _copy_records(self, deactivated: Offset | None) -> None:
        """Copy which version is active and which are challengers. Their contest starts again without standings."""
        client, old, new = self._store.client, self._living.keys, self._new
        with store_errors():
            await client.copy(old.key("active"), new.key("active"), replace=True)
            await client.copy(old.key("challengers"), new.key("challengers"), replace=True)
            if deactivated is not None:
                fields = {"version": LIVE, "digest": "", "former": LIVE, "at": deactivated.entry}
                await client.hset(new.key("active"), mapping=fields)
            gone = [name for name in await client.hkeys(new.key("challengers")) if name.decode() not in self._versions]
            if gone:
                await client.hdel(new.key("challengers"), *gone)


def _with(written: HistoryManifest, segment: Segment) -> HistoryManifest:
    return msgspec.structs.replace(written, segments=[*written.segments, segment])


async def _add(to: ArchiveContext, written: HistoryManifest, elements: list[Element], size: int) -> HistoryManifest:
    return _with(written, await write_segment(to, elements, written.n_entries, written.log_bytes, size))
