"""Compaction: old snapshot + range of the log -> new snapshot.

A function of what is in the store and of nothing else: it gives the state that every replica has at that offset.
It works in the process that calls it, so that no replica pauses to save.

Where a shadow comes from: the index out of the artifact store, and the entries behind it, out of history and log.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from abound.core.errors import UnknownOffset
from abound.core.limits import Limits
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history import past
from abound.service.history.restore import restore_beginning, restore_newest
from abound.service.log.catalog import Living
from abound.service.log.stream import Element, LogParams
from abound.service.model.replicated_model import REPLAY_SLICE, ModelReplica
from abound.service.model.standby import apply
from abound.service.snapshots import state_files
from abound.service.snapshots.manifest import Manifest
from abound.service.snapshots.snapshots import SnapshotParams, write
from abound.service.store.client import Store
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Lease, LeaseLost, take


async def _nothing() -> None:
    """Nobody has to be told between two steps."""


async def rebuild(
    store: Store,
    living: Living,
    until: Offset | None = None,
    *,
    from_start: bool = False,
    params: LogParams | None = None,
    between: Callable[[], Awaitable[None]] = _nothing,
    artifacts: Artifacts | None = None,
) -> ModelReplica:
    """The model at an offset (default: the end of its log), made anew from the store.

    Parameters
    ----------
    from_start : bool
        From the beginning of history and log, without a snapshot.
    between : async callable
        Awaited now and then; what it raises ends the work.
    artifacts : Artifacts or None
        Where history is, and an index that is adopted on the way.

    Raises
    ------
    Damaged, UnknownApplyVersion
        An entry cannot be applied, or the beginning is lost, or a part of history.
    UnknownOffset
        History begins past ``until``.
    ArtifactsUnavailable, UnknownArtifact
        An index that is adopted on the way cannot be had.
    StoreUnavailable
    """
    params = params or LogParams()
    source = Source(store, artifacts, params)
    model = ModelReplica(living.keys, living.config, REPLAY_SLICE, Limits())
    if from_start:
        await restore_beginning(store, artifacts, model)
        if until is not None and model.offset > until:
            raise UnknownOffset(f"the history of {model.name} begins at {model.offset}, past {until}", model.offset)
    else:
        await restore_newest(store, model, until=until, artifacts=artifacts)
    at, checksum = model.offset, model.position.checksum
    reading = past.entries(store, artifacts, living.keys, at, until, params=params, checksum=checksum)
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                await apply(model, element, source)
            await between()
    return model


async def compact(
    store: Store,
    living: Living,
    params: SnapshotParams,
    log_params: LogParams | None = None,
    between: Callable[[], Awaitable[None]] = _nothing,
    artifacts: Artifacts | None = None,
    *,
    lease: Lease | None = None,
) -> Manifest:
    """Make a snapshot of a model at the end of its log. Costs the model's memory once.

    Parameters
    ----------
    lease : Lease or None
        Of the model; without one it is taken for this.

    Raises
    ------
    Conflict
        Another process has the model.
    LeaseLost
        Another process has taken the model over meanwhile.
    What ``rebuild`` raises.
    """
    if lease is None:
        async with take(store, living.keys) as taken:
            return await compact(store, living, params, log_params, between, artifacts, lease=taken)

    async def step() -> None:
        if lease.lost:
            raise LeaseLost
        await between()

    model = await rebuild(store, living, params=log_params, between=step, artifacts=artifacts)
    return await write(store, model, params, lease, step)


class Source:
    """The artifact store, if there is one, history and log.

    Attributes
    ----------
    artifacts : Artifacts or None
    """

    def __init__(self, store: Store, artifacts: Artifacts | None, params: LogParams | None = None) -> None:
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
        """An index. Damaged, UnknownApplyVersion, UnknownArtifact or ArtifactsUnavailable when it cannot be had."""
        if self.artifacts is not None and not self.artifacts.id:
            await self.artifacts.join(self._store)
        return await state_files.load(self.artifacts, keys, index, digest, limits, progress)

    def entries(self, keys: ModelKeys, after: Offset, until: Offset | None) -> AsyncIterator[list[Element]]:
        """The entries past ``after``, up to and with ``until``; see ``past.entries``."""
        return past.entries(self._store, self.artifacts, keys, after, until, params=self._params)
