"""Sweeping: what nothing points to is taken out of the store and out of the artifact store.

Such things are left by whoever died, or was too late, between writing and pointing, and by models that were deleted.

1. the catalog is read before anything is listed: a model that comes meanwhile is newer than its end, and stays
2. what there is, is listed
3. the lease of the model is taken: whoever was writing what was listed has pointed to it, or never will
4. the pointer is read; what was listed and is not pointed to goes

A file that was pointed to, or of a model that was deleted, goes one sweep later. The store may lose its last seconds,
or fail over to one that has not come so far, and then points to it again, or has the model again; what lies in the
store itself comes back with the pointer.

Sweeping indexes: those that nothing needs any more leave the artifact store.

An index is needed by an adoption in history or in the log, by history as its base, and by whoever is about to adopt it.
Retention takes adoptions away, and a process that dies between writing an index and its adoption leaves one.

1. while no index of a model is being made: what nothing needs is noted
2. one sweep later, with the fence of adoptions (``service/model/adoption_lock.py``): what was noted, and still is not
needed, goes

Two sweeps, since a store that loses its last second may need it again. Whoever comes back after it was thought to be
dead, while this had the fence, looks at its index once more before it is adopted (``service/rebuild/adoption.py``).

Indexes that nothing needs any more: no adoption in history or log, and no history as its base.

Whoever has made an index takes them away; the worker sweeps what others have left (``service/history/garbage.py``).
"""

from __future__ import annotations

import contextlib
import re

import structlog

from abound.core.errors import Conflict, Damaged, StoreUnavailable, UnknownApplyVersion, UnknownArtifact
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.archive import BASE_PREFIX
from abound.service.history.history import Contents, History, folder
from abound.service.log import stream
from abound.service.log.catalog import Catalog
from abound.service.log.events import adopted
from abound.service.log.stream import LogParams, mended_key
from abound.service.model import adoption_lock
from abound.service.model.adoption_lock import SWEEP, Pending
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots import state_files
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Lease, LeaseLost, take

log = structlog.get_logger(__name__)

_TAG = re.compile(rb"abound:\{(?P<name>[^{}]+):(?P<incarnation>\d+-\d+)\}:(?P<part>.+)", re.DOTALL)
_SNAPSHOT = re.compile(rb"snapshot:(?P<id>.+):(?:manifest|\d+)")
_ARTIFACT = re.compile(r"(?P<name>[^/]+)/(?P<incarnation>\d+-\d+)/.+")


async def sweep_store(store: Store, catalog: Catalog) -> int:
    """Take out of the store what nothing points to: models that are gone, snapshots that were never finished, copies
    of logs that mends have left.

    Returns the number of keys. StoreUnavailable.
    """
    swept = 0
    living = {(one.keys.name.encode(), one.keys.incarnation.encode()): one.keys for one in catalog}
    found: dict[ModelKeys, list[tuple[bytes, str]]] = {}
    with reaching():
        async for key in store.client.scan_iter(match="abound:{*", count=1000):
            match = _TAG.fullmatch(key)
            if match is None:
                continue
            one = living.get((match["name"], match["incarnation"]))
            if one is None:
                if Offset.of_entry(match["incarnation"]) <= catalog.offset:
                    swept += await store.client.unlink(key)
            elif key == mended_key(one.log):
                swept += await store.client.unlink(key)
            elif part := _SNAPSHOT.fullmatch(match["part"]):
                found.setdefault(one, []).append((key, part["id"].decode()))
    for one, parts in found.items():
        try:
            async with take(store, one):
                good = set(await manifests.ids(store, one))
                with reaching():
                    for key, name in parts:
                        if name not in good:
                            swept += await store.client.unlink(key)
        except Conflict:
            continue
    if swept:
        log.info("took out of the store what nothing points to", keys=swept)
    return swept


async def sweep_artifacts(store: Store, artifacts: Artifacts, catalog: Catalog, unlisted: set[str]) -> int:
    """Take out of the artifact store what nothing points to: models that are gone, segments, files half written.

    Versions of living models, and indexes that are no bases, are left to those who know who points to them. Returns the
    number of files. ``unlisted``: what the sweep before found that nothing points to, and after this call what this one
    found; only what is in both goes.
    ArtifactsUnavailable, Damaged (the list of a history cannot be read; its files stay), StoreUnavailable.
    """
    swept = await artifacts.sweep_unfinished()
    living = {(one.keys.name, one.keys.incarnation): one.keys for one in catalog}
    found: dict[ModelKeys, list[str]] = {}
    before = set(unlisted)
    unlisted.clear()
    for name in await artifacts.names():
        match = _ARTIFACT.fullmatch(name)
        if match is None:
            continue
        one = living.get((match["name"], match["incarnation"]))
        if one is None:
            if Offset.of_entry(match["incarnation"]) > catalog.offset:
                continue
            if name in before:
                await artifacts.delete(name)
                swept += 1
            else:
                unlisted.add(name)
        elif name.startswith((folder(one, "history/"), f"{state_files.folder(one)}/{BASE_PREFIX}")):
            found.setdefault(one, []).append(name)
    for one, names in found.items():
        try:
            async with take(store, one):
                contents = await History(store, artifacts, one).contents()
                good = {segment.name for segment in contents.segments} if contents is not None else set()
                base = contents.base.index if contents is not None and contents.base is not None else "-"
                for name in names:
                    if name in good or f"/{base}/" in name:
                        continue
                    if name in before:
                        await artifacts.delete(name)
                        swept += 1
                    else:
                        unlisted.add(name)
        except Conflict:
            continue
    if swept:
        log.info("took out of the artifact store what nothing points to", files=swept)
    return swept


