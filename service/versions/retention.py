"""Which versions stay: those that are needed, and of the others the newest.

    ...:writing    hash: the versions that are being written (``service/artifacts/write_marks.py``)

A version is needed while it is active, contends, or is the way back from what is active. Deleting takes the fence of
activations (``service/versions/activation.py``), so none is deleted while it is on its way to be active; and none while
a copy of the store may still have it as the active one, since a failover to that copy would need it. One that comes to
contend just then does so no more: whoever lets it looks afterwards whether it is there, and whoever deletes it takes it
out after.

What was begun and never finished has no card. It goes when nobody says any more that it is being written: that is
looked at after it was seen, and then whether it has a card by now, so what was finished meanwhile stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from abound.core.errors import Conflict, NotReady, UnknownVersion, VersionGone
from abound.core.model.active_version import LIVE
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.artifacts.write_marks import being_written
from abound.service.artifacts.write_marks import writing as saying
from abound.service.store.client import Store
from abound.service.store.keys import ModelKeys
from abound.service.store.replication import until_copied
from abound.service.versions import activation
from abound.service.versions import repository as versions
from abound.service.versions.card import Card
from abound.service.versions.promotion import candidates as contenders

log = structlog.get_logger(__name__)

PUBLISH_SECONDS = 900.0
"""How long activations may keep a version from being published; one takes at most a third of it."""

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionParams:
    """How many versions are kept.

    Attributes
    ----------
    keep : int
        The newest of each model that stay, besides those that are needed.
    total_bytes : int
        Of all versions of a model together; past it none is taken over from a file.
    cache_bytes : int
        Of the copies that this machine keeps of files of versions (``cache`` in the data directory), where the artifact
        store is no directory of its own: so they can be mapped. 0: none, they are read into memory.
    """

    keep: int = 20
    total_bytes: int = 64 * 2**30
    cache_bytes: int = 16 * 2**30

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError("keep must be at least 1")
        if self.total_bytes < 1:
            raise ValueError("total_bytes must be at least 1")
        if self.cache_bytes < 0:
            raise ValueError("cache_bytes must be at least 0")


async def uses(store: Store, keys: ModelKeys) -> dict[str, str]:
    """The versions that are needed, and what for. StoreUnavailable."""
    found: dict[str, str] = {}
    active = await activation.active(store, keys)
    found[active.former] = "it is what was active before"
    found |= {one.version: "it contends" for one in await contenders.entered(store, keys)}
    found[active.version] = "it is active"
    return {name: why for name, why in found.items() if name != LIVE}


async def contend(store: Store, artifacts: Artifacts, keys: ModelKeys, name: str, reason: str) -> None:
    """Let a version contend from now on (``contenders.enter``), unless it is gone.

    Raises
    ------
    UnknownVersion
        It is.
    Conflict
        As many contend as can.
    Damaged, UnknownApplyVersion, ArtifactsUnavailable, StoreUnavailable
    """
    await contenders.enter(store, keys, name, reason)
    try:
        await versions.card_of(artifacts, keys, name)
    except UnknownVersion:
        await contenders.leave(store, keys, name)
        raise


async def delete(store: Store, artifacts: Artifacts, keys: ModelKeys, name: str) -> None:
    """Take a version away.

    Raises
    ------
    UnknownVersion, ArtifactsUnavailable, StoreUnavailable
    Conflict
        It is needed, or a version of the model is just being activated.
    NotReady
        It may be needed after a failover: copies of the store are behind.
    """
    async with activation.fence(store, keys):
        await until_copied(store, 0.0)
        await versions.delete(artifacts, keys, name, await uses(store, keys))
        await contenders.leave(store, keys, name)


async def publish(store: Store, artifacts: Artifacts, keys: ModelKeys, name: str) -> Card:
    """Let a version that is committed be seen (``versions.publish``), as soon as none is activated or deleted.

    Raises
    ------
    VersionGone
    Conflict
        Others are activated again and again.
    Damaged, UnknownApplyVersion, ArtifactsUnavailable, StoreUnavailable
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PUBLISH_SECONDS
    while True:
        try:
            async with activation.fence(store, keys):
                try:
                    return await versions.publish(artifacts, keys, name)
                except UnknownVersion as error:
                    raise VersionGone(
                        "the version was taken away before its job had ended; ask for it again"
                    ) from error
        except VersionGone:
            raise
        except Conflict:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def retain(store: Store, artifacts: Artifacts, keys: ModelKeys, keep: int) -> list[str]:
    """Take away what is not needed and not among the newest ``keep``; the ids.

    None while a version is activated, or copies of the store are behind.
    """
    gone: list[str] = []
    try:
        async with activation.fence(store, keys):
            await until_copied(store, 0.0)
            needed = await uses(store, keys)
            for card in (await versions.cards(artifacts, keys))[keep:]:
                if card.id not in needed:
                    with contextlib.suppress(UnknownVersion):
                        await versions.delete(artifacts, keys, card.id)
                    await contenders.leave(store, keys, card.id)
                    gone.append(card.id)
    except (Conflict, NotReady):
        return gone
    if gone:
        log.info("took away versions that are not among the newest", model=keys.name, versions=gone)
    return gone


def writing(store: Store, keys: ModelKeys, name: str, n_bytes: int = 0) -> contextlib.AbstractAsyncContextManager[None]:
    """As long as this lasts, a version may have files and no card. StoreUnavailable when that cannot be said.

    ``n_bytes``: what it will have; others count it (``written_bytes``).
    """
    return saying(store, keys.of("writing"), name, n_bytes)


async def written_bytes(store: Store, artifacts: Artifacts, keys: ModelKeys) -> int:
    """Bytes of all versions, those that are being written among them. ArtifactsUnavailable, StoreUnavailable."""
    coming = await being_written(store, keys.of("writing"))
    there = {card.id: card.n_bytes for card in await versions.cards(artifacts, keys)}
    return sum((coming | there).values())


async def sweep(store: Store, artifacts: Artifacts, keys: ModelKeys) -> int:
    """Take away what was begun and is not being written any more; how many files."""
    start = len(versions.folder(keys)) + 1
    begun: dict[str, int] = {}
    for name in await artifacts.names(versions.folder(keys)):
        place = name[start:].partition("/")[0]
        begun[place] = begun.get(place, 0) + 1
    for whole in await versions.ids(artifacts, keys):
        begun.pop(whole, None)
    if not begun:
        return 0
    busy = await being_written(store, keys.of("writing"))
    whole_by_now = set(await versions.ids(artifacts, keys))
    gone = [name for name in begun if name not in busy and name not in whole_by_now]
    for name in gone:
        await artifacts.clear(f"{versions.folder(keys)}/{name}")
    return sum(begun[name] for name in gone)
