"""The workers that are there to do jobs: each says so now and then, and is taken for gone when it falls silent.

abound:jobs:workers    a field a worker: what it says of itself
"""

from __future__ import annotations

import msgspec

from abound.service.jobs.record import JOBS
from abound.service.store.client import Store, reaching

WORKERS_KEY = f"{JOBS}:workers"

FRESH_SECONDS = 10.0
"""A worker that has not said for so long that it is there is not."""


class Workplace(msgspec.Struct, frozen=True):
    """A worker as it says of itself: what kinds of jobs it does, where, and the most bytes that a job may need."""

    name: str
    host: str
    kinds: list[str]
    memory: int | None
    at: float = 0.0


async def show(store: Store, name: str, host: str, kinds: list[str], memory: int | None) -> None:
    """A worker says that it is there. StoreUnavailable."""
    with reaching():
        seconds, microseconds = await store.client.time()
        said = Workplace(name, host, kinds, memory, int(seconds) + int(microseconds) / 1e6)
        await store.client.hset(WORKERS_KEY, name, msgspec.json.encode(said))


async def hide(store: Store, name: str) -> None:
    """A worker says that it stops. StoreUnavailable."""
    with reaching():
        await store.client.hdel(WORKERS_KEY, name)


async def of_kind(store: Store, kind: str) -> list[Workplace]:
    """The workers that are there for a kind of jobs; those that have been silent for long are taken out.

    Words from the future are old: the store's clock was set back since.

    StoreUnavailable.
    """
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hgetall(WORKERS_KEY)
            (seconds, _), found = await pipe.execute()
        said = [msgspec.json.decode(packed, type=Workplace) for packed in found.values()]
        silent = [one.name for one in said if abs(seconds - one.at) > 100 * FRESH_SECONDS]
        if silent:
            await store.client.hdel(WORKERS_KEY, *silent)
    return [one for one in said if kind in one.kinds and abs(seconds - one.at) <= FRESH_SECONDS]
