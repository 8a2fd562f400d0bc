"""Forgettings that are complete: history has none of their events any more, so their adoptions say nothing.

    ...:forgotten    set: the entries of such adoptions; changed in the moment in which history is written anew

An index that leaves out events is what history makes once it is without them. So the next forgetting, which writes
history anew anyway, puts a mark in the place of such an adoption: no former index has to be made anew or kept. Not at
once: whoever has read events out of history before that was written anew, and reads on in it, must find the adoption.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.types import Offset
from service.catalog import ModelKeys
from service.events import Adopt, Mark
from service.lease import Command
from service.store import Store, reaching


async def complete(store: Store, keys: ModelKeys) -> set[Offset]:
    """Where the adoptions of complete forgettings are. StoreUnavailable."""
    with reaching():
        return {Offset.of_entry(name) for name in await store.client.smembers(_key(keys))}


def saying(keys: ModelKeys, adoptions: Iterable[Offset]) -> list[Command]:
    """What says that these are complete, and no others."""
    return [("DEL", _key(keys)), *(("SADD", _key(keys), at.entry) for at in sorted(adoptions))]


def mark_of(adopt: Adopt) -> Mark:
    """What takes an adoption's place."""
    return Mark(mark_token(adopt.adoption))


def mark_token(adoption: str) -> str:
    """The token of the mark that takes an adoption's place."""
    return f"adopted {adoption}"


def _key(keys: ModelKeys) -> bytes:
    return keys.of("forgotten")
