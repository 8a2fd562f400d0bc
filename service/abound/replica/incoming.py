"""Incoming models: incarnations that are about to replace a model, loaded beside the one that is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from abound.log.catalog import Catalog, Coming
from abound.replica.loader import Loader
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store
from abound.tasks import cancel_and_wait
from abound_core.errors import AboundError

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0


class IncomingModels:
    """Loads incarnations in tasks of their own. ``on_loaded`` is called when one has caught up with its log."""

    def __init__(
        self,
        store: Store,
        loader: Loader,
        make: Callable[[Coming, str], ReplicatedModel],
        on_loaded: Callable[[ReplicatedModel], None],
    ) -> None:
        self.models: dict[str, ReplicatedModel] = {}  # by incarnation
        self._store = store
        self._loader = loader
        self._make = make
        self._on_loaded = on_loaded
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def update(self, catalog: Catalog) -> None:
        """Begin to load what the catalog has prepared."""
        for living in catalog:
            coming = catalog.coming.get(living.keys.name)
            if coming is not None and coming.config is not None and coming.keys.incarnation not in self.models:
                self.models[coming.keys.incarnation] = model = self._make(coming, living.origin)
                self._start(model)

    def abandoned(self, catalog: Catalog) -> list[ReplicatedModel]:
        """Return the models that the catalog does not have any more."""
        known = {keys.incarnation for keys in catalog.incarnations()}
        return [model for incarnation, model in self.models.items() if incarnation not in known]

    def is_loading(self, model: ReplicatedModel) -> bool:
        return model.incarnation in self._tasks

    def is_loaded(self, model: ReplicatedModel) -> bool:
        """Return whether a model is ready and its task, which applied entries to it, has ended."""
        return model.ready and not self.is_loading(model)

    def _start(self, model: ReplicatedModel) -> None:
        task = asyncio.create_task(self._load(model), name=f"incoming {model.name}")
        self._tasks[model.incarnation] = task
        task.add_done_callback(lambda done: self._ended(model, done))

    def drop(self, model: ReplicatedModel) -> None:
        task = self._tasks.pop(model.incarnation, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks.values())

    async def _load(self, model: ReplicatedModel) -> None:
        """Load a model, and try again until that succeeds."""
        while model.failure is None:
            try:
                connection = await self._store.open_connection("incoming")
                try:
                    await self._loader.load(connection, model)
                finally:
                    connection.close()
            except AboundError as error:
                if model.halted != str(error):
                    log.warning("cannot load what replaces a model yet", model=model.name, reason=str(error))
                model.halted = str(error)
            else:
                if model.ready:
                    return
            await asyncio.sleep(RETRY_SECONDS)

    def _ended(self, model: ReplicatedModel, task: asyncio.Task[None]) -> None:
        if self._tasks.get(model.incarnation) is not task:
            return
        del self._tasks[model.incarnation]
        if task.cancelled():
            return
        if task.exception() is not None:
            log.error("loading what replaces a model failed", model=model.name, exc_info=task.exception())
            model.failure = repr(task.exception())
        else:
            self._on_loaded(model)
