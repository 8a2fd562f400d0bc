"""Archiving: the oldest part of a log becomes history, and only then leaves the log.

1. the entries before the oldest good snapshot's are read, a segment at a time; a last segment that is small is taken
   up again and made larger, so that many small ones do not come about
2. the segment is written, and read again: what comes back must be what was written
3. in one moment, under the lease: the list of history has the segment, the log is without its entries, and what was
   trimmed is counted on

The entry of a snapshot itself stays in the log: by it the log is known again. Where a process dies on the way, the
next one finds the log as it was, and perhaps a file that nothing points to. A segment that was made larger is left to
be swept: a store that loses its last second points to it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from abound.core.errors import Damaged, NotReady, UnknownApplyVersion, UnknownArtifact, UnknownSnapshot
from abound.core.limits import Limits
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.artifacts.checksums import checksum_of
from abound.service.history import history
from abound.service.history.history import Base, Contents, HistoryParams, Segment
from abound.service.history.segment import encode
from abound.service.log import stream
from abound.service.log.catalog import Living
from abound.service.log.events import adoption_after, check
from abound.service.log.stream import Element, LogParams, Trim, size_of, trimmed_key
from abound.service.model.replicated_model import ModelReplica
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots import snapshots, state_files
from abound.service.snapshots.manifest import Manifest
from abound.service.store.client import Store, reaching
from abound.service.store.connection import Link
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Command, Lease

log = structlog.get_logger(__name__)

BASE_PREFIX = "base-"
"""Of the ids of indexes that are bases: they are only written under the lease, so whoever has it can sweep them."""

KEPT_FOR_CERTAIN = 2
"""So many snapshots must be good before anything is taken out of a log."""


async def _nothing() -> None:
    """Nobody has to be told between two steps."""


class Archiving(NamedTuple):
    """What is needed to change the history of a model.

    Attributes
    ----------
    lease : Lease
        Of the model.
    between : async callable
        Awaited before each step; what it raises ends the work.
    """

    store: Store
    artifacts: Artifacts
    living: Living
    lease: Lease
    params: HistoryParams = HistoryParams()
    log_params: LogParams = LogParams()
    between: Callable[[], Awaitable[None]] = _nothing

    @property
    def keys(self) -> ModelKeys:
        """Of the model."""
        return self.living.keys


async def archive(to: Archiving) -> Contents | None:
    """Move what no snapshot needs any more from the log to history; the history then, None while there is none.

    Nothing happens before there are two good snapshots.

    Raises
    ------
    LeaseLost
        Another process has the model.
    Damaged
        The list of history cannot be read, or the log not be continued by it, or an entry is not what was written.
    ArtifactsUnavailable, StoreUnavailable
    """
    good = await good_snapshots(to.store, to.keys)
    if len(good) < KEPT_FOR_CERTAIN or good[-1].position.offset == START:
        return await history.History(to.store, to.artifacts, to.keys).contents()
    until = good[-1].position.offset
    contents = await _contents(to, good)
    elements, size, n_old, old = await _small(to, contents)
    begun = msgspec.structs.replace(contents, segments=contents.segments[:-1]) if old is not None else contents
    link = await to.store.open_link("archive")
    own = 0
    try:
        async with contextlib.aclosing(_read(to, link, contents.end, until)) as reading:
            async for read in reading:
                for element in read:
                    if Offset.of_entry(element[0])[:2] >= until[:2]:
                        own = size_of(element[1])
                        break
                    _check(to, element)
                    elements.append(element)
                    size += size_of(element[1])
                    if size >= to.params.segment_bytes or adoption_after(element) is not None:
                        contents = begun = await _add(to, begun, elements, size)
                        elements, size, n_old = [], 0, 0
    except stream.Trimmed as error:
        raise Damaged(
            f"the history of {to.keys.name} ends at {contents.end.entry} and {error}: what is between is lost. "
            f"{history.MENDING}"
        ) from None
    finally:
        link.close()
    if len(elements) > n_old:
        contents = await _add(to, begun, elements, size)
    if own and good[-1].log_bytes != contents.log_bytes + own:
        await _correct(to, good, contents.log_bytes + own)
    return contents


def _read(to: Archiving, link: Link, after: Offset, until: Offset) -> AsyncGenerator[list[Element]]:
    seconds = to.store.params.reply_seconds
    return stream.read(link, to.keys.log, after, until, read_bytes=to.log_params.read_bytes, seconds=seconds)


async def _correct(to: Archiving, good: list[Manifest], log_bytes: int) -> None:
    """Let snapshots say how large the log is up to them: up to the oldest it is ``log_bytes``.

    A release before this one counted too little where it made a model of history in which something was forgotten.
    """
    commands: list[Command] = []
    before = good[-1].position.offset
    link = await to.store.open_link("correct")
    try:
        for manifest in reversed(good):
            offset = manifest.position.offset
            if offset[:2] > before[:2]:
                async with contextlib.aclosing(_read(to, link, before, offset)) as reading:
                    async for elements in reading:
                        log_bytes += sum(size_of(fields) for _, fields in elements)
                        await to.between()
            before = offset
            right = msgspec.structs.replace(manifest, log_bytes=log_bytes).sealed()
            commands.append(("SET", manifests.manifest_key(to.keys, manifest.id), msgspec.json.encode(right)))
    finally:
        link.close()
    await to.lease.swap(commands)
    log.warning("snapshots said that the log was of another size; corrected", model=to.keys.name)


def _check(to: Archiving, element: Element) -> None:
    """Damaged unless an entry is what was written: in history nothing would be left to mend it by."""
    try:
        check(element[1])
    except Damaged as error:
        raise Damaged(
            f"the entry {element[0].decode()} of the log of {to.keys.name} cannot be moved to history: {error}. "
            f"{stream.MENDING}; or, while snapshots are good, {history.MENDING}"
        ) from None


async def begin_anew(to: Archiving) -> Contents:
    """Let history begin at the oldest good snapshot, without anything before it.

    For a history that is damaged or lost. Its files are swept later. Raises what ``archive`` raises; NotReady when no
    snapshot is good.
    """
    return await _begin_at(to, await good_snapshots(to.store, to.keys))


async def good_snapshots(store: Store, keys: ModelKeys) -> list[Manifest]:
    """The snapshots that can be counted on, newest first: all parts are there in their size, and the log has them."""
    good = []
    for name in await manifests.ids(store, keys):
        try:
            manifest = await manifests.manifest_of(store, keys, name)
        except (Damaged, UnknownApplyVersion, UnknownSnapshot):
            continue
        with reaching():
            async with store.client.pipeline(transaction=False) as pipe:
                for i in range(len(manifest.parts)):
                    pipe.strlen(manifests.part_key(keys, name, i))
                sizes = await pipe.execute()
        offset, checksum = manifest.position[:2]
        if sizes == [part.size for part in manifest.parts] and await stream.holds(store, keys.log, offset, checksum):
            good.append(manifest)
    return good


async def make_base(to: Archiving, model: ModelReplica) -> Base:
    """Write the state of a model, which nothing is being applied to, as a base."""
    position = model.position
    recipe = {"method": "base", "offset": str(position.offset)}
    name = f"{BASE_PREFIX}{state_files.new_id()}"
    index = await state_files.write(to.artifacts, to.keys, model.live, position.offset, recipe, to.between, name)
    return Base(
        index=index.id,
        digest=index.digest,
        offset=str(position.offset),
        entry_checksum=position.checksum.decode(),
        n_entries=position.n_entries,
        log_bytes=position.log_bytes,
        adopted=str(position.adopted),
        size=index.size,
    )


async def swap(to: Archiving, contents: Contents, trim: Trim | None = None, also: Sequence[Command] = ()) -> Contents:
    """Put a list in the place of the one before, and take out of the log what ``trim`` says. LeaseLost.

    ``also``: commands on other keys of the model, carried out in the same moment.
    """
    contents = contents.sealed()
    packed = msgspec.json.encode(contents)
    history.parse(packed, to.keys)
    commands: list[Command] = []
    if trim is not None:
        milliseconds, sequence, _ = trim.last
        first = f"{milliseconds}-{sequence + 1}" if sequence + 1 < 2**64 else f"{milliseconds + 1}-0"
        commands = [
            ("XTRIM", to.keys.log, "MINID", "=", first),
            ("SET", trimmed_key(to.keys.log), trim.packed()),
        ]
    await to.lease.swap([*commands, *also, ("SET", history.history_key(to.keys), packed)])
    return contents


async def _contents(to: Archiving, good: list[Manifest]) -> Contents:
    """The history to go on from: as it is, or a new one where there is none (any more)."""
    contents = await history.History(to.store, to.artifacts, to.keys).contents()
    if contents is None:
        if (await stream.trim_of(to.store, to.keys.log)).n_entries == 0:
            return _empty(to, None)
        log.error("the list of history is lost; history begins anew", model=to.keys.name)
    elif contents.artifacts != to.artifacts.id:
        log.error("history is in an artifact store that was given up; it begins anew", model=to.keys.name)
    else:
        return contents
    return await _begin_at(to, good)


async def _begin_at(to: Archiving, good: list[Manifest]) -> Contents:
    for manifest in reversed(good):
        model = ModelReplica(to.keys, to.living.config, limits=Limits())
        try:
            live = await snapshots.load(to.store, to.keys, manifest, model.limits)
        except Damaged as error:
            log.warning("passing over a snapshot", model=to.keys.name, snapshot=manifest.id, reason=str(error))
            continue
        model.restore(live, manifest.position)
        base = await make_base(to, model)
        return await swap(to, _empty(to, base), await _trim_before(to, base))
    raise NotReady(f"no snapshot of {to.keys.name} is good enough to begin its history anew at", retry_after=60.0)


async def _trim_before(to: Archiving, base: Base) -> Trim | None:
    """What has to leave the log so that it begins with the entry of a base; None when nothing has to."""
    at, key = base.position.offset, to.keys.log
    with reaching():
        before = await to.store.client.xrevrange(key, f"({at.entry}", "-", count=1)
        own = await to.store.client.xrange(key, at.entry, at.entry)
    if not before or not own:
        return None
    size = size_of([part for field in own[0][1].items() for part in field])
    return Trim(Offset.of_entry(before[0][0]), base.n_entries - 1, base.log_bytes - size)


def _empty(to: Archiving, base: Base | None) -> Contents:
    return Contents(
        format=history.FORMAT,
        model=to.keys.name,
        incarnation=to.keys.incarnation,
        artifacts=to.artifacts.id,
        base=base,
        segments=[],
    )


async def _small(to: Archiving, contents: Contents) -> tuple[list[Element], int, int, Segment | None]:
    """The last segment, if it is to be made larger: its entries, their size in the log, how many, and itself."""
    last = contents.segments[-1] if contents.segments else None
    if last is None or last.needs is not None or last.log_bytes * 2 > to.params.segment_bytes:
        return [], 0, 0, None
    try:
        elements = await history.History(to.store, to.artifacts, to.keys).elements(last)
    except (Damaged, UnknownArtifact):
        return [], 0, 0, None  # whoever needs it says so
    return elements, last.log_bytes, last.n_entries, last


async def _add(to: Archiving, contents: Contents, elements: list[Element], log_bytes: int) -> Contents:
    """Make elements the last segment of history, and trim them off the log."""
    await to.between()
    segment = await write_segment(to, elements, contents.n_entries, contents.log_bytes, log_bytes)
    last = Offset.of_entry(segment.last)
    trim = Trim(last, contents.n_entries + len(elements), contents.log_bytes + log_bytes)
    return await swap(to, msgspec.structs.replace(contents, segments=[*contents.segments, segment]), trim)


async def write_segment(
    to: Archiving, elements: list[Element], n_before: int, bytes_before: int, log_bytes: int
) -> Segment:
    """Write elements as a segment that nothing points to yet, and see that it is there.

    Parameters
    ----------
    n_before, bytes_before : int
        Entries of the log before them, and their size.
    log_bytes : int
        Their own size as the log had them; it is kept when something is forgotten in them.

    Damaged when the artifact store gives back something else; ArtifactsUnavailable.
    """
    packed = await asyncio.to_thread(encode, elements)
    first, last = elements[0][0].decode(), elements[-1][0].decode()
    name = f"{history.folder(to.keys, 'history')}/{first}-{secrets.token_hex(4)}.seg"
    await to.artifacts.put(name, packed)
    if await to.artifacts.get(name) != packed:
        raise Damaged(f"the artifact store does not give back what was written as {name}")
    needs = [after for element in elements if (after := adoption_after(element)) is not None]
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
        needs=str(min(needs)) if needs else None,
    )
