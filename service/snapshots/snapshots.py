"""Snapshots: the state of a model at an offset, in the store. A start loads one and replays only the rest of the log.

    ...:snapshots                       list of the ids of good snapshots, oldest first: the pointer
    ...:snapshot:<id>:manifest          JSON: position in the log, shapes, the checksum of each part and its own
    ...:snapshot:<id>:<i>               part i of the state's arrays, which are concatenated

Writing:

1. Write the parts.
2. Write the manifest.
3. In one script, under the lease of the model: add the id to the list and remove those beyond the newest ``keep``.
4. Delete the manifests of the removed ones, then their parts.

A process that dies leaves keys that nothing points to, never a pointer to half a snapshot.

Loading takes the newest good one. It checks the format, the model, every checksum including the manifest's own, the
snapshot's entry in the log, and finally the digest of the loaded state. A damaged snapshot is skipped with a warning.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec
import structlog

from abound.core.errors import Corrupted, UnknownApplyVersion, UnknownSnapshot
from abound.core.limits import Limits
from abound.core.model.live_model import LiveModel
from abound.service.artifacts.checksums import checksum_of, seal
from abound.service.log.events import APPLY_VERSION
from abound.service.model.replicated_model import ReplicatedModel
from abound.service.snapshots.arrays import Part, check_part, load_model, parts_of, shapes_of
from abound.service.snapshots.manifest import (
    FORMAT,
    SnapshotManifest,
    ids,
    in_order,
    manifest_key,
    part_key,
    read_manifest,
)
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Lease

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotParams:
    """When snapshots are made and how many are kept.

    Attributes
    ----------
    keep : int, at least 2
        Number of snapshots kept per model.
    part_bytes : int
        Largest part, at most 8 MiB. The store serves no other request while it writes a part.
    every_bytes : int
        A snapshot is due when the log has grown by this many bytes since the newest one.
    every_seconds : float
        A snapshot is also due when the newest one is this old and the model has learned since.
    wanted_seconds : float
        Longest wait for a requested snapshot.
    """

    keep: int = 2
    part_bytes: int = 2**20
    every_bytes: int = 64 * 2**20
    every_seconds: float = 3600.0
    wanted_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError("keep must be at least 2: one may turn out damaged")
        if not 1024 <= self.part_bytes <= 8 * 2**20:
            raise ValueError("part_bytes must be from 1024 to 8388608")
        for name in ("every_bytes", "every_seconds", "wanted_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")


async def write(
    store: Store,
    model: ReplicatedModel,
    params: SnapshotParams,
    lease: Lease,
    between: Callable[[], Awaitable[None]] | None = None,
) -> SnapshotManifest:
    """Write a snapshot of a model. Nothing may be applied to the model meanwhile.

    ``between`` is awaited before each step. An exception from it ends the writing.

    Raises
    ------
    LeaseLost
        Another process has taken over the model; nothing points to what was written.
    StoreUnavailable
    """
    digest = await model.compute_digest()
    arrays = model.live.to_arrays()
    keys, position = model.keys, model.position
    snapshot = f"{position.offset}-{secrets.token_hex(4)}"
    parts = []
    client = store.client
    with store_errors():
        for i, part in enumerate(parts_of(arrays, params.part_bytes)):
            if between is not None:
                await between()
            await client.set(part_key(keys, snapshot, i), part)
            parts.append(Part(len(part), checksum_of(part)))
        seconds, microseconds = await client.time()
        manifest = seal(
            SnapshotManifest(
                id=snapshot,
                format=FORMAT,
                apply_version=APPLY_VERSION,
                model=keys.name,
                incarnation=keys.incarnation,
                offset=str(position.offset),
                entry_checksum=position.checksum.decode(),
                n_entries=position.n_entries,
                log_bytes=position.log_bytes,
                adopted=str(position.adopted),
                digest=str(digest),
                created=seconds * 1000 + microseconds // 1000,
                state=model.live.meta(),
                arrays=shapes_of(arrays),
                parts=parts,
            )
        )
        if between is not None:
            await between()
        await client.set(manifest_key(keys, snapshot), msgspec.json.encode(manifest))
    old = in_order([snapshot, *await ids(store, keys)])[params.keep :]
    pointer = keys.key("snapshots")
    await lease.swap([("RPUSH", pointer, snapshot), *(("LREM", pointer, 0, name) for name in old)])
    for name in old:
        await _drop(store, keys, name)
    return manifest


async def load(
    store: Store,
    keys: ModelKeys,
    manifest: SnapshotManifest,
    limits: Limits,
    progress: Callable[[float], None] = lambda done: None,
) -> LiveModel:
    """Load the state of a snapshot.

    Raises
    ------
    Corrupted
        A part is missing or damaged, or the state has another digest.
    """
    return await load_model(
        manifest.state,
        manifest.arrays,
        manifest.size,
        manifest.digest,
        read_parts(store, keys, manifest),
        limits,
        progress,
    )


async def delete_incarnation(store: Store, keys: ModelKeys) -> None:
    """Delete all keys of an incarnation from the store, for a deleted model."""
    with store_errors():
        async for key in store.client.scan_iter(match=keys.pattern, count=1000):
            await store.client.unlink(key)


async def unlisted_keys(store: Store, keys: ModelKeys) -> dict[str, list[bytes]]:
    """Return the keys of snapshots that the list does not have, by id.

    The holder of the model's lease may delete them: another process that is writing one of them will not point to it.
    """
    prefix = keys.key("snapshot:")
    found: dict[str, list[bytes]] = {}
    with store_errors():
        async for key in store.client.scan_iter(match=keys.pattern[:-1] + b"snapshot:*", count=1000):
            found.setdefault(key[len(prefix) :].rpartition(b":")[0].decode(), []).append(key)
    for name in await ids(store, keys):
        found.pop(name, None)
    return found


async def _drop(store: Store, keys: ModelKeys, name: str) -> None:
    """Delete a snapshot that was removed from the list."""
    try:
        n_parts = len((await read_manifest(store, keys, name)).parts)
    except (Corrupted, UnknownApplyVersion, UnknownSnapshot):
        n_parts = 0  # garbage collection deletes its parts
    with store_errors():
        await store.client.unlink(manifest_key(keys, name), *(part_key(keys, name, i) for i in range(n_parts)))


async def read_parts(store: Store, keys: ModelKeys, manifest: SnapshotManifest) -> AsyncIterator[bytes]:
    """Yield the parts of a snapshot in order. Corrupted if one is missing or damaged. StoreUnavailable."""
    for i, expected in enumerate(manifest.parts):
        with store_errors():
            part = await store.client.get(part_key(keys, manifest.id, i))
        if part is None:
            raise Corrupted(f"its part {i} is missing")
        check_part(i, part, expected)
        yield part
