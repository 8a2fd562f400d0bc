"""Replay and compaction: old snapshot + range of the log -> new snapshot.

The result depends on the contents of the stores alone and equals the state of every replica at that offset. The work
is done in the calling process, so no replica pauses to save a snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.history.load import load_first_state, load_newest
from abound.log.catalog import CatalogModel
from abound.log.events import LearnEvent, element_of
from abound.log.stream import Element, LogParams
from abound.state.replicated_model import REPLAY_SLICE, ReplicatedModel
from abound.state.snapshots import SnapshotParams, write
from abound.state.state_image import StateManifest
from abound.store.client import Store
from abound.store.lease import Lease, LeaseLost, acquire
from abound.tasks import do_nothing
from abound_core.errors import UnknownOffset
from abound_core.instances.record import record_ends
from abound_core.limits import Limits
from abound_core.types import Offset


async def replay(
    store: Store,
    living: CatalogModel,
    until: Offset | None = None,
    *,
    from_start: bool = False,
    params: LogParams | None = None,
    between: Callable[[], Awaitable[None]] = do_nothing,
    artifacts: ArtifactStore | None = None,
    is_cut: bool = False,
) -> ReplicatedModel:
    """Return the model at an offset (default: the end of its log), rebuilt from the store.

    Parameters
    ----------
    from_start : bool
        Replay from the start of history and log, without a snapshot.
    between : async callable
        Awaited between reads. An exception from it ends the work.
    is_cut : bool
        Of the last entry, apply only the requests up to the position of ``until``.

    Raises
    ------
    Corrupted, UnknownApplyVersion
        An entry cannot be applied, or the start of the log or a part of history is lost.
    UnknownOffset
        History starts past ``until``.
    """
    model = ReplicatedModel(living.keys, living.config, REPLAY_SLICE, Limits())
    if from_start:
        await load_first_state(store, artifacts, model, until=until)
        if until is not None and model.offset > until:
            raise UnknownOffset(f"the history of {model.name} begins at {model.offset}, past {until}", model.offset)
    else:
        await load_newest(store, model, until=until, artifacts=artifacts)
    reading = full_log.read_entries(
        store, artifacts, living.keys, model.offset, until, params=params, checksum=model.position.checksum
    )
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                await model.apply(element if until is None or not is_cut else cut_entry(element, until))
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
) -> StateManifest:
    """Write a snapshot of a model at the end of its log. Needs the memory of one more copy of the model.

    Without ``lease``, the lease of the model is acquired for this call; Conflict if another process holds it.
    """
    if lease is None:
        async with acquire(store, living.keys) as taken:
            return await compact(store, living, params, log_params, between, artifacts, lease=taken)

    async def step() -> None:
        if lease.lost:
            raise LeaseLost
        await between()

    model = await replay(store, living, params=log_params, between=step, artifacts=artifacts)
    return await write(store, model, params, lease, step)


def cut_entry(element: Element, until: Offset) -> Element:
    """Return a log entry; if it is the entry of ``until``, only the requests up to that position."""
    name = element[0]
    if Offset.of_entry(name)[:2] != until[:2]:
        return element
    entry = full_log.decode_element(element)
    if type(entry.event) is not LearnEvent:
        return element
    return element_of(name, msgspec.structs.replace(entry, event=truncate_learn(entry.event, until.position)))


def truncate_learn(event: LearnEvent, position: int) -> LearnEvent:
    """Return the requests of an entry that start at or before a position. Batches are not split."""
    n = n_records = n_units = 0
    while n_units < len(event.units) and n <= position:
        for unit in event.units[n_units : n_units + event.units[n_units].batch]:
            n += unit.n
            n_records += 0 if unit.emptied else unit.n
            n_units += 1
    if n_units == len(event.units):
        return event
    end = int(record_ends(event.records, event.n_records)[n_records])
    return msgspec.structs.replace(event, records=event.records[:end], n=n, units=event.units[:n_units])
