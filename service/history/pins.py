"""Pins: an offset that somebody still needs, so that retention keeps history from there on.

    ...:pins    hash: a token of whoever pins -> offset and, by the store's clock, the second at which it ends

Who pins renews it; one that is forgotten ends by itself, also when the store's
clock was set back since. Trimming the log needs no pins: what is trimmed is in history.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import NamedTuple

from abound.core.types import Offset
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys

PIN_SECONDS = 600
"""How long a pin holds, and the longest that it can."""


class Pin(NamedTuple):
    """A pin that was made: ``renew`` and ``remove`` take it."""

    keys: ModelKeys
    token: str
    offset: Offset


async def pin(store: Store, keys: ModelKeys, offset: Offset, seconds: int = PIN_SECONDS) -> Pin:
    """Keep what comes after ``offset`` for so many seconds."""
    made = Pin(keys, secrets.token_hex(8), offset)
    await renew(store, made, seconds)
    return made


async def renew(store: Store, made: Pin, seconds: int = PIN_SECONDS) -> None:
    """Keep it for so many seconds from now, at most ``PIN_SECONDS``."""
    with reaching():
        now, _ = await store.client.time()
        await store.client.hset(made.keys.of("pins"), made.token, f"{made.offset} {now + min(seconds, PIN_SECONDS)}")


async def remove(store: Store, made: Pin) -> None:
    """Let go of it."""
    with reaching():
        await store.client.hdel(made.keys.of("pins"), made.token)


async def oldest(store: Store, keys: ModelKeys) -> Offset | None:
    """The least offset that is pinned; those that have ended, or cannot be read, are taken out.

    One that would hold for much longer than it can was made before the store's clock was set back: it does not count
    until whoever made it renews it.
    """
    with reaching():
        now, _ = await store.client.time()
        pins = await store.client.hgetall(keys.of("pins"))
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
        with reaching():
            await store.client.hdel(keys.of("pins"), *ended)
    return min(offsets, default=None)
