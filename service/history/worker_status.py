"""Upkeep: what the worker says of its work on a model, for those who watch replicas and not its log.

...:upkeep    hash: ``history``: why the log is not moved to history and trimmed; ``snapshots``: why none can be made;
              ``index_bytes``. Gone ``KEPT_SECONDS`` after the worker said something last
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys

KEPT_SECONDS = 1800
"""Several times as long as a worker takes to try again."""

MOST_CHARACTERS = 1000


class Upkeep(NamedTuple):
    """What the worker said last.

    Attributes
    ----------
    trouble : str or None
        Why a snapshot cannot be made, or the log not be trimmed.
    index_bytes : int
        Of the indexes in the artifact store that were made to be adopted.
    """

    trouble: str | None = None
    index_bytes: int = 0


async def say(store: Store, keys: ModelKeys, **said: str | int | None) -> None:
    """Say some of it, or (None) that it is over. StoreUnavailable."""
    key = keys.of("upkeep")
    over = [name for name, value in said.items() if value is None]
    now = {name: str(value)[:MOST_CHARACTERS] for name, value in said.items() if value is not None}
    with reaching():
        if over:
            await store.client.hdel(key, *over)
        if now:
            async with store.client.pipeline(transaction=True) as pipe:
                pipe.hset(key, mapping=now)
                pipe.expire(key, KEPT_SECONDS)
                await pipe.execute()


def parse(found: Mapping[bytes, bytes]) -> Upkeep:
    """What a model's hash says."""
    troubles = [found[name].decode(errors="replace") for name in (b"snapshots", b"history") if name in found]
    size = found.get(b"index_bytes", b"")
    return Upkeep("; ".join(troubles) or None, int(size) if size.isdigit() else 0)
