"""The models of a replica: which there are, and how one comes and goes at somebody's word.

Nothing here takes a model up or drops it. What is to come or go is appended to the catalog; the follower does it, here
and everywhere, when it meets the entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import re

from abound.core.config import ModelConfig
from abound.core.errors import Conflict, InvalidInstance, NotReady, OutcomeUnknown, StoreUnavailable, UnknownModel
from abound.core.limits import MODEL_NAME
from abound.core.types import Offset
from abound.service.log.catalog import DEFAULT_MODEL, append_to_catalog
from abound.service.log.events import Created, Deleted
from abound.service.model.replicated_model import ModelReplica
from abound.service.processes import kernel_compiler
from abound.service.replica.follower import Follower
from abound.service.replica.health import Health
from abound.service.snapshots import snapshots
from abound.service.store.client import Store
from abound.service.store.reconnecting import Line

DEFAULT_PAUSE_SECONDS = 1.0


class Models:
    """The models that a follower has.

    Parameters
    ----------
    line : Line
        To append to the catalog over.
    most : int
        At which no more are created.
    """

    def __init__(self, store: Store, follower: Follower, line: Line, health: Health, most: int) -> None:
        self._store = store
        self._follower = follower
        self._line = line
        self._health = health
        self._most = most

    def names(self) -> list[str]:
        """The names of all models, in order of creation."""
        return [living.keys.name for living in self._follower.catalog if living.keys.name in self._follower.models]

    def get(self, name: str) -> ModelReplica:
        """The model of this name; UnknownModel when there is none."""
        model = self._follower.models.get(name)
        if model is None:
            raise UnknownModel(f"there is no model {name[:64]!r}")
        return model

    def all(self) -> list[ModelReplica]:
        """All models, in order of creation."""
        return [self.get(name) for name in self.names()]

    def check_new(self, name: str) -> None:
        """InvalidInstance or Conflict when there is no model of this name and none can come, as ``create`` says."""
        check_name(name)
        if name not in self._follower.models and len(self._follower.models) >= self._most:
            raise Conflict(f"there are {len(self._follower.models)} models, of at most {self._most}")

    async def create(self, name: str, config: ModelConfig, timeout: float = 10.0) -> bool:  # noqa: ASYNC109
        """Create a model, unless its name is in use; True when this call created it.

        Raises
        ------
        InvalidInstance
            No model can have this name (field ``model``).
        Conflict
            There are as many models as there may be.
        StoreUnavailable
            Nothing was appended.
        OutcomeUnknown
            The store did not answer.
        NotReady
            This replica takes nothing now, has no kernels for the model yet, or did not come to the change in time.
        """
        self.check_new(name)
        if name in self._follower.models:
            return False
        self._health.check_taking()
        await kernel_compiler.loaded(config, kernel_compiler.PATIENCE_SECONDS)
        created = await self._append(Created(name, config.written()))
        await self._come_to(created, timeout)
        model = self._follower.models.get(name)
        return model is not None and model.incarnation == created.entry

    async def delete(self, name: str, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """Delete a model and everything that the store holds of it. Raises UnknownModel, and what ``create`` raises.

        What the artifact store holds of it is left to the worker, who sweeps it some minutes later: a store that loses
        its last second, or fails over, has the model again, and needs its history.

        The model ``default`` is always there: deleting it makes a new one.
        """
        model = self.get(name)
        self._health.check_taking()
        last = await self._append(Deleted(name, model.incarnation))
        if name == DEFAULT_MODEL:
            last = await self.create_default()
        await self._come_to(last, timeout)
        await snapshots.erase(self._store, model.keys)

    async def create_default(self) -> Offset:
        """Append that the model ``default`` comes; the offset of the entry. StoreUnavailable, OutcomeUnknown."""
        return await self._append(Created(DEFAULT_MODEL, ModelConfig().written()))

    async def restore_default(self) -> None:
        """Make the default model anew when a store that was emptied has none; whoever deletes one makes it at once."""
        while True:
            await asyncio.sleep(DEFAULT_PAUSE_SECONDS)
            if DEFAULT_MODEL in self._follower.models:
                return
            with contextlib.suppress(StoreUnavailable, OutcomeUnknown):
                await self.create_default()

    async def _append(self, event: Created | Deleted) -> Offset:
        """Append to the catalog; the offset of the entry."""
        try:
            async with asyncio.timeout(self._store.params.connect_seconds):
                await self._line.opened()
        except TimeoutError:
            raise StoreUnavailable("the store is away; nothing was changed") from None
        if self._line.facts is not None:
            self._line.facts.check_safe()
        return await append_to_catalog(self._line, event, self._store.params.reply_seconds)

    async def _come_to(self, offset: Offset, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until the follower has come to an entry of the catalog."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._follower.catalog.offset < offset:
            if loop.time() > deadline:
                raise NotReady("the change is in the catalog; this replica has not come to it yet")
            await asyncio.sleep(0.002)


def check_name(name: str) -> str:
    """The name of a model; InvalidInstance (field ``model``) when no model can have it."""
    if re.fullmatch(MODEL_NAME[1:-1], name) is None:
        raise InvalidInstance(
            "a model's name begins with a letter or digit and has up to 64 letters, digits, '_', '.' and '-'", "model"
        )
    return name
