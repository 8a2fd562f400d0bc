"""Presence: what each replica says of itself in the store, for the others and for whoever looks.

A field of the hash ``...:replicas`` a replica, renewed every other second, taken back when it stops. One that is not
heard of any more may still answer from memory, cut off from the store, so what it said last stays for an hour. All
times are the store's own clock, so the clocks of the hosts need not agree.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from abound.core.types import Offset
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys

FRESH_SECONDS = 6.0
UNHEARD_SECONDS = 3600.0
AHEAD_SECONDS = 60.0
KEPT_SECONDS = 86_400
MARK_SECONDS = 600


SILENT_SECONDS = 20.0
"""A replica that has said nothing for so long is not waited for: one that is only slow would have to halt."""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of one model.

    Attributes
    ----------
    replica : str
        Its id.
    offset : str
        Applied last.
    digest, digest_offset : str or None
        The newest digest that it took, and where.
    host, pid
    ready : bool
    lag : int or None
        Entries behind the log.
    log_bytes : int
        Size of the log up to the offset.
    prepared : str or None
        The index that it is ready to adopt.
    versions : list of str
        Ids of the versions that it has loaded.
    swept_for : list of str or None
        ``swept`` of ``copies.Copies``.
    numbering : str
        As ``numbering()`` gave it there.
    at : float
        When it said so; seconds of the store's clock.
    """

    replica: str
    offset: str
    digest: str | None
    digest_offset: str | None
    host: str
    pid: int
    ready: bool
    lag: int | None
    log_bytes: int
    at: float
    prepared: str | None = None
    versions: list[str] = []
    swept_for: list[str] | None = None
    numbering: str = ""


class Marked(msgspec.Struct, frozen=True):
    """The digest that a replica had at a mark."""

    replica: str
    offset: str
    digest: str


_presence = msgspec.json.Decoder(Presence)
_marked = msgspec.json.Decoder(Marked)


async def publish(store: Store, said: list[tuple[ModelKeys, Presence]]) -> None:
    """Say what stands with the models of one replica."""
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys, presence in said:
                pipe.hset(keys.of("replicas"), presence.replica, msgspec.json.encode(presence))
                pipe.expire(keys.of("replicas"), KEPT_SECONDS)
            await pipe.execute()


async def withdraw(store: Store, models: list[ModelKeys], replica: str) -> None:
    """Take back what a replica said, when it stops."""
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys in models:
                pipe.hdel(keys.of("replicas"), replica)
            await pipe.execute()


async def present(store: Store, keys: ModelKeys, seconds: float = FRESH_SECONDS) -> list[Presence]:
    """The live replicas of a model, by id: without those that have been silent for longer."""
    now, said = await _heard_of(store, keys)
    return [one for one in said if abs(now - one.at) <= seconds]


async def heard_of(store: Store, keys: ModelKeys) -> list[Presence]:
    """The replicas of a model that have not taken back what they said, by id: the live ones, and the silent ones."""
    return (await _heard_of(store, keys))[1]


async def clear_dead(store: Store, models: list[ModelKeys], replica: str) -> None:
    """Take out what replicas of this host said that were killed: silent, and their process is no more."""
    host, here = socket.gethostname(), numbering()
    for keys in models:
        now, said = await _heard_of(store, keys)
        dead = [
            one.replica
            for one in said
            if (one.host, one.numbering) == (host, here)
            and one.replica != replica
            and now - one.at > FRESH_SECONDS
            and not _lives(one.pid)
        ]
        if dead:
            with reaching():
                await store.client.hdel(keys.of("replicas"), *dead)


def numbering() -> str:
    """Among which processes a number is that of one: containers may share a host's name, but not its processes.

    The start of the machine and the namespace; empty where the system has no such thing.
    """
    try:
        start, space = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), Path("/proc/self/ns/pid").stat()
        return f"{start} {space.st_ino}"
    except OSError:
        return ""


async def _heard_of(store: Store, keys: ModelKeys) -> tuple[float, list[Presence]]:
    """The store's clock, and what was said; what is too old is taken out."""
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hgetall(keys.of("replicas"))
            (now, _), said = await pipe.execute()
        kept, stale = [], []
        for name, packed in sorted(said.items()):
            presence = _presence.decode(packed)
            if -AHEAD_SECONDS <= now - presence.at <= UNHEARD_SECONDS:
                kept.append(presence)
            else:  # also of the future: the store's clock was set back
                stale.append(name)
        if stale:
            await store.client.hdel(keys.of("replicas"), *stale)
    return now, kept


def _lives(pid: int) -> bool:
    """Whether another process of this host has the number."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


async def publish_mark(store: Store, keys: ModelKeys, token: str, replica: str, offset: Offset, digest: str) -> None:
    """Say which digest a replica has at a mark."""
    key = keys.of(f"marks:{token}")
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.hset(key, replica, msgspec.json.encode(Marked(replica, str(offset), digest)))
            pipe.expire(key, MARK_SECONDS)
            await pipe.execute()


async def marked(store: Store, keys: ModelKeys, token: str) -> list[Marked]:
    """What the replicas have said at a mark so far, by id."""
    with reaching():
        said = await store.client.hgetall(keys.of(f"marks:{token}"))
    return [_marked.decode(packed) for _, packed in sorted(said.items())]
