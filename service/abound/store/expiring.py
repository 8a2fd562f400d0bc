"""Expiring records: fields of a hash that their owners renew. A record that is not renewed expires.

    a hash    name -> seconds since 1970 of the last renewal, a space, and the payload

All times come from the store's clock. When it is set back, records lie in the future; a reader then dates them now.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from abound.store.client import Store, store_errors
from abound.tasks import cancel_and_wait, forever
from abound_core.errors import StoreUnavailable

MAX_AHEAD_SECONDS = 1.0


class ExpiringRecord(NamedTuple):
    payload: bytes
    age: float  # seconds since the last renewal


async def put(store: Store, key: bytes, name: str, payload: bytes = b"") -> None:
    await put_all(store, [(key, name, payload)])


async def put_all(store: Store, records: Iterable[tuple[bytes, str, bytes]]) -> None:
    now = await store.now()
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            for key, name, payload in records:
                pipe.hset(key, name, pack(now, payload))
            await pipe.execute()


async def remove(store: Store, key: bytes, *names: str) -> None:
    with store_errors():
        await store.client.hdel(key, *names)


async def live(store: Store, key: bytes, seconds: float) -> dict[str, ExpiringRecord]:
    """Return the records renewed in the last ``seconds``, ordered by name; delete all others."""
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hgetall(key)
            (whole, microseconds), packed = await pipe.execute()
        now = whole + microseconds / 1e6
        found, ahead, expired = {}, {}, []
        for name, text in sorted(packed.items()):
            at, _, payload = text.partition(b" ")
            age = now - float(at)
            if age < -MAX_AHEAD_SECONDS:
                ahead[name] = pack(now, payload)
            if age > seconds:
                expired.append(name)
            else:
                found[name.decode()] = ExpiringRecord(payload, max(0.0, age))
        if ahead:
            await store.client.hset(key, mapping=ahead)
        if expired:
            await store.client.hdel(key, *expired)
    return found


@contextlib.asynccontextmanager
async def hold(store: Store, key: bytes, name: str, payload: bytes, every: float) -> AsyncIterator[None]:
    """Keep a record while the context lasts; renew it after ``every`` seconds. StoreUnavailable if it cannot be set."""
    await put(store, key, name, payload)
    renewing = asyncio.create_task(forever(lambda: put(store, key, name, payload), every, at_once=False))
    try:
        yield
    finally:
        await cancel_and_wait(renewing)
        with contextlib.suppress(StoreUnavailable):
            await remove(store, key, name)


def pack(at: float, payload: bytes) -> bytes:
    return b"%.6f %b" % (at, payload)
