"""Write marks: they protect files that are being written, which nothing refers to yet, from garbage collection.

    a hash    name -> the second, by the store's clock, at which the mark expires
              <name>.bytes -> the size of the file, if it is known

The writer renews its mark. The mark of a writer that died expires, even if the store's clock was set back. A mark that
would hold longer than ``WRITING_SECONDS`` is shortened to that, and a live writer renews it within this time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from abound.core.errors import StoreUnavailable
from abound.service.store.client import Store, store_errors
from abound.service.tasks import cancel_and_wait

WRITING_SECONDS = 600
"""Lifetime of a mark, and the longest that is possible."""

_BYTES = ".bytes"


@contextlib.asynccontextmanager
async def hold_write_mark(store: Store, key: bytes, name: str, n_bytes: int = 0) -> AsyncIterator[None]:
    """Hold a write mark while the context lasts. StoreUnavailable if it cannot be set."""
    await _say(store, key, name, n_bytes)
    keeping = asyncio.create_task(_renew_mark(store, key, name))
    try:
        yield
    finally:
        await cancel_and_wait(keeping)
        with contextlib.suppress(StoreUnavailable), store_errors():
            await store.client.hdel(key, name, name + _BYTES)


async def marked_writes(store: Store, key: bytes) -> dict[str, int]:
    """Return the names with a write mark, and the size of each file; 0 if it is not known. StoreUnavailable."""
    with store_errors():
        now, _ = await store.client.time()
        said = {name.decode(): text for name, text in (await store.client.hgetall(key)).items()}
    ends = {name: int(text) for name, text in said.items() if not name.endswith(_BYTES) and text.isdigit()}
    too_late = {name: str(now + WRITING_SECONDS) for name, end in ends.items() if end > now + WRITING_SECONDS}
    if too_late:
        with store_errors():
            await store.client.hset(key, mapping=too_late)
    return {name: int(said.get(name + _BYTES, b"0")) for name, end in ends.items() if end >= now}


async def _say(store: Store, key: bytes, name: str, n_bytes: int = 0) -> None:
    with store_errors():
        now, _ = await store.client.time()
        told = {name: str(now + WRITING_SECONDS)} | ({name + _BYTES: str(n_bytes)} if n_bytes else {})
        await store.client.hset(key, mapping=told)


async def _renew_mark(store: Store, key: bytes, name: str) -> None:
    while True:
        await asyncio.sleep(WRITING_SECONDS / 10)
        with contextlib.suppress(StoreUnavailable):
            await _say(store, key, name)
