"""Garbage collection: deletes keys of the store and files of the artifact store that nothing refers to.

A process that dies, or loses its lease, between writing and pointing leaves such keys and files. So do deleted models.
The catalog is read before anything is listed: a model that is created afterwards has a higher offset and is left alone.

A file is deleted only once it has been unreferenced in every pass of the last hour. The store may lose its last
seconds, or fail over to a server that is behind, and then refers to the file or has the model again. A backup saves the
store first and copies the files afterwards (``docs/guides/backups.md``). Keys in the store need no such delay, because
they return together with the pointer.

State files are referenced by adoptions in history and log, and by the base of history. Retention removes adoptions. A
job that has made a state file deletes unreferenced ones itself (``abound/replace/erase.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import re

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import History, HistoryManifest
from abound.log import stream
from abound.log.catalog import Catalog
from abound.log.events import adopted_state_files
from abound.log.stream import LogParams
from abound.state import snapshots, state_files
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import ADOPTION, LeaseLost, acquire
from abound_core.errors import Conflict, Corrupted, UnknownApplyVersion, UnknownArtifact
from abound_core.types import Offset

log = structlog.get_logger(__name__)

UNREFERENCED_SECONDS = 3600.0  # after which a file without a reference is deleted

_TAG = re.compile(rb"abound:\{(?P<name>[^{}]+):(?P<incarnation>\d+-\d+)\}:(?P<part>.+)", re.DOTALL)
_SNAPSHOT = re.compile(rb"snapshot:(?P<id>.+):(?:manifest|\d+)")
_ARTIFACT = re.compile(r"(?P<name>[^/]+)/(?P<incarnation>\d+-\d+)/.+")


async def collect_keys(store: Store, catalog: Catalog) -> int:
    """Delete keys of deleted models and of unfinished snapshots; return their number."""
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
            elif part := _SNAPSHOT.fullmatch(match["part"]):
                found.setdefault(one, []).append((key, part["id"].decode()))
    for one, parts in found.items():
        try:
            # A process that wrote a listed key has set its pointer by now, or has lost the lease and cannot set it.
            async with acquire(store, one):
                good = set(await snapshots.ids(store, one))
                with store_errors():
                    for key, name in parts:
                        if name not in good:
                            swept += await store.client.unlink(key)
        except Conflict:
            continue
    if swept:
        log.info("garbage collection deleted keys from the store", keys=swept)
    return swept


class FileCollector:
    """Deletes files that nothing refers to; remembers since when each has been unreferenced."""

    def __init__(self, store: Store, params: LogParams | None = None) -> None:
        self._store = store
        self._params = params or LogParams()
        self._unreferenced: dict[str, float] = {}
        self._all_referenced: dict[ModelKeys, set[str]] = {}

    async def collect(self, artifacts: ArtifactStore, catalog: Catalog) -> int:
        """Delete files of deleted models, segments, state files, and files half written; return their number.

        Versions of existing models are collected elsewhere. Skips a model that another process works on, and one whose
        history or log cannot be read.
        """
        swept = await artifacts.sweep_unfinished()
        living = {(one.keys.name, one.keys.incarnation): one.keys for one in catalog}
        found: dict[ModelKeys, set[str]] = {keys: set() for keys in living.values()}
        self._all_referenced = {keys: known for keys, known in self._all_referenced.items() if keys in found}
        now = asyncio.get_running_loop().time()
        before, self._unreferenced = self._unreferenced, {}
        expired = {name for name, since in before.items() if now - since >= UNREFERENCED_SECONDS}
        for name in await artifacts.names():
            match = _ARTIFACT.fullmatch(name)
            if match is None:
                continue
            one = living.get((match["name"], match["incarnation"]))
            if one is not None:
                if name.startswith((f"{one.folder}/history/", f"{state_files.folder(one)}/")):
                    found[one].add(name)
            elif Offset.of_entry(match["incarnation"]) > catalog.offset:
                continue
            elif name in expired:
                await artifacts.delete(name)
                swept += 1
            else:
                self._unreferenced[name] = before.get(name, now)
        for one, names in found.items():
            try:
                unneeded = await self._collect_model(artifacts, one, names, expired) if names else set()
            except Conflict:
                continue
            except (Corrupted, UnknownApplyVersion, UnknownArtifact) as error:
                log.warning("garbage collection of a model's files skipped", model=one.name, reason=str(error))
                continue
            swept += len(unneeded & expired)
            self._unreferenced |= {name: before.get(name, now) for name in unneeded - expired}
        if swept:
            log.info("garbage collection deleted files from the artifact store", files=swept)
        return swept

    async def _collect_model(
        self, artifacts: ArtifactStore, keys: ModelKeys, names: set[str], expired: set[str]
    ) -> set[str]:
        """Delete the files of a model that are unreferenced and expired. Return all unreferenced ones."""
        start = f"{state_files.folder(keys)}/"
        states = {name.removeprefix(start).partition("/")[0] for name in names if name.startswith(start)}
        # A job that dies between writing a state file and adopting it leaves the file. It holds the lease of adoptions
        # until then, and whatever else writes a listed file holds that of the model.
        async with acquire(self._store, keys, purpose=ADOPTION) as lock, acquire(self._store, keys) as lease:
            contents = await History(self._store, artifacts, keys).manifest()
            unneeded = {name for name in names if not name.startswith(start)}
            if contents is not None:
                unneeded -= {segment.name for segment in contents.segments}
            if states and states != self._all_referenced.get(keys):  # they stay referenced until history starts later
                gone = states - await referenced_state_files(self._store, artifacts, keys, self._params)
                await lease.check()
                unneeded |= {start + state for state in gone}
                if not gone:
                    self._all_referenced[keys] = states
            for name in sorted(unneeded & expired):
                await lock.check()
                if name.startswith(start):
                    await state_files.delete(artifacts, keys, name.removeprefix(start))
                else:
                    await artifacts.delete(name)
            return unneeded


async def referenced_state_files(
    store: Store, artifacts: ArtifactStore, keys: ModelKeys, params: LogParams
) -> set[str]:
    """Return the state files that history and log refer to. The caller holds the lease of the model.

    Raises Corrupted if history and log cannot be read without a gap.
    """
    history = History(store, artifacts, keys)
    contents = await history.manifest()
    trim = await stream.trim_of(store, keys.log)
    if not _is_whole(contents, artifacts, trim):
        raise Corrupted(f"the history of {keys.name} is not the one that its log continues")
    needed = set()
    if contents is not None:
        needed = {contents.base.index} if contents.base is not None else set()
        for segment in contents.segments:
            if segment.needs is not None:  # it has an adoption
                needed |= adopted_state_files(await history.elements(segment))
    connection = await store.open_connection("sweep")
    try:
        reading = stream.read(
            connection, keys.log, trim.last, read_bytes=params.read_bytes, seconds=store.params.reply_seconds
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                needed |= adopted_state_files(elements)
    except stream.LogTrimmed as error:
        raise LeaseLost from error
    finally:
        connection.close()
    return needed


def _is_whole(contents: HistoryManifest | None, artifacts: ArtifactStore, trim: stream.Trim) -> bool:
    if contents is None:
        return trim.n_entries == 0
    return contents.artifacts == artifacts.id and contents.end[:2] >= trim.last[:2]
