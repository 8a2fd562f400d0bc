"""Compaction: old snapshot + range of the log -> new snapshot.

A function of what is in the store and of nothing else: it gives the state that every replica has at that offset.
It works in the process that calls it, so that no replica pauses to save.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from core.errors import Damaged
from core.limits import Limits
from core.types import START, Offset
from service import log as stream
from service.artifacts import Artifacts
from service.catalog import Living
from service.follower import REPLAY_SLICE
from service.log import LogParams
from service.manifest import Manifest
from service.model_replica import ModelReplica
from service.shadow import apply
from service.snapshots import SnapshotParams, restore_newest, write
from service.source import Source
from service.store import Store


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
        From the beginning of the log, without a snapshot.
    between : async callable
        Awaited now and then; what it raises ends the work.
    artifacts : Artifacts or None
        Where an index that is adopted on the way comes from.

    Raises
    ------
    Damaged, UnknownApplyVersion
        An entry cannot be applied, or the beginning is lost.
    ArtifactsUnavailable, UnknownArtifact
        An index that is adopted on the way cannot be had.
    StoreUnavailable
    """
    params = params or LogParams()
    source = Source(store, artifacts, params)
    model = ModelReplica(living.keys, living.config, REPLAY_SLICE, Limits())
    if from_start:
        if not await stream.holds(store, living.keys.log, START, b""):
            raise Damaged(f"the log of {living.keys.name} has lost its beginning")
    else:
        await restore_newest(store, model, until=until)
    link = await store.open_link("rebuild")
    try:
        async for elements in stream.read(
            link,
            living.keys.log,
            model.offset,
            until,
            read_bytes=params.read_bytes,
            seconds=store.params.reply_seconds,
        ):
            for element in elements:
                await apply(model, element, source)
            await between()
    finally:
        link.close()
    return model


async def compact(
    store: Store,
    living: Living,
    params: SnapshotParams,
    log_params: LogParams | None = None,
    between: Callable[[], Awaitable[None]] = _nothing,
    artifacts: Artifacts | None = None,
) -> Manifest:
    """Make a snapshot of a model at the end of its log; what ``rebuild`` raises. Costs the model's memory once."""
    model = await rebuild(store, living, params=log_params, between=between, artifacts=artifacts)
    return await write(store, model, params, between)
