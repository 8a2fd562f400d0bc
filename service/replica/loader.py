"""Loading: how a model comes to the end of its log, by its newest good snapshot and every entry after that.

An entry is applied in one way only, be it years old or just appended: the follower, too, applies by ``Loader.apply``.

Whom a follower tells what happens to the models that it follows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

import structlog

from abound.core.errors import CannotStart, Damaged, StoreUnavailable, UnknownApplyVersion, UnknownOffset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history import past
from abound.service.history.restore import restore_newest
from abound.service.log import stream
from abound.service.log.events import Mark, Prepare, PrepareVersion
from abound.service.log.stream import MOST_ENTRIES, Element, LogParams
from abound.service.model.replicated_model import REPLAY_SLICE, Applied, ModelReplica, NotLoaded, NotPrepared
from abound.service.store.client import Store
from abound.service.store.connection import Link

log = structlog.get_logger(__name__)


Progress = Callable[[str, float], None]


def no_progress(stage: str, done: float) -> None:
    """Nobody looks."""


class Loader:
    """Loads models, and applies what comes to them."""

    def __init__(self, store: Store, params: LogParams, watcher: Watcher, artifacts: Artifacts | None) -> None:
        self._store = store
        self._params = params
        self._watcher = watcher
        self._artifacts = artifacts
        self._most = MOST_ENTRIES
        self._since_pause = 0

    async def load(self, link: Link, model: ModelReplica, progress: Progress = no_progress) -> None:
        """Newest good snapshot and replay. Raises what ``replay`` raises."""
        name = model.name
        try:
            progress(f"loading snapshot of {name}", 0.0)
            manifest = await restore_newest(
                self._store,
                model,
                lambda done: progress(f"loading snapshot of {name}", done),
                artifacts=self._artifacts,
            )
        except (Damaged, UnknownApplyVersion) as error:
            raise CannotStart(str(error)) from error
        if manifest is not None:
            log.info("loaded a snapshot", model=name, snapshot=manifest.id, offset=str(model.offset))
        await self.replay(link, model, progress)

    async def replay(self, link: Link, model: ModelReplica, progress: Progress = no_progress) -> None:
        """Go on from where the model is to the log's end; then it is ready, unless it has stopped or halted.

        It halts at the end when it does not have the version that is active there.
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
                past.entries(
                    self._store,
                    self._artifacts,
                    model.keys,
                    model.offset,
                    params=self._params,
                    link=link,
                    most=self._most,
                    checksum=model.position.checksum,
                )
            ) as reading:
                async for elements in reading:
                    for element in elements:
                        await self.apply(model, element)
                        if model.trouble is not None or model.halted is not None:
                            return
                    done = (model.position.n_entries - begin) / max(1, n_entries - begin)
                    progress(f"replaying {name}", min(1.0, done))
        except StoreUnavailable:
            self._most = max(1, self._most // 4)  # a reply may have been too much for the way here
            raise
        except (Damaged, UnknownOffset) as error:
            raise CannotStart(str(error)) from error
        finally:
            model.slice_events = self._params.slice_events
        self._most = MOST_ENTRIES
        model.trim = await stream.trim_of(self._store, model.keys.log)
        try:
            model.check_serving()
        except NotLoaded as missing:
            self._watcher.halted(model, missing)
            return
        model.lacks, model.ready = False, True
        log.info("replayed a model", model=name, offset=str(model.offset), entries=model.position.n_entries - begin)

    async def apply(self, model: ModelReplica, element: Element) -> None:
        """Apply one entry; every so many events, let other work of the process have its turn."""
        try:
            applied = await model.apply(element)
        except (Damaged, UnknownApplyVersion) as error:
            log.error("a model has stopped", model=model.name, reason=str(error))
            return
        except (NotLoaded, NotPrepared) as missing:
            what = "an adoption" if isinstance(missing, NotPrepared) else "an activation"
            log.warning(f"a model halts before {what}", model=model.name, reason=str(missing))
            model.ready = False
            self._watcher.halted(model, missing)
            return
        self._watcher.sighted(model, applied)
        event = applied.entry.event
        if type(event) is Mark:
            await self._watcher.marked(model, event.token)
        elif type(event) is Prepare or type(event) is PrepareVersion:
            self._watcher.prepared(model)
        self._since_pause += applied.offset.position + 1
        if self._since_pause >= model.slice_events:
            self._since_pause = 0
            await asyncio.sleep(0)


class Watcher(Protocol):
    """A replica is one."""

    def came(self, model: ModelReplica) -> None:
        """A model is followed from here on."""

    def gone(self, model: ModelReplica) -> None:
        """A model is no more."""

    def sighted(self, model: ModelReplica, applied: Applied) -> None:
        """An entry was applied."""

    async def marked(self, model: ModelReplica, token: str) -> None:
        """A mark was applied; the next entry waits until this returns."""

    def prepared(self, model: ModelReplica) -> None:
        """An index is about to be adopted, or a version to be activated."""

    def halted(self, model: ModelReplica, missing: NotPrepared | NotLoaded) -> None:
        """A model cannot go on without its shadow, or a version. Sets ``halted``, and later ``resumes``."""
