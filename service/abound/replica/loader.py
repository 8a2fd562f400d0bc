"""Loader: brings a model to the end of its log, from its newest good snapshot and all later entries.

Every entry is applied in the same way, old or new: the follower, too, applies by ``Loader.apply``. The protocol
``FollowerCallbacks`` lists the notifications about followed models.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.history.load import load_newest
from abound.log import stream
from abound.log.catalog import CatalogModel
from abound.log.events import MarkEvent, PrepareVersionEvent
from abound.log.stream import MAX_ENTRIES, Element, LogParams
from abound.state.replicated_model import (
    REPLAY_SLICE,
    ReplicatedModel,
    VersionNotLoaded,
)
from abound.store.client import Store
from abound.store.raw_connection import StoreConnection
from abound_core.errors import CannotStart, Corrupted, StoreUnavailable, UnknownApplyVersion, UnknownOffset

log = structlog.get_logger(__name__)


Progress = Callable[[str, float], None]


def no_progress(stage: str, done: float) -> None:
    """Ignore the progress."""


class Loader:
    def __init__(
        self, store: Store, params: LogParams, callbacks: FollowerCallbacks, artifacts: ArtifactStore | None
    ) -> None:
        self._store = store
        self._params = params
        self._callbacks = callbacks
        self._artifacts = artifacts
        self._most = MAX_ENTRIES
        self._since_pause = 0

    async def load(self, connection: StoreConnection, model: ReplicatedModel, progress: Progress = no_progress) -> None:
        name = model.name
        try:
            progress(f"loading snapshot of {name}", 0.0)
            manifest = await load_newest(
                self._store,
                model,
                lambda done: progress(f"loading snapshot of {name}", done),
                artifacts=self._artifacts,
            )
        except (Corrupted, UnknownApplyVersion) as error:
            raise CannotStart(str(error)) from error
        if manifest is not None:
            log.info("loaded a snapshot", model=name, snapshot=manifest.id, offset=str(model.offset))
        await self.replay(connection, model, progress)

    async def replay(
        self, connection: StoreConnection, model: ReplicatedModel, progress: Progress = no_progress
    ) -> None:
        """Replay from the model's position to the log's end; then the model is ready, unless it stopped or halted.

        It halts at the end if the version that is active there is not loaded.
        """
        name = model.name
        model.halted, model.resumes = None, False
        tail = await stream.tail(self._store, model.keys.log)
        n_entries = tail.n_removed + tail.n_entries
        begin = model.position.n_entries
        model.slice_events = REPLAY_SLICE
        try:
            progress(f"replaying {name}", 0.0)
            async with contextlib.aclosing(
                full_log.read_entries(
                    self._store,
                    self._artifacts,
                    model.keys,
                    model.offset,
                    params=self._params,
                    connection=connection,
                    most=self._most,
                    checksum=model.position.checksum,
                )
            ) as reading:
                async for elements in reading:
                    for element in elements:
                        await self.apply(model, element)
                        if model.failure is not None or model.halted is not None:
                            return
                    done = (model.position.n_entries - begin) / max(1, n_entries - begin)
                    progress(f"replaying {name}", min(1.0, done))
        except StoreUnavailable:
            self._most = max(1, self._most // 4)  # a reply may have been too large for the connection
            raise
        except (Corrupted, UnknownOffset) as error:
            raise CannotStart(str(error)) from error
        finally:
            model.slice_events = self._params.slice_events
        self._most = MAX_ENTRIES
        model.trim = await stream.trim_of(self._store, model.keys.log)
        try:
            model.check_serving()
        except VersionNotLoaded as missing:
            self._callbacks.on_halt(model, missing)
            return
        model.lacks_version, model.ready = False, True
        log.info("replayed a model", model=name, offset=str(model.offset), entries=model.position.n_entries - begin)

    async def apply(self, model: ReplicatedModel, element: Element) -> None:
        """Apply one entry; after every ``slice_events`` events, let other tasks of the process run."""
        try:
            applied = await model.apply(element)
        except (Corrupted, UnknownApplyVersion) as error:
            # It stays stopped: it is not ready and reports the reason.
            log.error("a model has stopped", model=model.name, reason=str(error))
            return
        except VersionNotLoaded as missing:
            log.warning("a model halts before an activation", model=model.name, reason=str(missing))
            model.ready = False
            self._callbacks.on_halt(model, missing)
            return
        if model.appender is not None:
            model.appender.on_applied(*applied)
        event = applied.entry.event
        if type(event) is MarkEvent:
            await self._callbacks.on_mark(model, event.token)
        elif type(event) is PrepareVersionEvent:
            self._callbacks.on_prepare(model)
        self._since_pause += applied.offset.position + 1
        if self._since_pause >= model.slice_events:
            self._since_pause = 0
            await asyncio.sleep(0)


class FollowerCallbacks(Protocol):
    """Callbacks of the follower and the loader; a replica implements them."""

    def on_model_added(self, model: ReplicatedModel) -> None:
        """Handle a model that is followed from now on."""

    def on_model_removed(self, model: ReplicatedModel) -> None:
        """Handle a deleted model."""

    def on_incoming_loaded(self, model: ReplicatedModel) -> None:
        """Handle an incarnation that is ready to replace a model."""

    def on_model_replaced(self, model: ReplicatedModel, before: CatalogModel) -> None:
        """Handle a model that is another incarnation from now on than ``before``."""

    async def on_mark(self, model: ReplicatedModel, token: str) -> None:
        """Handle an applied mark; the next entry waits until this returns."""

    def on_prepare(self, model: ReplicatedModel) -> None:
        """Handle the announcement of an activation."""

    def on_halt(self, model: ReplicatedModel, missing: VersionNotLoaded) -> None:
        """Handle a model that lacks a version. Set ``halted``, and later ``resumes``."""
