"""Forgettings that are complete: history has none of their events any more, so their adoptions say nothing.

    ...:forgotten     set: the entries of such adoptions; changed in the moment in which history is written anew
    ...:forgetting    hash: job -> ``Unfinished``, from between its commit and its adoption until that moment

An index that leaves out events is what history makes once it is without them. So the next forgetting, which writes
history anew anyway, puts a mark in the place of such an adoption: no former index has to be made anew or kept. Not at
once: whoever has read events out of history before that was written anew, and reads on in it, must find the adoption.

One that died in between, or was given up, is still adopted, and history still has its events: the next forgetting
leaves them out as well, and whatever else is made of history has to wait for that.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from abound.core.errors import Damaged
from abound.core.types import Offset
from abound.service.log.events import Adopt, Mark
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Command


class Unfinished(msgspec.Struct, frozen=True):
    """What a job forgets: the events up to ``after`` that fulfil all that is given, as ``ForgetParams`` has it."""

    after: str
    key: str | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None


_unfinished = msgspec.json.Decoder(Unfinished)


async def complete(store: Store, keys: ModelKeys) -> set[Offset]:
    """Where the adoptions of complete forgettings are. StoreUnavailable."""
    with reaching():
        return {Offset.of_entry(name) for name in await store.client.smembers(_key(keys))}


def saying(keys: ModelKeys, adoptions: Iterable[Offset], jobs: Iterable[str]) -> list[Command]:
    """What says that these adoptions are of complete forgettings, and no others, and that these jobs have done it."""
    return [
        ("DEL", _key(keys)),
        *(("SADD", _key(keys), at.entry) for at in sorted(adoptions)),
        *(("HDEL", _unfinished_key(keys), job) for job in sorted(jobs)),
    ]


async def begin(store: Store, keys: ModelKeys, job: str, what: Unfinished) -> None:
    """Say what a job is about to forget. StoreUnavailable."""
    with reaching():
        await store.client.hset(_unfinished_key(keys), job, msgspec.json.encode(what))


async def end(store: Store, keys: ModelKeys, jobs: Iterable[str]) -> None:
    """Say that history has nothing any more of what these jobs forget. StoreUnavailable."""
    names = sorted(jobs)
    if names:
        with reaching():
            await store.client.hdel(_unfinished_key(keys), *names)


async def unfinished(store: Store, keys: ModelKeys) -> dict[str, Unfinished]:
    """What jobs forget that are not complete, whether they have adopted it or not. Damaged, StoreUnavailable."""
    with reaching():
        said = await store.client.hgetall(_unfinished_key(keys))
    try:
        return {job.decode(): _unfinished.decode(what) for job, what in said.items()}
    except msgspec.MsgspecError as error:
        raise Damaged(f"what is being forgotten of {keys.name} cannot be read: {error}") from None


def mark_of(adopt: Adopt) -> Mark:
    """What takes an adoption's place."""
    return Mark(mark_token(adopt.adoption))


def mark_token(adoption: str) -> str:
    """The token of the mark that takes an adoption's place."""
    return f"adopted {adoption}"


def _key(keys: ModelKeys) -> bytes:
    return keys.of("forgotten")


def _unfinished_key(keys: ModelKeys) -> bytes:
    return keys.of("forgetting")
