"""Garbage collection: deletes keys of the store and files of the artifact store that nothing refers to.

A process that dies, or loses its lease, between writing and pointing leaves such keys and files. So do deleted models.
The catalog is read before anything is listed: a model that is created afterwards has a higher offset and is left alone.

A file is deleted only once it has been unreferenced in every pass of the last hour. The store may lose its last
seconds, or fail over to a server that is behind, and then refers to the file or has the model again. A backup saves the
store first and copies the files afterwards (``docs/guides/backups.md``). Keys in the store need no such delay, because
they return together with the pointer.

The catalog lists all incarnations that are needed: those of models, of unfinished replacements, and of replaced models
that are kept for an undo. Everything of another incarnation is garbage.
"""

from __future__ import annotations

import asyncio
import re

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import History, HistoryManifest
from abound.log import stream
from abound.log.catalog import Catalog
from abound.log.closing import delete_log
from abound.state import snapshots, state_files
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import acquire
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
    living = {(keys.name.encode(), keys.incarnation.encode()): keys for keys in catalog.incarnations()}
    found: dict[ModelKeys, list[tuple[bytes, str]]] = {}
    with store_errors():
        async for key in store.client.scan_iter(match="abound:{*", count=1000):
            match = _TAG.fullmatch(key)
            if match is None:
                continue
            one = living.get((match["name"], match["incarnation"]))
            if one is None:
                if Offset.of_entry(match["incarnation"]) <= catalog.offset:
                    is_log = match["part"] == b"log"
                    swept += await (delete_log(store, key) if is_log else store.client.unlink(key))
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

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unreferenced: dict[str, float] = {}

    async def collect(self, artifacts: ArtifactStore, catalog: Catalog) -> int:
        """Delete files of deleted models, segments, state files, and files half written; return their number.

        Versions of existing models are collected elsewhere. Skips a model that another process works on, and one whose
        history or log cannot be read.
        """
        swept = await artifacts.sweep_unfinished()
        living = {(keys.name, keys.incarnation): keys for keys in catalog.incarnations()}
        coming = {one.keys for one in catalog.coming.values()}  # their files have no reference yet
        found: dict[ModelKeys, set[str]] = {keys: set() for keys in living.values()}
        now = asyncio.get_running_loop().time()
        before, self._unreferenced = self._unreferenced, {}
        expired = {name for name, since in before.items() if now - since >= UNREFERENCED_SECONDS}
        for name in await artifacts.names():
            match = _ARTIFACT.fullmatch(name)
            if match is None:
                continue
            one = living.get((match["name"], match["incarnation"]))
            if one in coming:
                continue
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
        async with acquire(self._store, keys) as lease:  # whatever writes a listed file holds it
            contents = await History(self._store, artifacts, keys).manifest()
            if not _is_whole(contents, artifacts, await stream.trim_of(self._store, keys.log)):
                raise Corrupted(f"the history of {keys.name} is not the one that its log continues")
            start = f"{state_files.folder(keys)}/"
            listed: set[str] = set()
            if contents is not None:
                states = {one.index for one in (contents.base, contents.refitted) if one is not None}
                listed = {segment.name for segment in contents.segments}
                listed |= {name for name in names if name.removeprefix(start).partition("/")[0] in states}
            unneeded = names - listed
            for name in sorted(unneeded & expired):
                await lease.check()
                await artifacts.delete(name)
            return unneeded


def _is_whole(contents: HistoryManifest | None, artifacts: ArtifactStore, trim: stream.Trim) -> bool:
    if contents is None:
        return trim.n_entries == 0
    return contents.artifacts == artifacts.id and contents.end[:2] >= trim.last[:2]
