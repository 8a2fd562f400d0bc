"""A shadow: an index that may be adopted, beside the live state of one model of one process.

1. the index is loaded from the artifact store; its digest is the one that the event names
2. what came after the index's offset is replayed on top, the last bit of it while the live state is at rest
3. so the shadow is as far as the live state, and attached: what the live state applies, it applies as well
4. at the adoption it takes the live state's place

So the state after an adoption at B is the index + a replay from its offset to B, wherever and whenever it is made. A
shadow is no state itself: one that is dropped, or lost with its process, can be made again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from abound.core.errors import AboundError, Damaged, UnknownArtifact
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.log.events import Adopt, Configure, Event, Learn, Prepare, decode_entry
from abound.service.log.stream import Element
from abound.service.model.replicated_model import ModelReplica, NotPrepared, configure, learn

if TYPE_CHECKING:
    from abound.service.history.replay import Source

PAUSE_SECONDS = 0.02

CLOSE_SECONDS = 0.2
"""A shadow that took no longer to come to where the live state was takes the rest while that one is at rest."""

MOST_ROUNDS = 50
"""So does one that has tried so often, since it is hardly faster than what comes."""


class Shadow:
    """An index on its way to the live state's place.

    Attributes
    ----------
    index, digest : str
    live : LiveModel
        After ``bring_up``.
    offset : Offset
        Of the entry applied last.
    attached : bool
    """

    live: LiveModel

    def __init__(self, model: ModelReplica, event: Prepare | Adopt) -> None:
        self.index = event.index
        self.digest = event.digest
        self.offset = Offset.parse(event.after)
        self.attached = False
        self._model = model

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that it takes, or is about to: until it is loaded, as much as the live state."""
        return getattr(self, "live", self._model.live).n_bytes

    async def bring_up(self, source: Source, progress: Callable[[float], None] = lambda done: None) -> None:
        """Load the index and replay until it is attached.

        Returns without having been attached when the model has got another shadow, or none, meanwhile.

        Raises
        ------
        Damaged, UnknownArtifact, ArtifactsUnavailable, StoreUnavailable
            It cannot be had, or not now.
        """
        model = self._model
        loop = asyncio.get_running_loop()
        self.live = await source.load(model.keys, self.index, self.digest, model.limits, progress)
        for n_rounds in itertools.count():
            began = loop.time()
            while model.shadow is self and model.offset[:2] < self.offset[:2]:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_SECONDS)  # the live state has not come to the index's offset yet
            await self._catch_up(source)
            if loop.time() - began < CLOSE_SECONDS or n_rounds >= MOST_ROUNDS:
                break
        async with model.at_rest():
            await self._catch_up(source)
            self.attached = model.shadow is self

    async def _catch_up(self, source: Source) -> None:
        """Replay up to where the live state is now, unless this is not its shadow any more."""
        model = self._model
        until = model.offset
        if model.shadow is not self or until[:2] <= self.offset[:2]:
            return
        async for elements in source.entries(model.keys, self.offset, until):
            for entry_id, fields in elements:
                await self.apply(decode_entry(fields).event, Offset.of_entry(entry_id))
            if model.shadow is not self:
                return
            await asyncio.sleep(0)
        if self.offset[:2] < until[:2]:
            raise Damaged(f"the log of {model.name} has no entry {until.entry} any more")

    async def apply(self, event: Event, at: Offset) -> None:
        """Apply the event of an entry. Adoptions are passed over: after another one this shadow is adopted no more."""
        if type(event) is Learn:
            await learn(self.live, event, at, self._model.slice_events)
        elif type(event) is Configure:
            await configure(self.live, event)
        self.offset = at


async def apply(model: ModelReplica, element: Element, source: Source) -> None:
    """Apply the next entry; if it adopts an index, get that first. Raises what ``apply`` and ``bring_up`` raise."""
    try:
        await model.apply(element)
    except NotPrepared as missing:
        model.shadow = shadow = Shadow(model, missing.adopt)
        try:
            await shadow.bring_up(source)
        except AboundError as error:
            model.shadow = None
            if isinstance(error, (Damaged, UnknownArtifact)):
                raise type(error)(f"{error}. `abound history show` says what can be done about it") from error
            raise
        await model.apply(element)
