"""Standby states of a replica: loaded when an adoption is pending, dropped when it is no longer pending.

A model that reads an adoption before its standby state is loaded **halts**: it stops applying and is not ready, so it
refuses requests to classify and to learn. It continues when its standby state is attached or when a snapshot past the
adoption is loaded, whichever comes first. It tries both until one succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from abound.history.load import load_past
from abound.history.replay import ReplaySource, bring_up
from abound.log.events import AdoptEvent, PrepareEvent
from abound.replica.announcements import POLL_SECONDS, AnnouncementFollower
from abound.state.replicated_model import ReplicatedModel, StandbyMissing, StandbyState
from abound.store.client import Store
from abound.store.lease import ADOPTION
from abound_core.errors import AboundError, Corrupted, UnknownArtifact
from abound_core.types import Offset

log = structlog.get_logger(__name__)

RETRY_SECONDS = 5.0


class Standbys(AnnouncementFollower[PrepareEvent]):
    """Loads and drops the standby states of all models of a replica."""

    def __init__(self, store: Store, source: ReplaySource, models: Mapping[str, ReplicatedModel]) -> None:
        super().__init__(store, models, ADOPTION, PrepareEvent)
        self._source = source
        self._failed: dict[str, tuple[str, float]] = {}

    def on_halt(self, model: ReplicatedModel, missing: StandbyMissing) -> None:
        model.halted = str(missing)
        before = self._tasks.pop(model.name, None)
        if before is not None and (model.standby is None or model.standby.index != missing.adopt.index):
            before.cancel()
            before = None
        self._start(model, self._resume_later(model, missing.adopt, missing.at, before))

    # internals

    def _on_announcement(self, model: ReplicatedModel, event: PrepareEvent | None) -> None:
        if model.standby is not None and (event is None or event.index != model.standby.index):
            log.info("dropping a standby state: its adoption is no longer pending", model=model.name)
            model.standby = None
        if event is None or model.standby is not None or Offset.parse(event.after) < model.position.adopted:
            return
        failed, at = self._failed.get(model.name, ("", 0.0))
        if failed != event.index or asyncio.get_running_loop().time() - at > RETRY_SECONDS:
            self._start(model, self._prepare(model, event))

    async def _prepare(self, model: ReplicatedModel, event: PrepareEvent | AdoptEvent) -> None:
        try:
            await self._bring_up(model, event)
        except AboundError as error:
            self._failed[model.name] = (event.index, asyncio.get_running_loop().time())
            log.warning("cannot load a standby state", model=model.name, index=event.index, reason=str(error))

    async def _bring_up(self, model: ReplicatedModel, event: PrepareEvent | AdoptEvent) -> None:
        model.standby = standby = StandbyState(model, event)
        try:
            await bring_up(standby, self._source)
        finally:
            if model.standby is standby and not standby.attached:
                model.standby = None
        if standby.attached:
            log.info(
                "a standby state is ready to be adopted", model=model.name, index=event.index, offset=str(model.offset)
            )

    async def _resume_later(
        self, model: ReplicatedModel, adopt: AdoptEvent, at: Offset, under_way: asyncio.Task[None] | None
    ) -> None:
        """Try the standby state and a snapshot in turn until the model can continue or is reloaded elsewhere."""
        if under_way is not None:
            await asyncio.wait([under_way])
        while model.halted is not None and self._models.get(model.name) is model:
            if await self._is_available(model, adopt, at):
                model.resumes = model.halted is not None
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _is_available(self, model: ReplicatedModel, adopt: AdoptEvent, at: Offset) -> bool:
        """Load the standby state, or else a snapshot past the adoption; return whether one is available now."""
        try:
            if model.prepared_state != adopt.index:  # the loaded one may belong to an abandoned adoption
                await self._bring_up(model, adopt)
            if model.prepared_state == adopt.index:
                return True
        except Exception as error:  # whatever it is, the model must not stay halted
            if model.halted is None:
                return False
            advice = ". Restore it from a backup" if isinstance(error, (Corrupted, UnknownArtifact)) else ""
            reason = f"it cannot adopt the index {adopt.index} at {at}: {str(error) or repr(error)}{advice}"
            if model.halted != reason:  # log each reason once, not each attempt
                unexpected = not isinstance(error, AboundError)
                log.warning("a model is halted", model=model.name, reason=reason, exc_info=unexpected)
            model.halted = reason
        try:
            return await load_past(self._store, model, at)
        except AboundError:
            return False
        except Exception as error:
            log.warning("cannot load a snapshot", model=model.name, reason=str(error))
            return False
