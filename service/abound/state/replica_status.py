"""The status that each replica publishes in the store, for other replicas and for operators.

    ...:replicas    expiring records (``abound/store/expiring.py``): replica -> JSON of ``PublishedStatus``

A replica renews its record every other second and removes it when it stops. A silent replica may be cut off from the
store and still answer from memory, so its last status stays for an hour.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from abound.processes.lifetime import is_running
from abound.store import expiring
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound_core.types import Offset

FRESH_SECONDS = 6.0
STALE_SECONDS = 3600.0
MARK_SECONDS = 600

SILENT_SECONDS = 20.0
"""A replacement does not wait for a replica that is silent for longer.

If it is only slow, it is not ready until it has loaded the new incarnation.
"""


class PublishedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one model on one replica."""

    replica: str
    offset: str
    digest: str | None
    digest_offset: Annotated[str | None, Meta(description="Offset of this digest.")]
    host: str
    pid: int
    ready: bool
    lag: Annotated[int | None, Meta(description="Entries behind the log.")]
    log_bytes: Annotated[int, Meta(description="Size of the log up to the offset.")]
    versions: Annotated[list[str], Meta(description="The loaded versions.")] = []
    classified: Annotated[
        list[int], Meta(description="Answered ``/classify`` requests of all models, by duration.")
    ] = []
    swept_for: Annotated[list[str] | None, Meta(description="Completed requests to clean the cache.")] = None
    numbering: Annotated[str, Meta(description="Result of ``pid_namespace()`` on the replica.")] = ""


class MarkDigest(msgspec.Struct, frozen=True):
    replica: str
    offset: str
    digest: str


_presence = msgspec.json.Decoder(PublishedStatus)
_marked = msgspec.json.Decoder(MarkDigest)


async def publish(store: Store, said: list[tuple[ModelKeys, PublishedStatus]]) -> None:
    await expiring.put_all(
        store, [(keys.key("replicas"), presence.replica, msgspec.json.encode(presence)) for keys, presence in said]
    )


async def withdraw(store: Store, models: list[ModelKeys], replica: str) -> None:
    for keys in models:
        await expiring.remove(store, keys.key("replicas"), replica)


async def live_replicas(store: Store, keys: ModelKeys, seconds: float = FRESH_SECONDS) -> list[PublishedStatus]:
    return [one for one, age in await _published(store, keys) if age <= seconds]


async def known_replicas(store: Store, keys: ModelKeys) -> list[PublishedStatus]:
    return [one for one, _ in await _published(store, keys)]


async def remove_dead(store: Store, models: list[ModelKeys], replica: str) -> None:
    """Remove the status of killed replicas of this host: they are silent and their process has ended."""
    host, here = socket.gethostname(), pid_namespace()
    for keys in models:
        dead = [
            one.replica
            for one, age in await _published(store, keys)
            if (one.host, one.numbering) == (host, here)
            and one.replica != replica
            and age > FRESH_SECONDS
            and (one.pid == os.getpid() or not is_running(one.pid))
        ]
        if dead:
            await expiring.remove(store, keys.key("replicas"), *dead)


def pid_namespace() -> str:
    """Return an id of the space in which a PID is unique: containers may share a hostname, but not their processes.

    It consists of the machine's boot id and the PID namespace; empty on systems without them.
    """
    try:
        start, space = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), Path("/proc/self/ns/pid").stat()
        return f"{start} {space.st_ino}"
    except OSError:
        return ""


async def _published(store: Store, keys: ModelKeys) -> list[tuple[PublishedStatus, float]]:
    found = await expiring.live(store, keys.key("replicas"), STALE_SECONDS)
    return [(_presence.decode(one.payload), one.age) for one in found.values()]


async def publish_mark(store: Store, keys: ModelKeys, token: str, replica: str, offset: Offset, digest: str) -> None:
    key = keys.key(f"marks:{token}")
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.hset(key, replica, msgspec.json.encode(MarkDigest(replica, str(offset), digest)))
            pipe.expire(key, MARK_SECONDS)
            await pipe.execute()


async def mark_digests(store: Store, keys: ModelKeys, token: str) -> list[MarkDigest]:
    """Return the digests that replicas have published at a mark so far, by replica id."""
    with store_errors():
        said = await store.client.hgetall(keys.key(f"marks:{token}"))
    return [_marked.decode(packed) for _, packed in sorted(said.items())]
