"""Pins: offsets that a process still needs. Retention keeps history after the oldest pin.

    ...:pins    hash: random token -> offset, and the second at which the pin expires by the store's clock

The owner renews its pin. A pin that is not renewed expires, even if the store's clock was set back. Trimming the log
needs no pins, because trimmed entries are in history.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import NamedTuple

from abound.core.types import Offset
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys

PIN_SECONDS = 600
"""Lifetime of a pin, and the longest that can be given."""


class Pin(NamedTuple):
    """A pin: retention keeps the entries after ``offset`` until the pin is removed or expires."""

    keys: ModelKeys
    token: str
    offset: Offset


async def pin(store: Store, keys: ModelKeys, offset: Offset, seconds: int = PIN_SECONDS) -> Pin:
    """Pin the entries after ``offset`` for ``seconds``."""
    made = Pin(keys, secrets.token_hex(8), offset)
    await renew(store, made, seconds)
    return made


async def renew(store: Store, made: Pin, seconds: int = PIN_SECONDS) -> None:
    """Extend a pin to ``seconds`` from now, at most ``PIN_SECONDS``."""
    with store_errors():
        now, _ = await store.client.time()
        await store.client.hset(made.keys.key("pins"), made.token, f"{made.offset} {now + min(seconds, PIN_SECONDS)}")


async def remove(store: Store, made: Pin) -> None:
    """Remove a pin."""
    with store_errors():
        await store.client.hdel(made.keys.key("pins"), made.token)


async def oldest(store: Store, keys: ModelKeys) -> Offset | None:
    """Return the least pinned offset, and remove pins that have expired or cannot be read.

    A pin that would hold for much longer than ``PIN_SECONDS`` was made before the store's clock was set back. It does
    not count until its owner renews it.
    """
    with store_errors():
        now, _ = await store.client.time()
        pins = await store.client.hgetall(keys.key("pins"))
    offsets = []
    ended = []
    for token, text in pins.items():
        offset = None
        with contextlib.suppress(ValueError):
            words = text.decode().split()
            if len(words) == 2 and now <= int(words[1]) <= now + 2 * PIN_SECONDS:
                offset = Offset.parse(words[0])
        if offset is None:
            ended.append(token)
        else:
            offsets.append(offset)
    if ended:
        with store_errors():
            await store.client.hdel(keys.key("pins"), *ended)
    return min(offsets, default=None)
