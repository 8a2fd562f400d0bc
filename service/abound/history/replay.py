"""Replay and compaction: old snapshot + range of the log -> new snapshot.

The result depends on the contents of the stores alone and equals the state of every replica at that offset. The work
is done in the calling process, so no replica pauses to save a snapshot.

``bring_up`` makes a standby state of a model that is about to adopt a state file. So the state after an adoption at B
is the state file plus a replay from its offset to B, on every replica and at any time. ``apply`` does the same where
nothing is served meanwhile: it loads the state when it meets the adoption.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.history.lineage import cut_entry
from abound.history.load import load_first_state, load_newest
from abound.log.catalog import CatalogModel
from abound.log.events import decode_entry
from abound.log.stream import Element, LogParams
from abound.state import state_files
from abound.state.replicated_model import REPLAY_SLICE, ReplicatedModel, StandbyMissing, StandbyState
from abound.state.snapshots import SnapshotParams, write
from abound.state.state_image import StateManifest
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.lease import Lease, LeaseLost, acquire
from abound.tasks import do_nothing
from abound_core.errors import AboundError, Corrupted, UnknownArtifact, UnknownOffset
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

PAUSE_SECONDS = 0.02

CLOSE_SECONDS = 0.2  # a standby state that caught up within this time replays the rest while the live state is paused

MAX_ROUNDS = 50  # so does one after this many rounds, since it is hardly faster than new entries arrive


async def replay(
    store: Store,
    living: CatalogModel,
    until: Offset | None = None,
    *,
    from_start: bool = False,
    params: LogParams | None = None,
    between: Callable[[], Awaitable[None]] = do_nothing,
    artifacts: ArtifactStore | None = None,
    source: ReplaySource | None = None,
    is_cut: bool = False,
) -> ReplicatedModel:
    """Return the model at an offset (default: the end of its log), rebuilt from the store.

    Parameters
    ----------
    from_start : bool
        Replay from the start of history and log, without a snapshot.
    between : async callable
        Awaited between reads. An exception from it ends the work.
    source : ReplaySource or None
        Yields the entries and loads the state files of adoptions, by default from history and log.
    is_cut : bool
        Of the last entry, apply only the requests up to the position of ``until``.

    Raises
    ------
    Corrupted, UnknownApplyVersion
        An entry cannot be applied, or the start of the log or a part of history is lost.
    UnknownOffset
        History starts past ``until``.
    """
    params = params or LogParams()
    source = source or ReplaySource(store, artifacts, params)
    model = ReplicatedModel(living.keys, living.config, REPLAY_SLICE, Limits())
    if from_start:
        await load_first_state(store, artifacts, model)
        if until is not None and model.offset > until:
            raise UnknownOffset(f"the history of {model.name} begins at {model.offset}, past {until}", model.offset)
    else:
        await load_newest(store, model, until=until, artifacts=artifacts)
    reading = source.entries(living.keys, model.offset, until, model.position.checksum)
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                await apply(model, element if until is None or not is_cut else cut_entry(element, until), source)
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


class ReplaySource:
    """Loads state files from the artifact store and entries from history and log."""

    def __init__(self, store: Store, artifacts: ArtifactStore | None, params: LogParams | None = None) -> None:
        self.artifacts = artifacts
        self._store = store
        self._params = params or LogParams()

    async def load(self, keys: ModelKeys, index: str, digest: str, limits: Limits) -> LiveModel:
        if self.artifacts is not None and not self.artifacts.id:
            await self.artifacts.join(self._store)
        return await state_files.load(self.artifacts, keys, index, digest, limits)

    def entries(
        self, keys: ModelKeys, after: Offset, until: Offset | None, checksum: bytes = b""
    ) -> AsyncGenerator[list[Element]]:
        return full_log.read_entries(
            self._store, self.artifacts, keys, after, until, params=self._params, checksum=checksum
        )


async def bring_up(standby: StandbyState, source: ReplaySource) -> None:
    """Load the state file of a standby state and replay until the standby state is attached.

    Return without attaching it when the model has another standby state, or none, meanwhile.
    """
    model = standby.model
    loop = asyncio.get_running_loop()
    standby.live = await source.load(model.keys, standby.index, standby.digest, model.limits)
    for n_rounds in itertools.count():
        began = loop.time()
        while model.standby is standby and model.offset[:2] < standby.offset[:2]:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_SECONDS)  # the live state has not reached the state file's offset yet
        await _catch_up(standby, source)
        if loop.time() - began < CLOSE_SECONDS or n_rounds >= MAX_ROUNDS:
            break
    # The last entries are replayed while nothing is applied. Then the standby state is as far as the live state, and
    # each entry is applied to both until the adoption replaces the live state.
    async with model.paused():
        await _catch_up(standby, source)
        standby.attached = model.standby is standby


async def _catch_up(standby: StandbyState, source: ReplaySource) -> None:
    """Replay up to the current offset of the live state, unless the model has dropped this standby state."""
    model = standby.model
    until = model.offset
    if model.standby is not standby or until[:2] <= standby.offset[:2]:
        return
    async for elements in source.entries(model.keys, standby.offset, until):
        for entry_id, fields in elements:
            await standby.apply(decode_entry(fields).event, Offset.of_entry(entry_id))
        if model.standby is not standby:
            return
        await asyncio.sleep(0)
    if standby.offset[:2] < until[:2]:
        raise Corrupted(f"the log of {model.name} no longer has entry {until.entry}")


async def apply(model: ReplicatedModel, element: Element, source: ReplaySource) -> None:
    """Apply the next entry; if it adopts a state, load that first."""
    try:
        await model.apply(element)
    except StandbyMissing as missing:
        model.standby = standby = StandbyState(model, missing.adopt)
        try:
            await bring_up(standby, source)
        except AboundError as error:
            model.standby = None
            if isinstance(error, (Corrupted, UnknownArtifact)):
                raise type(error)(f"{error}. `abound history show` says what can be done about it") from error
            raise
        await model.apply(element)
