"""Model directory of a replica: look up, create and delete models.

Creation and deletion only append to the catalog. The follower of each replica carries them out when it reads the
entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

from abound.log import stream
from abound.log.catalog import CATALOG_KEY, DEFAULT_MODEL, append_to_catalog
from abound.log.events import ModelCreated, ModelDeleted
from abound.processes import kernel_compiler
from abound.replica.follower import Follower
from abound.replica.health import Health
from abound.state import snapshots
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store
from abound.store.reconnecting_connection import ReconnectingConnection
from abound.tasks import wait_until
from abound_core.config import ModelConfig
from abound_core.errors import (
    Conflict,
    InvalidInstance,
    NotReady,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownModel,
    did_you_mean,
)
from abound_core.limits import MODEL_NAME, NAME_RULE
from abound_core.types import Offset

DEFAULT_PAUSE_SECONDS = 1.0
CATALOG_SECONDS = 1.0
ARRIVAL_SECONDS = 10.0


class ModelDirectory:
    def __init__(
        self,
        store: Store,
        follower: Follower,
        connection: ReconnectingConnection,
        health: Health,
        most: int,
        default_update: str,
    ) -> None:
        self._store = store
        self._follower = follower
        self._connection = connection
        self._health = health
        self._most = most
        self._default_update = default_update

    def new_config(self, fields: dict[str, Any]) -> ModelConfig:
        return ModelConfig.from_dict({"update": self._default_update} | fields)

    def names(self) -> list[str]:
        return [living.keys.name for living in self._follower.catalog if living.keys.name in self._follower.models]

    def get(self, name: str) -> ReplicatedModel:
        model = self._follower.models.get(name)
        if model is None:
            raise UnknownModel(f"there is no model {name[:64]!r}", did_you_mean(name, self._follower.models))
        return model

    def trusted(self, name: str) -> ReplicatedModel:
        """Return the model of this name; raise NotReady if its state cannot be trusted now."""
        model = self._follower.models.get(name)
        if model is None:
            check_name(name)
            return self.get(name)
        model.check_ready()
        return model

    async def find(self, name: str) -> ReplicatedModel:
        """Return what ``trusted`` does, after the whole catalog is applied if there is no such model yet."""
        if name not in self._follower.models:
            await self.catch_up(ARRIVAL_SECONDS)
        return self.trusted(name)

    def check_changeable(self, model: ReplicatedModel) -> None:
        """Raise NotReady, or UnknownModel if the model was deleted, unless it and this replica accept changes."""
        if self.get(model.name) is not model:
            raise UnknownModel(f"the model {model.name} was deleted, and another one was created under its name")
        model.check_ready()
        self._check_accepting()

    async def catch_up(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until this replica has applied what the catalog has now.

        A client may create a model on one replica and ask another one immediately. Raises StoreUnavailable if the
        store does not answer, and NotReady if this replica has not applied it in time.
        """
        try:
            async with asyncio.timeout(min(timeout, CATALOG_SECONDS)):
                newest = await stream.newest_after(self._store, CATALOG_KEY, self._follower.models_offset)
        except TimeoutError:
            raise StoreUnavailable("the store did not answer in time") from None
        if newest is not None:
            await self._wait_until_read(newest, timeout)

    def all(self) -> list[ReplicatedModel]:
        return [self.get(name) for name in self.names()]

    def check_can_create(self, name: str) -> None:
        """Raise InvalidInstance or Conflict, as ``create`` does, unless the name is in use or can be created."""
        check_name(name)
        if name not in self._follower.models and len(self._follower.models) >= self._most:
            raise Conflict(
                f"there are {len(self._follower.models)} models, of at most {self._most}; "
                "delete one, or raise ABOUND_MAX_MODELS"
            )

    async def create(self, name: str, config: ModelConfig, timeout: float = 10.0) -> bool:  # noqa: ASYNC109
        """Create a model unless its name is in use; return True if this call created it.

        Raises InvalidInstance (field ``model``), Conflict at the maximum of models, StoreUnavailable if nothing was
        appended, OutcomeUnknown if the store did not answer, and NotReady if this replica accepts no changes, has not
        compiled the kernels, or did not read the change in time.
        """
        self.check_can_create(name)
        if name in self._follower.models:
            return False
        self._check_accepting()
        await kernel_compiler.wait_until_loaded(config, kernel_compiler.PATIENCE_SECONDS)
        created = await self._append(ModelCreated(name, config.to_dict()))
        await self._wait_until_read(created, timeout)
        model = self._follower.models.get(name)
        return model is not None and model.incarnation == created.entry

    async def delete(self, name: str, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """Delete a model and all of its data in the store.

        The worker deletes its data in the artifact store some minutes later: if the store loses its last second or
        fails over, the model exists again and needs its history. Deleting the model ``default`` creates a new one.
        """
        model = self.get(name)
        self._check_accepting()
        last = await self._append(ModelDeleted(name, model.incarnation))
        if name == DEFAULT_MODEL:
            last = await self.create_default()
        await self._wait_until_read(last, timeout)
        living = self._follower.catalog.get(name)
        if living is not None and Offset.of_entry(living.keys.incarnation) < last:  # it was replaced meanwhile
            await self.delete(name, timeout)
            return
        await snapshots.delete_incarnation(self._store, model.keys)

    async def create_default(self) -> Offset:
        return await self._append(ModelCreated(DEFAULT_MODEL, self.new_config({}).to_dict()))

    async def restore_default(self) -> None:
        """Create the default model again if an emptied store has none. ``delete`` creates it immediately."""
        while True:
            await asyncio.sleep(DEFAULT_PAUSE_SECONDS)
            if DEFAULT_MODEL in self._follower.models:
                return
            with contextlib.suppress(StoreUnavailable, OutcomeUnknown):
                await self.create_default()

    def _check_accepting(self) -> None:
        if self._health.stage != "ready":
            raise NotReady(f"this replica accepts no changes: {self._health.stage}")

    async def _append(self, event: ModelCreated | ModelDeleted) -> Offset:
        try:
            async with asyncio.timeout(self._store.params.connect_seconds):
                await self._connection.wait_open()
        except TimeoutError:
            raise StoreUnavailable("the store is away; nothing was changed") from None
        if self._connection.info is not None:
            self._connection.info.check_safe()
        return await append_to_catalog(self._connection, event, self._store.params.reply_seconds)

    async def _wait_until_read(self, offset: Offset, timeout: float) -> None:  # noqa: ASYNC109
        async def is_read() -> bool:
            return self._follower.models_offset >= offset

        if not await wait_until(is_read, 0.002, timeout):
            raise NotReady("this replica has not applied the last change of the catalogue yet; try again in a moment")


def check_name(name: str) -> str:
    if re.fullmatch(MODEL_NAME[1:-1], name) is None:
        raise InvalidInstance(f"a model's name {NAME_RULE}", "model")
    return name
