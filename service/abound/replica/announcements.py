"""Follows announced changes of all models of a replica: adoptions of a state, activations of a version.

The process that prepares such a change announces it in the payload of its lease. ``Standbys`` and ``LoadedVersions``
load what the change needs before it is in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from typing import Any, Generic, TypeVar

import structlog

from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store
from abound.store.lease import read_payloads
from abound.tasks import cancel_and_wait, wait_for_event
from abound_core.errors import StoreUnavailable

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0

E = TypeVar("E")


class AnnouncementFollower(Generic[E]):
    """Polls the announcements of one kind, and runs at most one task per model.

    ``models`` is a live view by name; ``kind`` is the event in the payload of the lease for ``purpose``.
    """

    def __init__(self, store: Store, models: Mapping[str, ReplicatedModel], purpose: str, kind: type[E]) -> None:
        self._store = store
        self._models = models
        self._purpose = purpose
        self._kind = kind
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._poll_due = asyncio.Event()

    async def run(self) -> None:
        while True:
            await wait_for_event(self._poll_due, POLL_SECONDS)
            self._poll_due.clear()
            with contextlib.suppress(StoreUnavailable):
                await self._poll()

    def poll_soon(self) -> None:
        self._poll_due.set()

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks.values())

    async def _poll(self) -> None:
        models = [model for model in self._models.values() if model.failure is None]
        found = await read_payloads(self._store, [one.keys for one in models], self._purpose, self._kind)
        for model, event in zip(models, found, strict=True):
            if model.halted is None and model.ready:
                self._on_announcement(model, event)

    def _on_announcement(self, model: ReplicatedModel, event: E | None) -> None:
        """Handle the present announcement, or None, of a model that is neither halted nor loading."""
        raise NotImplementedError

    def _start(self, model: ReplicatedModel, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the task of a model; cancel the one before."""
        before = self._tasks.pop(model.name, None)
        if before is not None:
            before.cancel()
        task = self._tasks[model.name] = asyncio.create_task(work, name=f"{self._purpose} {model.name}")
        task.add_done_callback(lambda done: self._ended(model.name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            log.error("preparing a change failed", purpose=self._purpose, model=name, exc_info=task.exception())
