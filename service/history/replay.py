"""Replay and compaction: old snapshot + range of the log -> new snapshot.

The result depends on the contents of the stores alone and equals the state of every replica at that offset. The work
is done in the calling process, so no replica pauses to save a snapshot.

``ReplaySource`` loads what a standby state is made of: a state file from the artifact store, and the entries after it
from history and log.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from abound.core.errors import UnknownOffset
from abound.core.limits import Limits
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.history import past
from abound.service.history.restore import restore_first_state, restore_newest
from abound.service.log.catalog import CatalogModel
from abound.service.log.stream import Element, LogParams
from abound.service.model.replicated_model import REPLAY_SLICE, ReplicatedModel
from abound.service.model.standby import apply
from abound.service.snapshots import state_files
from abound.service.snapshots.manifest import SnapshotManifest
from abound.service.snapshots.snapshots import SnapshotParams, write
from abound.service.store.client import Store
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Lease, LeaseLost, acquire
from abound.service.tasks import do_nothing


async def rebuild(
    store: Store,
    living: CatalogModel,
    until: Offset | None = None,
    *,
    from_start: bool = False,
    params: LogParams | None = None,
    between: Callable[[], Awaitable[None]] = do_nothing,
    artifacts: ArtifactStore | None = None,
) -> ReplicatedModel:
    """Return the model at an offset (default: the end of its log), rebuilt from the store.

    Parameters
    ----------
    from_start : bool
        Replay from the start of history and log, without a snapshot.
    between : async callable
        Awaited between reads. An exception from it ends the work.
    artifacts : ArtifactStore or None
        Has history and the state files of adoptions.

    Raises
    ------
    Corrupted, UnknownApplyVersion
        An entry cannot be applied, or the start of the log or a part of history is lost.
    UnknownOffset
        History starts past ``until``.
    ArtifactsUnavailable, UnknownArtifact
        A state file that is adopted in the range cannot be loaded.
    StoreUnavailable
    """
    params = params or LogParams()
    source = ReplaySource(store, artifacts, params)
    model = ReplicatedModel(living.keys, living.config, REPLAY_SLICE, Limits())
    if from_start:
        await restore_first_state(store, artifacts, model)
        if until is not None and model.offset > until:
            raise UnknownOffset(f"the history of {model.name} begins at {model.offset}, past {until}", model.offset)
    else:
        await restore_newest(store, model, until=until, artifacts=artifacts)
    at, checksum = model.offset, model.position.checksum
    reading = past.read_entries(store, artifacts, living.keys, at, until, params=params, checksum=checksum)
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                await apply(model, element, source)
            await between()
    return model


async def compact(
    store: Store,
    living: CatalogModel,
    params: SnapshotParams,
    log_params: LogParams | None = None,
    between: Callable[[], Awaitable[None]] = do_nothing,
    artifacts: ArtifactStore | None = None,
    *,
    lease: Lease | None = None,
) -> SnapshotManifest:
    """Write a snapshot of a model at the end of its log. Needs the memory of one more copy of the model.

    Parameters
    ----------
    lease : Lease or None
        The lease of the model; by default one is acquired for this call.

    Raises
    ------
    Conflict
        Another process holds the lease.
    LeaseLost
        Another process has taken over the model meanwhile.
    Whatever ``rebuild`` raises.
    """
    if lease is None:
        async with acquire(store, living.keys) as taken:
            return await compact(store, living, params, log_params, between, artifacts, lease=taken)

    async def step() -> None:
        if lease.lost:
            raise LeaseLost
        await between()

    model = await rebuild(store, living, params=log_params, between=step, artifacts=artifacts)
    return await write(store, model, params, lease, step)


class ReplaySource:
    """Loads state files from the artifact store and entries from history and log.

    Attributes
    ----------
    artifacts : ArtifactStore or None
    """

    def __init__(self, store: Store, artifacts: ArtifactStore | None, params: LogParams | None = None) -> None:
        self.artifacts = artifacts
        self._store = store
        self._params = params or LogParams()

    async def load(
        self,
        keys: ModelKeys,
        index: str,
        digest: str,
        limits: Limits,
        progress: Callable[[float], None] = lambda done: None,
    ) -> LiveModel:
        """Load a state file. Corrupted, UnknownApplyVersion, UnknownArtifact, ArtifactsUnavailable."""
        if self.artifacts is not None and not self.artifacts.id:
            await self.artifacts.join(self._store)
        return await state_files.load(self.artifacts, keys, index, digest, limits, progress)

    def entries(self, keys: ModelKeys, after: Offset, until: Offset | None) -> AsyncIterator[list[Element]]:
        """Yield the entries after ``after``, up to and including ``until``; see ``past.read_entries``."""
        return past.read_entries(self._store, self.artifacts, keys, after, until, params=self._params)
