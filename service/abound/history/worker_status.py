"""Status of the worker's work on a model, published for the replicas.

...:worker-status    hash: ``history``: why the log cannot be archived and trimmed; ``snapshots``: why no snapshot can
                     be made. The hash expires ``KEPT_SECONDS`` after the worker's last report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys

KEPT_SECONDS = 1800  # several times the interval at which a worker retries

MOST_CHARACTERS = 1000


class WorkerStatus(NamedTuple):
    """The last report of the worker."""

    trouble: str | None = None  # why a snapshot cannot be made or the log cannot be trimmed


async def report(store: Store, keys: ModelKeys, **said: str | int | None) -> None:
    """Set fields of the status; None removes a field."""
    key = keys.key("worker-status")
    over = [name for name, value in said.items() if value is None]
    now = {name: str(value)[:MOST_CHARACTERS] for name, value in said.items() if value is not None}
    with store_errors():
        if over:
            await store.client.hdel(key, *over)
        if now:
            async with store.client.pipeline(transaction=True) as pipe:
                pipe.hset(key, mapping=now)
                pipe.expire(key, KEPT_SECONDS)
                await pipe.execute()


def parse(found: Mapping[bytes, bytes]) -> WorkerStatus:
    troubles = [found[name].decode(errors="replace") for name in (b"snapshots", b"history") if name in found]
    return WorkerStatus("; ".join(troubles) or None)
