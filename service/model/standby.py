"""Standby state: a state that may be adopted, next to the live state of one model in one process.

1. The state file is loaded from the artifact store. Its digest must be the one in the event.
2. The entries after the offset of the state file are replayed on top; the last ones while the live state is paused.
3. The standby state is then as far as the live state, and attached: each entry is applied to both.
4. At the adoption it replaces the live state.

So the state after an adoption at B is the state file plus a replay from its offset to B, on every replica and at any
time. The standby state is not part of the replicated state: if it is dropped, or lost with its process, it can be
rebuilt.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from abound.core.errors import AboundError, Corrupted, UnknownArtifact
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.log.events import AdoptEvent, ConfigureEvent, Event, LearnEvent, PrepareEvent, decode_entry
from abound.service.log.stream import Element
from abound.service.model.replicated_model import ReplicatedModel, StandbyMissing, configure, learn

if TYPE_CHECKING:
    from abound.service.history.replay import ReplaySource

PAUSE_SECONDS = 0.02

CLOSE_SECONDS = 0.2
"""A standby state that caught up within this time replays the rest while the live state is paused."""

MAX_ROUNDS = 50
"""So does a standby state after this many rounds, since it is hardly faster than new entries arrive."""


class StandbyState:
    """A state that is loaded to replace the live state.

    Attributes
    ----------
    index, digest : str
    live : LiveModel
        Set by ``bring_up``.
    offset : Offset
        Of the last applied entry.
    attached : bool
    """

    live: LiveModel

    def __init__(self, model: ReplicatedModel, event: PrepareEvent | AdoptEvent) -> None:
        self.index = event.index
        self.digest = event.digest
        self.offset = Offset.parse(event.after)
        self.attached = False
        self._model = model

    @property
    def n_bytes(self) -> int:
        """Return its memory in bytes; until it is loaded, that of the live state as an estimate."""
        return getattr(self, "live", self._model.live).n_bytes

    async def bring_up(self, source: ReplaySource, progress: Callable[[float], None] = lambda done: None) -> None:
        """Load the state file and replay until the standby state is attached.

        Return without attaching it when the model has another standby state, or none, meanwhile.

        Raises
        ------
        Corrupted, UnknownArtifact, ArtifactsUnavailable, StoreUnavailable
            It cannot be loaded, or not now.
        """
        model = self._model
        loop = asyncio.get_running_loop()
        self.live = await source.load(model.keys, self.index, self.digest, model.limits, progress)
        for n_rounds in itertools.count():
            began = loop.time()
            while model.standby is self and model.offset[:2] < self.offset[:2]:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_SECONDS)  # the live state has not reached the state file's offset yet
            await self._catch_up(source)
            if loop.time() - began < CLOSE_SECONDS or n_rounds >= MAX_ROUNDS:
                break
        async with model.paused():
            await self._catch_up(source)
            self.attached = model.standby is self

    async def _catch_up(self, source: ReplaySource) -> None:
        """Replay up to the current offset of the live state, unless the model has dropped this standby state."""
        model = self._model
        until = model.offset
        if model.standby is not self or until[:2] <= self.offset[:2]:
            return
        async for elements in source.entries(model.keys, self.offset, until):
            for entry_id, fields in elements:
                await self.apply(decode_entry(fields).event, Offset.of_entry(entry_id))
            if model.standby is not self:
                return
            await asyncio.sleep(0)
        if self.offset[:2] < until[:2]:
            raise Corrupted(f"the log of {model.name} no longer has entry {until.entry}")

    async def apply(self, event: Event, at: Offset) -> None:
        """Apply the event of an entry. Ignore adoptions: after another adoption this standby state is not adopted."""
        if type(event) is LearnEvent:
            await learn(self.live, event, at, self._model.slice_events)
        elif type(event) is ConfigureEvent:
            await configure(self.live, event)
        self.offset = at


async def apply(model: ReplicatedModel, element: Element, source: ReplaySource) -> None:
    """Apply the next entry; if it adopts a state, load that first. Raise what ``apply`` and ``bring_up`` raise."""
    try:
        await model.apply(element)
    except StandbyMissing as missing:
        model.standby = shadow = StandbyState(model, missing.adopt)
        try:
            await shadow.bring_up(source)
        except AboundError as error:
            model.standby = None
            if isinstance(error, (Corrupted, UnknownArtifact)):
                raise type(error)(f"{error}. `abound history show` says what can be done about it") from error
            raise
        await model.apply(element)
