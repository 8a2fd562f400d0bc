"""Garbage collection: deletes keys of the store and files of the artifact store that nothing refers to.

A process that dies, or loses its lease, between writing and pointing leaves such keys and files. So do deleted models.

1. Read the catalog first. A model that is created afterwards has a higher offset and is left alone.
2. List what exists.
3. Take the lease of the model. The process that was writing what was listed has pointed to it, or never will.
4. Read the pointer. Delete what was listed and is not referenced.

A file that was referenced before, or that belongs to a deleted model, is deleted one pass later. The store may lose
its last seconds, or fail over to a server that is behind, and then refers to the file or has the model again. Keys in
the store need no such delay, because they return together with the pointer.

**State files** are referenced by adoptions in history and log, by the base of history, and by a job that is about to
adopt one. Retention removes adoptions. A job that dies between writing a state file and adopting it leaves the file.

1. Note the unreferenced ones.
2. One pass later, delete those that were noted and are still unreferenced.

Both passes hold the adoption lease. There are two because a store that loses its last second may refer to them again.

A job that has made a state file deletes unreferenced ones too (``service/rebuild/garbage.py``). The worker deletes
what others have left.
"""

from __future__ import annotations

import contextlib
import re

import structlog

from abound.core.errors import Conflict, Corrupted, UnknownApplyVersion, UnknownArtifact
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.history.archive import BASE_PREFIX
from abound.service.history.history import History, HistoryManifest, artifact_folder
from abound.service.log import stream
from abound.service.log.catalog import Catalog
from abound.service.log.events import adopted_state_files
from abound.service.log.stream import LogParams, repaired_key
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots import state_files
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import ADOPTION, Lease, LeaseLost, acquire

log = structlog.get_logger(__name__)

_TAG = re.compile(rb"abound:\{(?P<name>[^{}]+):(?P<incarnation>\d+-\d+)\}:(?P<part>.+)", re.DOTALL)
_SNAPSHOT = re.compile(rb"snapshot:(?P<id>.+):(?:manifest|\d+)")
_ARTIFACT = re.compile(r"(?P<name>[^/]+)/(?P<incarnation>\d+-\d+)/.+")


async def collect_keys(store: Store, catalog: Catalog) -> int:
    """Delete keys without a reference: of deleted models, of unfinished snapshots, and copies of logs left by repairs.

    Returns the number of keys. StoreUnavailable.
    """
    swept = 0
    living = {(one.keys.name.encode(), one.keys.incarnation.encode()): one.keys for one in catalog}
    found: dict[ModelKeys, list[tuple[bytes, str]]] = {}
    with store_errors():
        async for key in store.client.scan_iter(match="abound:{*", count=1000):
            match = _TAG.fullmatch(key)
            if match is None:
                continue
            one = living.get((match["name"], match["incarnation"]))
            if one is None:
                if Offset.of_entry(match["incarnation"]) <= catalog.offset:
                    swept += await store.client.unlink(key)
            elif key == repaired_key(one.log):
                swept += await store.client.unlink(key)
            elif part := _SNAPSHOT.fullmatch(match["part"]):
                found.setdefault(one, []).append((key, part["id"].decode()))
    for one, parts in found.items():
        try:
            async with acquire(store, one):
                good = set(await manifests.ids(store, one))
                with store_errors():
                    for key, name in parts:
                        if name not in good:
                            swept += await store.client.unlink(key)
        except Conflict:
            continue
    if swept:
        log.info("garbage collection deleted keys from the store", keys=swept)
    return swept


