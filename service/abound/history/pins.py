"""Pins: offsets that a process still needs. Retention keeps history after the oldest pin.

    ...:pins    expiring records (``abound/store/expiring.py``): name -> offset

Trimming the log needs no pins, because trimmed entries are in history.
"""

from __future__ import annotations

import contextlib

from abound.store import expiring
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound_core.types import Offset

PIN_SECONDS = 600


async def pin(store: Store, keys: ModelKeys, name: str, offset: Offset) -> None:
    """Pin the entries after ``offset`` for ``PIN_SECONDS``, or renew the pin of this name."""
    await expiring.put(store, keys.key("pins"), name, str(offset).encode())


async def unpin(store: Store, keys: ModelKeys, name: str) -> None:
    await expiring.remove(store, keys.key("pins"), name)


def hold_pin(store: Store, keys: ModelKeys, name: str, offset: Offset) -> contextlib.AbstractAsyncContextManager[None]:
    return expiring.hold(store, keys.key("pins"), name, str(offset).encode(), PIN_SECONDS / 4)


async def oldest(store: Store, keys: ModelKeys) -> Offset | None:
    pins = await expiring.live(store, keys.key("pins"), PIN_SECONDS)
    return min((Offset.parse(one.payload.decode()) for one in pins.values()), default=None)
