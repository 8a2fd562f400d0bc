"""Archiving moves the oldest entries of a log into segment files in the artifact store, then trims them off the log.

If the process dies, the next one finds the log unchanged and at most a file that nothing points to. Garbage collection
deletes the old file of an extended segment later, because a store that loses its last second points to that file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import checksum_of, seal
from abound.history import history as history_manifest
from abound.history.history import Base, HistoryManifest, HistoryParams, Segment
from abound.history.segment import encode_segment
from abound.log import stream
from abound.log.catalog import CatalogModel
from abound.log.events import check
from abound.log.stream import Element, LogParams, Trim, entry_size, trimmed_key
from abound.state import snapshots, state_files
from abound.state.replicated_model import ReplicatedModel
from abound.state.state_image import StateManifest
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import Command, Lease
from abound.tasks import do_nothing
from abound_core.errors import Corrupted, NotReady, UnknownArtifact
from abound_core.limits import Limits
from abound_core.types import START, Offset

log = structlog.get_logger(__name__)

MIN_GOOD_SNAPSHOTS = 2  # before anything is trimmed off a log


class ArchiveContext(NamedTuple):
    """What every change of a model's history needs."""

    store: Store
    artifacts: ArtifactStore
    living: CatalogModel
    lease: Lease
    params: HistoryParams = HistoryParams()
    log_params: LogParams = LogParams()
    between: Callable[[], Awaitable[None]] = do_nothing  # awaited before each step; an exception from it ends the work

    @property
    def keys(self) -> ModelKeys:
        return self.living.keys


async def archive(to: ArchiveContext) -> HistoryManifest | None:
    """Move entries that no snapshot needs from the log to history; return the history.

    Does nothing until there are two good snapshots.

    Raises LeaseLost if another process has taken over the model. Corrupted also means that the log does not continue
    history.
    """
    good = await good_snapshots(to.store, to.keys)
    if len(good) < MIN_GOOD_SNAPSHOTS or good[-1].position.offset == START:
        return await history_manifest.History(to.store, to.artifacts, to.keys).manifest()
    # The entry of the snapshot itself stays in the log, because a start identifies the log by that entry.
    until = good[-1].position.offset
    contents = await _current_manifest(to, good)
    # A small last segment is read again and extended, which avoids many small ones.
    elements, size, n_old, old = await _extendable_segment(to, contents)
    begun = msgspec.structs.replace(contents, segments=contents.segments[:-1]) if old is not None else contents
    async with contextlib.aclosing(_read(to, contents.end, until)) as reading:
        async for read in reading:
            for element in read:
                if Offset.of_entry(element[0])[:2] >= until[:2]:
                    break
                _check(to, element)
                elements.append(element)
                size += entry_size(element[1])
                if size >= to.params.segment_bytes:
                    contents = begun = await _add(to, begun, elements, size)
                    elements, size, n_old = [], 0, 0
    if len(elements) > n_old:
        contents = await _add(to, begun, elements, size)
    return contents


