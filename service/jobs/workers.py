"""The registry of workers: each worker renews its entry regularly, and counts as gone without a recent renewal.

abound:jobs:workers    a hash with one field for each worker
"""

from __future__ import annotations

import msgspec

from abound.service.jobs.record import JOBS
from abound.service.store.client import Store, store_errors

WORKERS_KEY = f"{JOBS}:workers"

FRESH_SECONDS = 10.0
"""A worker whose entry is older does not count."""


class RegisteredWorker(msgspec.Struct, frozen=True):
    """A registered worker: its host, its kinds of jobs, and the most bytes that one job may need."""

    name: str
    host: str
    kinds: list[str]
    memory: int | None
    at: float = 0.0


async def register(store: Store, name: str, host: str, kinds: list[str], memory: int | None) -> None:
    """Register a worker, or renew its entry. Raises StoreUnavailable."""
    with store_errors():
        seconds, microseconds = await store.client.time()
        said = RegisteredWorker(name, host, kinds, memory, int(seconds) + int(microseconds) / 1e6)
        await store.client.hset(WORKERS_KEY, name, msgspec.json.encode(said))


async def unregister(store: Store, name: str) -> None:
    """Remove the entry of a worker that stops. Raises StoreUnavailable."""
    with store_errors():
        await store.client.hdel(WORKERS_KEY, name)


async def registered_for(store: Store, kind: str) -> list[RegisteredWorker]:
    """Return the registered workers that run a kind of jobs, and delete entries that are very old.

    An entry from the future counts as old: the store's clock was set back since.

    Raises StoreUnavailable.
    """
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hgetall(WORKERS_KEY)
            (seconds, _), found = await pipe.execute()
        said = [msgspec.json.decode(packed, type=RegisteredWorker) for packed in found.values()]
        silent = [one.name for one in said if abs(seconds - one.at) > 100 * FRESH_SECONDS]
        if silent:
            await store.client.hdel(WORKERS_KEY, *silent)
    return [one for one in said if kind in one.kinds and abs(seconds - one.at) <= FRESH_SECONDS]
