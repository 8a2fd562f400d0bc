"""The registry of workers: each worker renews its entry regularly, and counts as gone without a recent renewal.

abound:jobs:workers    expiring records (``service/store/expiring.py``): name -> JSON of ``RegisteredWorker``
"""

from __future__ import annotations

import msgspec

from abound.service.jobs.record import JOBS
from abound.service.store import expiring
from abound.service.store.client import Store

WORKERS_KEY = f"{JOBS}:workers".encode()

FRESH_SECONDS = 10.0


class RegisteredWorker(msgspec.Struct, frozen=True):
    """A registered worker: its host, its kinds of jobs, and the most bytes that one job may need."""

    name: str
    host: str
    kinds: list[str]
    memory: int | None


async def register(store: Store, worker: RegisteredWorker) -> None:
    """Register a worker, or renew its entry. Raises StoreUnavailable."""
    await expiring.put(store, WORKERS_KEY, worker.name, msgspec.json.encode(worker))


async def registered_for(store: Store, kind: str) -> list[RegisteredWorker]:
    """Return the registered workers that run a kind of jobs. Raises StoreUnavailable."""
    found = (await expiring.live(store, WORKERS_KEY, FRESH_SECONDS)).values()
    workers = [msgspec.json.decode(one.payload, type=RegisteredWorker) for one in found]
    return [one for one in workers if kind in one.kinds]
