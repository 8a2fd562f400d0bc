"""Snapshots: the state of a model at an offset, in the store. A start loads one and replays only the rest of the log.

    ...:snapshots                       list of the ids of good snapshots, oldest first: the pointer
    ...:snapshot:<id>:manifest          JSON: position in the log, shapes, the checksum of each part and its own
    ...:snapshot:<id>:<i>               part i of the state's arrays, which are concatenated

A process that dies leaves keys that nothing points to, never a pointer to half a snapshot. The worker deletes such keys
before it makes the next snapshot of the model.

Loading takes the newest good one. It checks the format, the model, every checksum including the manifest's own, the
snapshot's entry in the log, and finally the digest of the loaded state. A damaged snapshot is skipped with a warning.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from abound.log.closing import delete_log
from abound.state import state_image
from abound.state.replicated_model import ReplicatedModel
from abound.state.state_image import MANIFEST, StateManifest
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import Lease
from abound_core.errors import Corrupted, StoreUnavailable, UnknownApplyVersion, UnknownSnapshot
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset

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


def file_key(keys: ModelKeys, name: str, file: str | int) -> bytes:
    return keys.key(f"snapshot:{name}:{file}")


async def write(
    store: Store, model: ReplicatedModel, params: SnapshotParams, lease: Lease, between: Callable[[], Awaitable[None]]
) -> StateManifest:
    """Write a snapshot of a model. Nothing may be applied to the model meanwhile.

    ``between`` is awaited before each step. An exception from it ends the writing. After LeaseLost nothing points to
    what was written.
    """
    keys, position = model.keys, model.position
    name = f"{position.offset}-{secrets.token_hex(4)}"
    created = int(await store.now() * 1000)
    written: list[bytes] = []

    async def put(file: str, data: bytes) -> None:
        written.append(file_key(keys, name, file))
        with store_errors():
            await store.client.set(written[-1], data)

    try:
        manifest = await state_image.write(
            put, keys, name, model.live, position, params.part_bytes, between, created=created
        )
    except BaseException:
        if written:
            with contextlib.suppress(StoreUnavailable), store_errors():
                await store.client.unlink(*written)
        raise
    # In one script, under the lease: add the id to the list and remove those beyond the newest ``keep``.
    old = _newest_first([name, *await ids(store, keys)])[params.keep :]
    pointer = keys.key("snapshots")
    await lease.swap([("RPUSH", pointer, name), *(("LREM", pointer, 0, other) for other in old)])
    # Manifest first: without it nothing reads the parts.
    for other in old:
        await _drop(store, keys, other)
    return manifest


async def ids(store: Store, keys: ModelKeys) -> list[str]:
    """Return the ids of a model's snapshots, newest first."""
    with store_errors():
        found = await store.client.lrange(keys.key("snapshots"), 0, -1)
    return _newest_first([name.decode() for name in found])


def offset_in(name: str) -> Offset:
    """Return the offset in a snapshot's id; START without one, so that such a snapshot sorts as the oldest."""
    try:
        return Offset.parse(name.rpartition("-")[0])
    except ValueError:
        return START


async def read_manifests(store: Store, keys: ModelKeys) -> list[StateManifest]:
    good = []
    for name in await ids(store, keys):
        try:
            good.append(await read_manifest(store, keys, name))
        except (Corrupted, UnknownApplyVersion, UnknownSnapshot) as error:
            log.warning("a snapshot cannot be used", model=keys.name, snapshot=name, reason=str(error))
    return good


async def newest(store: Store, keys: ModelKeys, known: StateManifest | None = None) -> StateManifest | None:
    """Return the newest readable manifest. If it is ``known``, it is not read again."""
    for name in await ids(store, keys):
        if known is not None and known.id == name:
            return known
        with contextlib.suppress(Corrupted, UnknownApplyVersion, UnknownSnapshot):
            return await read_manifest(store, keys, name)
    return None


async def read_manifest(store: Store, keys: ModelKeys, name: str) -> StateManifest:
    return state_image.parse_own(await _get(store, keys, name, MANIFEST), "its manifest", keys, name)


def read_parts(store: Store, keys: ModelKeys, manifest: StateManifest) -> AsyncIterator[bytes]:
    return state_image.read_parts(partial(_get, store, keys, manifest.id), manifest)


async def load(
    store: Store,
    keys: ModelKeys,
    manifest: StateManifest,
    limits: Limits,
    progress: Callable[[float], None] = lambda done: None,
) -> LiveModel:
    return await state_image.load(manifest, read_parts(store, keys, manifest), limits, progress)


async def delete_incarnation(store: Store, keys: ModelKeys) -> None:
    with store_errors():
        async for key in store.client.scan_iter(match=keys.pattern, count=1000):
            await (delete_log(store, key) if key == keys.log else store.client.unlink(key))


async def delete_others(store: Store, name: str, is_needed: Callable[[ModelKeys], bool]) -> None:
    """Delete the keys of all incarnations of a model that are not needed."""
    found: set[ModelKeys] = set()
    with store_errors():
        async for key in store.client.scan_iter(match=ModelKeys(name, "*").pattern, count=1000):
            found.add(ModelKeys(name, key.split(b"}", 1)[0].rpartition(b":")[2].decode()))
    for keys in sorted(found, key=lambda one: one.incarnation):
        if not is_needed(keys):
            await delete_incarnation(store, keys)


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


async def drop_unlisted(store: Store, keys: ModelKeys, lease: Lease) -> None:
    found = await unlisted_keys(store, keys)
    await lease.swap(("UNLINK", key) for some in found.values() for key in some)


def _newest_first(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (offset_in(name), name), reverse=True)


async def _get(store: Store, keys: ModelKeys, name: str, file: str) -> bytes:
    with store_errors():
        data: bytes | None = await store.client.get(file_key(keys, name, file))
    if data is not None:
        return data
    if file == MANIFEST:
        raise UnknownSnapshot(f"the model {keys.name} has no snapshot {name}")
    raise Corrupted(f"its part {file} is missing")


async def _drop(store: Store, keys: ModelKeys, name: str) -> None:
    try:
        n_parts = len((await read_manifest(store, keys, name)).parts)
    except (Corrupted, UnknownApplyVersion, UnknownSnapshot):
        n_parts = 0  # garbage collection deletes its parts
    with store_errors():
        await store.client.unlink(*(file_key(keys, name, file) for file in (MANIFEST, *range(n_parts))))
