"""Retention of versions: keep the needed ones and the newest of the others; delete the rest.

A version is needed while it is active, a challenger, or the version that was active before. Deletion takes the
activation fence (``abound/versions/activation.py``), so no version is deleted while it is being activated. Nothing is
deleted while a copy of the store is behind: after a failover to it, the version might be active again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.replication import wait_replicated
from abound.versions import activation
from abound.versions import versions as versions
from abound.versions.promotion import challengers
from abound_core.errors import Conflict, NotReady, UnknownVersion
from abound_core.model.active_version import LIVE

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionParams:
    """Limits on stored versions.

    Attributes
    ----------
    keep : int
        Number of newest versions kept per model, in addition to the needed ones.
    total_bytes : int
        Bytes of all versions of a model; an import beyond it is refused.
    cache_bytes : int
        Bytes of the local cache of version files (`cache` in the data directory), which lets processes map
        them. Used if the artifact store is not a local directory. 0: no cache, versions are read into memory.
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


async def needed_versions(store: Store, keys: ModelKeys) -> dict[str, str]:
    """Return the versions that are needed, with the reason."""
    found: dict[str, str] = {}
    active = await activation.read_active(store, keys)
    found[active.former] = "it was active before the current version"
    found |= {one.version: "it is a challenger" for one in await challengers.list_challengers(store, keys)}
    found[active.version] = "it is active"
    return {name: why for name, why in found.items() if name != LIVE}


async def enter_challenger(store: Store, artifacts: ArtifactStore, keys: ModelKeys, name: str, reason: str) -> None:
    """Enter an existing version as a challenger. Raises UnknownVersion, or Conflict at the maximum of challengers."""
    # Enter first, then check that the version exists; deletion withdraws it last. So a deleted version never stays a
    # challenger.
    await challengers.enter(store, keys, name, reason)
    try:
        await versions.card_of(artifacts, keys, name)
    except UnknownVersion:
        await challengers.withdraw(store, keys, name)
        raise


async def delete(store: Store, artifacts: ArtifactStore, keys: ModelKeys, name: str) -> None:
    """Delete a version. Raises Conflict if it is needed or the fence is held, NotReady while copies of the store are
    behind.
    """
    async with activation.fence(store, keys):
        await wait_replicated(store, 0.0)
        await versions.delete(artifacts, keys, name, await needed_versions(store, keys))
        await challengers.withdraw(store, keys, name)


async def retain(store: Store, artifacts: ArtifactStore, keys: ModelKeys, keep: int) -> list[str]:
    """Delete versions that are neither needed nor among the newest ``keep``; return their ids.

    Deletes nothing while a version is being activated or copies of the store are behind.
    """
    gone: list[str] = []
    try:
        async with activation.fence(store, keys):
            await wait_replicated(store, 0.0)
            needed = await needed_versions(store, keys)
            for card in (await versions.cards(artifacts, keys))[keep:]:
                if card.id not in needed:
                    with contextlib.suppress(UnknownVersion):
                        await versions.delete(artifacts, keys, card.id)
                    await challengers.withdraw(store, keys, card.id)
                    gone.append(card.id)
    except (Conflict, NotReady):
        return gone
    if gone:
        log.info("deleted versions beyond the newest", model=keys.name, versions=gone)
    return gone
