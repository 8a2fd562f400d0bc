"""The schedule of snapshots: when a snapshot of a model is due, how one is requested, and which workers make them.

A snapshot is due when

* one was requested (key ``snapshot-wanted``), or
* the log has grown by ``every_bytes`` since the newest one, or
* the newest one is ``every_seconds`` old and the log has new entries. Without a snapshot, the model's creation counts.
"""

from __future__ import annotations

import msgspec

from abound.log.stream import Trim, trimmed_key
from abound.state import replica_status, snapshots
from abound.state.snapshots import SnapshotParams
from abound.state.state_image import StateManifest
from abound.store import expiring
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.tasks import wait_until
from abound_core.errors import NotReady
from abound_core.types import Offset

WORKERS_KEY = b"abound:workers"  # expiring records: id of a worker -> JSON list of the kinds of jobs that it runs

WORKER_FRESH_SECONDS = 10.0
POLL_SECONDS = 0.1


async def live_workers(store: Store) -> dict[str, list[str]]:
    found = await expiring.live(store, WORKERS_KEY, WORKER_FRESH_SECONDS)
    return {name: msgspec.json.decode(one.payload, type=list[str]) for name, one in found.items()}


async def request_snapshot(store: Store, keys: ModelKeys, offset: Offset, timeout: float) -> StateManifest:  # noqa: ASYNC109
    """Request a snapshot at ``offset`` or past it and wait until it exists.

    Raises NotReady if no worker is running, or it has not made the snapshot in ``timeout`` seconds; it may still do so.
    """
    if not await live_workers(store):
        raise NotReady("no worker is running yet to make a snapshot: wait, or start `abound worker`", retry_after=5.0)
    wanted = keys.key("snapshot-wanted")

    async def made() -> StateManifest | None:
        manifest = await snapshots.newest(store, keys)
        if manifest is not None and manifest.position.offset >= offset:
            return manifest
        with store_errors():
            asked = _requested(await store.client.get(wanted))
            if asked is None or asked < offset:  # in each round, because another request may be written meanwhile
                await store.client.set(wanted, str(offset), ex=max(1, int(timeout)))
        return None

    manifest = await wait_until(made, POLL_SECONDS, timeout)
    if manifest is None:
        raise NotReady("the worker is busy and has not made the snapshot yet; try again later", retry_after=5.0)
    return manifest


async def why_due(store: Store, keys: ModelKeys, newest: StateManifest | None, params: SnapshotParams) -> str | None:
    """Return why a snapshot is due, given the newest one; None if none is. One round trip while nothing is learned."""
    async with store.client.pipeline(transaction=False) as pipe:
        pipe.get(keys.key("snapshot-wanted"))
        pipe.xlen(keys.log)
        pipe.get(trimmed_key(keys.log))
        pipe.time()
        with store_errors():
            text, n_held, trimmed, (seconds, _) = await pipe.execute()
    asked = _requested(text)
    if asked is not None and (newest is None or newest.position.offset < asked):
        return "requested"
    if n_held + Trim.parse(trimmed).n_entries <= (newest.n_entries if newest else 0):
        return None
    made = newest.created if newest else int(keys.incarnation.partition("-")[0])
    age = seconds - made / 1000
    if age > params.every_seconds or age < -1.0:  # negative: the store's clock was set back
        return "the newest is too old"
    sizes = [replica.log_bytes for replica in await replica_status.live_replicas(store, keys)]
    grown = max(sizes, default=0) - (newest.log_bytes if newest else 0)
    return "the log has grown" if grown > params.every_bytes else None


def _requested(text: bytes | None) -> Offset | None:
    try:
        return Offset.parse(text.decode()) if text else None
    except ValueError:
        return None
