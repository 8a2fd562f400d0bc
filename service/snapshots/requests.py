"""Requests for snapshots, and the workers that make them."""

from __future__ import annotations

from abound.core.errors import NotReady
from abound.core.types import Offset
from abound.service.asyncio_tasks import wait_until
from abound.service.snapshots import snapshots
from abound.service.snapshots.state_image import StateManifest
from abound.service.store import expiring
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys

WORKERS_KEY = b"abound:workers"
WORKER_FRESH_SECONDS = 10.0
POLL_SECONDS = 0.1


async def live_workers(store: Store) -> list[str]:
    """Return the live workers: each keeps an expiring record (``service/store/expiring.py``)."""
    return list(await expiring.live(store, WORKERS_KEY, WORKER_FRESH_SECONDS))


def parse(text: bytes | None) -> Offset | None:
    """Return the offset that a requested snapshot must have reached; None if no snapshot is requested."""
    try:
        return Offset.parse(text.decode()) if text else None
    except ValueError:
        return None


async def request_snapshot(store: Store, keys: ModelKeys, offset: Offset, timeout: float) -> StateManifest:  # noqa: ASYNC109
    """Request a snapshot at ``offset`` or past it and wait until it exists.

    Raises
    ------
    NotReady
        No worker is running, or it has not made the snapshot within ``timeout`` seconds; it may still do so.
    StoreUnavailable
    """
    if not await live_workers(store):
        raise NotReady("no worker is running to make a snapshot: start one with `abound worker`", retry_after=5.0)
    with store_errors():
        await store.client.set(keys.key("snapshot-wanted"), str(offset), ex=max(1, int(timeout)))

    async def made() -> StateManifest | None:
        manifest = await snapshots.newest(store, keys)
        return manifest if manifest is not None and manifest.position.offset >= offset else None

    manifest = await wait_until(made, POLL_SECONDS, timeout)
    if manifest is None:
        raise NotReady("the worker is busy and has not made the snapshot yet; try again later", retry_after=5.0)
    return manifest
