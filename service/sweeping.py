"""Sweeping: what nothing points to is taken out of the store and out of the artifact store.

Such things are left by whoever died, or was too late, between writing and pointing, and by models that were deleted.

1. the catalog is read before anything is listed: a model that comes meanwhile is newer than its end, and stays
2. what there is, is listed
3. the lease of the model is taken: whoever was writing what was listed has pointed to it, or never will
4. the pointer is read; what was listed and is not pointed to goes

A file that was pointed to, or of a model that was deleted, goes one sweep later. The store may lose its last seconds,
or fail over to one that has not come so far, and then points to it again, or has the model again; what lies in the
store itself comes back with the pointer.
"""

from __future__ import annotations

import re

import structlog

from core.errors import Conflict
from core.types import Offset
from service import indexes
from service import manifest as manifests
from service.archive import BASE_PREFIX
from service.artifacts import Artifacts
from service.catalog import Catalog, ModelKeys
from service.history import History, folder
from service.lease import take
from service.log import mended_key
from service.store import Store, reaching

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
        elif name.startswith((folder(one, "history/"), f"{indexes.folder(one)}/{BASE_PREFIX}")):
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