class IndexSweep:
    """What was noted of each model from one sweep to the next."""

    def __init__(self, store: Store, params: LogParams | None = None) -> None:
        self._store = store
        self._params = params or LogParams()
        self._unneeded: dict[ModelKeys, set[str]] = {}
        self._needed: dict[ModelKeys, tuple[set[str], str | None]] = {}

    async def sweep(self, artifacts: Artifacts, catalog: Catalog) -> int:
        """Take away what nothing needs, now and the sweep before; how many indexes.

        A model that somebody else works on, or whose past cannot be read, is left alone.
        ArtifactsUnavailable, StoreUnavailable.
        """
        living = {one.keys for one in catalog}
        self._unneeded = {keys: names for keys, names in self._unneeded.items() if keys in living}
        self._needed = {keys: known for keys, known in self._needed.items() if keys in living}
        swept = 0
        for keys in [one.keys for one in catalog]:
            with contextlib.suppress(Conflict, LeaseLost):
                try:
                    swept += await self._sweep(artifacts, keys)
                except (Damaged, UnknownApplyVersion, UnknownArtifact) as error:
                    log.warning("indexes are not swept", model=keys.name, reason=str(error))
        if swept:
            log.info("took away indexes that nothing needs", indexes=swept)
        return swept

    async def _sweep(self, artifacts: Artifacts, keys: ModelKeys) -> int:
        there = {name for name in await state_files.ids(artifacts, keys) if not name.startswith(BASE_PREFIX)}
        (busy,) = await adoption_lock.pending(self._store, [keys])
        contents = await History(self._store, artifacts, keys).contents()
        base = contents.base.index if contents is not None and contents.base is not None else None
        if busy is not None or not there or self._needed.get(keys) == (there, base):
            return 0  # what is needed stays so until history begins later
        noted = self._unneeded.get(keys, set()) & there
        async with take(self._store, keys) as lease:
            if not noted:
                unneeded = there - await self._needed_by(artifacts, keys, lease)
                self._unneeded[keys] = unneeded
                if not unneeded:
                    self._needed[keys] = (there, base)
                return 0
            if not await adoption_lock.say(self._store, keys, Pending(SWEEP)):
                return 0
            try:
                swept = await self._delete(artifacts, keys, noted, lease)
                self._unneeded.pop(keys, None)
                return swept
            finally:
                with contextlib.suppress(StoreUnavailable):
                    await adoption_lock.let_go(self._store, keys, SWEEP)

    async def _delete(self, artifacts: Artifacts, keys: ModelKeys, noted: set[str], lease: Lease) -> int:
        swept = 0
        for name in sorted(noted - await self._needed_by(artifacts, keys, lease)):
            if not await adoption_lock.say(self._store, keys, Pending(SWEEP)):
                break
            await state_files.delete(artifacts, keys, name)
            swept += 1
        return swept

    async def _needed_by(self, artifacts: Artifacts, keys: ModelKeys, lease: Lease) -> set[str]:
        """The indexes that history and log need; whoever has the lease sees no entry on its way from one to other."""
        history = History(self._store, artifacts, keys)
        contents = await history.contents()
        trim = await stream.trim_of(self._store, keys.log)
        if not _is_whole(contents, artifacts, trim):
            raise Damaged(f"the history of {keys.name} is not the one that its log goes on from")
        needed = set()
        for segment in contents.segments if contents is not None else ():
            if segment.needs is not None:  # it has an adoption
                needed |= adopted(await history.elements(segment))
        if contents is not None and contents.base is not None:
            needed.add(contents.base.index)
        link = await self._store.open_link("sweep")
        try:
            reading = stream.read(
                link,
                keys.log,
                trim.last,
                read_bytes=self._params.read_bytes,
                seconds=self._store.params.reply_seconds,
            )
            async with contextlib.aclosing(reading):
                async for elements in reading:
                    needed |= adopted(elements)
        except stream.Trimmed as error:
            raise LeaseLost from error
        finally:
            link.close()
        await lease.check()
        return needed


def _is_whole(contents: Contents | None, artifacts: Artifacts, trim: stream.Trim) -> bool:
    """Whether history has all that the log has no more."""
    if contents is None:
        return trim.n_entries == 0
    return contents.artifacts == artifacts.id and contents.end[:2] >= trim.last[:2]
