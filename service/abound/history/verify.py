"""Verification: compares the digests of the replicas with a replay of history and log.

All digests must be equal, and at least one must come from a replica, unless ``offline`` is set.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import NamedTuple

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import History
from abound.history.replay import replay
from abound.log.appender import append_event
from abound.log.catalog import CatalogModel, read_catalog
from abound.log.events import MarkEvent
from abound.state import replica_status
from abound.state.replica_status import MarkDigest
from abound.store.client import Store
from abound_core.errors import (
    ArtifactsUnavailable,
    Corrupted,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownModel,
    did_you_mean,
)
from abound_core.types import START, Offset

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.05


class Verification(NamedTuple):
    model: str
    offset: Offset  # of the mark
    replicas: list[MarkDigest]  # those that answered
    silent: list[str]  # ids of the replicas that did not answer and have not deregistered
    from_start: str  # digest of the state rebuilt from ``start``
    from_snapshot: str
    start: Offset  # START, or the base of history
    offline: bool  # no replica was asked

    @property
    def equal(self) -> bool:
        return len({marked.digest for marked in self.replicas} | {self.from_start, self.from_snapshot}) == 1

    @property
    def good(self) -> bool:
        return self.equal and not self.silent and (self.offline or bool(self.replicas))


async def verify(
    store: Store,
    name: str,
    wait_seconds: float = WAIT_SECONDS,
    artifacts: ArtifactStore | None = None,
    *,
    offline: bool = False,
) -> Verification:
    """Compare the states of a model's replicas with a replay of its history and log.

    ``offline`` compares the two rebuilt states only. Takes as long as a full replay and the memory of two more models.
    """
    catalog = await read_catalog(store)
    living = catalog.get(name)
    if living is None:
        raise UnknownModel(f"there is no model {name[:64]!r}", did_you_mean(name, (one.keys.name for one in catalog)))
    # Also replicas that are silent: one that is cut off continues to answer from memory.
    expected = set() if offline else await _heard_of(store, living)
    token = secrets.token_hex(8)
    # Every replica publishes its digest at the mark.
    offset = await append_event(store, living.keys, MarkEvent(token))
    try:
        from_start = await replay(store, living, offset, from_start=True, artifacts=artifacts)
        from_snapshot = await replay(store, living, offset, artifacts=artifacts)
        contents = await History(store, artifacts, living.keys).manifest()
    except (ArtifactsUnavailable, Corrupted, UnknownApplyVersion, UnknownArtifact) as error:
        raise type(error)(f"the model {name} cannot be rebuilt: {error}") from error
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        said = [] if offline else await replica_status.mark_digests(store, living.keys, token)
        silent = sorted(expected - {marked.replica for marked in said})
        if silent:
            expected &= await _heard_of(store, living)  # a replica that has stopped meanwhile serves nothing
            silent = sorted(expected.intersection(silent))
        if not silent or loop.time() > deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    return Verification(
        model=name,
        offset=offset,
        replicas=said,
        silent=silent,
        from_start=str(await from_start.compute_digest()),
        from_snapshot=str(await from_snapshot.compute_digest()),
        start=contents.start if contents is not None else START,
        offline=offline,
    )


async def _heard_of(store: Store, living: CatalogModel) -> set[str]:
    return {one.replica for one in await replica_status.known_replicas(store, living.keys)}