async def collect_files(store: Store, artifacts: ArtifactStore, catalog: Catalog, unlisted: set[str]) -> int:
    """Delete files without a reference: of deleted models, segments, bases, and files half written.

    Versions of existing models, and state files that are no bases, are collected elsewhere. A file is deleted only if
    two passes in a row found it unreferenced.

    Parameters
    ----------
    unlisted : set of str
        The unreferenced files of the pass before. Replaced in place by those of this pass.

    Returns
    -------
    int
        The number of deleted files.

    Raises
    ------
    Corrupted
        The manifest of a history cannot be read; its files stay.
    ArtifactsUnavailable, StoreUnavailable
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
        elif name.startswith((artifact_folder(one, "history/"), f"{state_files.folder(one)}/{BASE_PREFIX}")):
            found.setdefault(one, []).append(name)
    for one, names in found.items():
        try:
            async with acquire(store, one):
                contents = await History(store, artifacts, one).manifest()
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
        log.info("garbage collection deleted files from the artifact store", files=swept)
    return swept


class StateFileCollector:
    """Deletes state files that nothing refers to; remembers the candidates of each model from one pass to the next."""

    def __init__(self, store: Store, params: LogParams | None = None) -> None:
        self._store = store
        self._params = params or LogParams()
        self._unreferenced: dict[ModelKeys, set[str]] = {}
        self._all_referenced: dict[ModelKeys, tuple[set[str], str | None]] = {}

    async def collect(self, artifacts: ArtifactStore, catalog: Catalog) -> int:
        """Delete the state files that were unreferenced in the pass before and still are; return their number.

        Skips a model that another process works on, and one whose history or log cannot be read.
        ArtifactsUnavailable, StoreUnavailable.
        """
        living = {one.keys for one in catalog}
        self._unreferenced = {keys: names for keys, names in self._unreferenced.items() if keys in living}
        self._all_referenced = {keys: known for keys, known in self._all_referenced.items() if keys in living}
        swept = 0
        for keys in [one.keys for one in catalog]:
            with contextlib.suppress(Conflict):
                try:
                    swept += await self._sweep(artifacts, keys)
                except (Corrupted, UnknownApplyVersion, UnknownArtifact) as error:
                    log.warning("garbage collection of state files skipped", model=keys.name, reason=str(error))
        if swept:
            log.info("garbage collection deleted state files", indexes=swept)
        return swept

    async def _sweep(self, artifacts: ArtifactStore, keys: ModelKeys) -> int:
        there = {name for name in await state_files.ids(artifacts, keys) if not name.startswith(BASE_PREFIX)}
        contents = await History(self._store, artifacts, keys).manifest()
        base = contents.base.index if contents is not None and contents.base is not None else None
        if not there or self._all_referenced.get(keys) == (there, base):
            return 0  # a referenced state file stays referenced until history starts later
        noted = self._unreferenced.get(keys, set()) & there
        async with acquire(self._store, keys, purpose=ADOPTION) as lock, acquire(self._store, keys) as lease:
            if not noted:
                unneeded = there - await self._find_referenced(artifacts, keys, lease)
                self._unreferenced[keys] = unneeded
                if not unneeded:
                    self._all_referenced[keys] = (there, base)
                return 0
            unneeded = noted - await self._find_referenced(artifacts, keys, lease)
            for name in sorted(unneeded):
                await lock.check()
                await state_files.delete(artifacts, keys, name)
            self._unreferenced.pop(keys, None)
            return len(unneeded)

    async def _find_referenced(self, artifacts: ArtifactStore, keys: ModelKeys, lease: Lease) -> set[str]:
        """Return the state files that history and log refer to.

        While this process holds the lease, no entry moves from the log to history.
        """
        history = History(self._store, artifacts, keys)
        contents = await history.manifest()
        trim = await stream.trim_of(self._store, keys.log)
        if not _is_whole(contents, artifacts, trim):
            raise Corrupted(f"the history of {keys.name} is not the one that its log continues")
        needed = set()
        for segment in contents.segments if contents is not None else ():
            if segment.needs is not None:  # it has an adoption
                needed |= adopted_state_files(await history.elements(segment))
        if contents is not None and contents.base is not None:
            needed.add(contents.base.index)
        link = await self._store.open_connection("sweep")
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
                    needed |= adopted_state_files(elements)
        except stream.LogTrimmed as error:
            raise LeaseLost from error
        finally:
            link.close()
        await lease.check()
        return needed


def _is_whole(contents: HistoryManifest | None, artifacts: ArtifactStore, trim: stream.Trim) -> bool:
    """Return whether history has all entries that were trimmed off the log."""
    if contents is None:
        return trim.n_entries == 0
    return contents.artifacts == artifacts.id and contents.end[:2] >= trim.last[:2]