async def _read(to: ArchiveContext, after: Offset, until: Offset | None = None) -> AsyncGenerator[list[Element]]:
    """Yield the entries of the log after ``after``, up to and including ``until`` (default: all).

    Raise Corrupted if the log begins later, and LeaseLost if another process has archived the entries meanwhile.
    """
    connection = await to.store.open_connection("archive")
    try:
        reading = stream.read(
            connection,
            to.keys.log,
            after,
            until,
            read_bytes=to.log_params.read_bytes,
            seconds=to.store.params.reply_seconds,
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                yield elements
    except stream.LogTrimmed as error:
        await to.lease.check()
        raise Corrupted(
            f"the history of {to.keys.name} ends at {after.entry} and {error}: the entries between are lost. "
            f"{history_manifest.BEGIN_ANEW_HINT}"
        ) from None
    finally:
        connection.close()


def _check(to: ArchiveContext, element: Element) -> None:
    try:
        check(element[1])
    except Corrupted as error:
        raise Corrupted(
            f"the entry {element[0].decode()} of the log of {to.keys.name} cannot be moved to history: {error}. "
            f"{history_manifest.BEGIN_ANEW_HINT}"
        ) from None


async def restart_history(to: ArchiveContext) -> HistoryManifest:
    """Start history again at the oldest good snapshot, without anything before it, when it is damaged or lost.

    Garbage collection deletes its files later. Raises NotReady if no snapshot is good.
    """
    return await _begin_at(to, await good_snapshots(to.store, to.keys))


async def good_snapshots(store: Store, keys: ModelKeys) -> list[StateManifest]:
    """Return the manifests of the usable snapshots, newest first.

    A snapshot is usable if all its parts exist with their sizes and the log contains its entry.
    """
    good = []
    for manifest in await snapshots.read_manifests(store, keys):
        with store_errors():
            async with store.client.pipeline(transaction=False) as pipe:
                for i in range(len(manifest.parts)):
                    pipe.strlen(snapshots.file_key(keys, manifest.id, i))
                sizes = await pipe.execute()
        offset, checksum = manifest.position[:2]
        if sizes == [part.size for part in manifest.parts] and await stream.holds(store, keys.log, offset, checksum):
            good.append(manifest)
    return good


async def make_base(to: ArchiveContext, model: ReplicatedModel) -> Base:
    """Write the state of a model as a base. Nothing may be applied to the model meanwhile."""
    position = model.position
    index = await state_files.write(to.artifacts, to.keys, model.live, position.offset, to.between)
    return Base(index=index.id, digest=index.digest, size=index.size, **Base.fields_of(position))


async def swap_manifest(
    to: ArchiveContext, contents: HistoryManifest, trim: Trim | None = None, also: Sequence[Command] = ()
) -> HistoryManifest:
    """Replace the manifest of history, trim the log and run ``also``, all in one script under the lease."""
    contents = seal(contents)
    packed = msgspec.json.encode(contents)
    history_manifest.parse(packed, to.keys)
    commands: list[Command] = []
    if trim is not None:
        milliseconds, sequence, _ = trim.last
        first = f"{milliseconds}-{sequence + 1}" if sequence + 1 < 2**64 else f"{milliseconds + 1}-0"
        commands = [
            ("XTRIM", to.keys.log, "MINID", "=", first),
            ("SET", trimmed_key(to.keys.log), trim.packed()),
        ]
    await to.lease.swap([*commands, *also, ("SET", history_manifest.history_key(to.keys), packed)])
    return contents


async def _current_manifest(to: ArchiveContext, good: list[StateManifest]) -> HistoryManifest:
    """Return the manifest to append to: the present one, or a new one if there is none or its files are lost."""
    contents = await history_manifest.History(to.store, to.artifacts, to.keys).manifest()
    if contents is None:
        if (await stream.trim_of(to.store, to.keys.log)).n_entries == 0:
            return _empty(to, None)
        log.error("the manifest of history is lost; starting history again at a snapshot", model=to.keys.name)
    elif contents.artifacts != to.artifacts.id:
        log.error("history is in another artifact store; starting it again at a snapshot", model=to.keys.name)
    else:
        return contents
    return await _begin_at(to, good)


async def _begin_at(to: ArchiveContext, good: list[StateManifest]) -> HistoryManifest:
    for manifest in reversed(good):
        model = ReplicatedModel(to.keys, to.living.config, limits=Limits())
        try:
            live = await snapshots.load(to.store, to.keys, manifest, model.limits)
        except Corrupted as error:
            log.warning("snapshot skipped", model=to.keys.name, snapshot=manifest.id, reason=str(error))
            continue
        model.restore(live, manifest.position)
        base = await make_base(to, model)
        return await swap_manifest(to, _empty(to, base), await _trim_before(to, base))
    raise NotReady(
        f"no usable snapshot of {to.keys.name} to start its history at; retry after the next snapshot", retry_after=60.0
    )


async def _trim_before(to: ArchiveContext, base: Base) -> Trim | None:
    """Return the trim that makes the log begin with the entry of a base; None if the log begins there already."""
    at, key = base.position.offset, to.keys.log
    if at == START:
        return None
    with store_errors():
        before = await to.store.client.xrevrange(key, f"({at.entry}", "-", count=1)
        own = await to.store.client.xrange(key, at.entry, at.entry)
    if not before or not own:
        return None
    size = entry_size([part for field in own[0][1].items() for part in field])
    return Trim(Offset.of_entry(before[0][0]), base.n_entries - 1, base.log_bytes - size)


def _empty(to: ArchiveContext, base: Base | None) -> HistoryManifest:
    return HistoryManifest(
        format=history_manifest.FORMAT,
        model=to.keys.name,
        incarnation=to.keys.incarnation,
        artifacts=to.artifacts.id,
        base=base,
        segments=[],
    )


async def _extendable_segment(
    to: ArchiveContext, contents: HistoryManifest
) -> tuple[list[Element], int, int, Segment | None]:
    """Return the last segment if it should be extended, with its entries, their size in the log and their number."""
    last = contents.segments[-1] if contents.segments else None
    if last is None or last.log_bytes * 2 > to.params.segment_bytes:
        return [], 0, 0, None
    try:
        elements = await history_manifest.History(to.store, to.artifacts, to.keys).elements(last)
    except (Corrupted, UnknownArtifact):
        return [], 0, 0, None  # the next reader of this segment reports it
    return elements, last.log_bytes, last.n_entries, last


async def _add(
    to: ArchiveContext, contents: HistoryManifest, elements: list[Element], log_bytes: int
) -> HistoryManifest:
    await to.between()
    segment = await write_segment(to, elements, contents.n_entries, contents.log_bytes, log_bytes)
    last = Offset.of_entry(segment.last)
    trim = Trim(last, contents.n_entries + len(elements), contents.log_bytes + log_bytes)
    return await swap_manifest(to, msgspec.structs.replace(contents, segments=[*contents.segments, segment]), trim)


async def write_segment(
    to: ArchiveContext, elements: list[Element], n_before: int, bytes_before: int, log_bytes: int
) -> Segment:
    """Write elements as a segment file that nothing points to yet, read it back and compare.

    ``n_before`` and ``bytes_before`` count the log's entries before them; ``log_bytes`` is their own size.
    """
    packed = await asyncio.to_thread(encode_segment, elements)
    first, last = elements[0][0].decode(), elements[-1][0].decode()
    name = f"{to.keys.folder}/history/{first}-{secrets.token_hex(4)}.seg"
    await to.artifacts.put(name, packed)
    if await to.artifacts.get(name) != packed:
        raise Corrupted(f"the artifact store does not give back what was written as {name}")
    return Segment(
        name=name,
        first=first,
        last=last,
        n_before=n_before,
        bytes_before=bytes_before,
        n_entries=len(elements),
        log_bytes=log_bytes,
        size=len(packed),
        checksum=checksum_of(packed),
    )
