"""Forgetting: a model without some of its events, and nothing left of them in what is kept.

 1. ``look``: which events those are, among all up to the log's present end; once more, with all that follows, when
    one of them came again before what was made is adopted (``repeated``)
 2. ``Remaking.state`` (``service/rebuild/redacted_replay.py``): the model is made anew from its beginning, the events
 being left out; what was
    adopted since the first of them is made anew as well, by its recipe
 3. that is adopted (``service/rebuild/adoption.py``): from here on nobody has learned them
 4. ``Clearing.clear`` (``service/rebuild/erase.py``): versions that were fitted on the events are deleted
    (``service/rebuild/erase.py``); two snapshots past the adoption, and none before it; the log up to it becomes
    history; remembered instances with the same vectors go; the segments of history are written anew without the events,
    one by one, and take the old ones' place in one moment; the store is told to write its file anew. Whoever dies
    meanwhile is followed by one who does it again, so what finds the events goes last; and what is about to go is noted
    before (``service/rebuild/forget.py``), so that the record has it all the same

An event that is forgotten leaves its position empty, so that no offset changes. A repeat of a forgotten request goes
with it, and no request that was refused or passed over comes to be learned because what it repeated is gone.

What a forgetting has taken out, so far: its record, noted before each step, so that whoever goes on after a crash
knows what was done by the one who died and cannot be found any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from abound.core.errors import UnknownOffset
from abound.core.types import START, Offset
from abound.service.history import erasures, past
from abound.service.history.erasures import Unfinished
from abound.service.history.history import History
from abound.service.log.events import Learn
from abound.service.log.stream import Element
from abound.service.rebuild.adoption import Place
from abound.service.rebuild.redaction import Adopted, Emptying, ForgetParams, Note, adoptions_of
from abound.service.replica.predictions import Unremembering
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots.state_files import IndexManifest


class Forgetting:
    """The events that are to be forgotten, and the past without them.

    Attributes
    ----------
    place : Place
    reason : str
    tell : callable
        Told the stage, and how far it is.
    cleared : Cleared
        The record of it.
    name : str
        Of its adoptions.
    after : Offset or None
        Events up to here are looked at; None before ``look``.
    first : Offset or None
        The entry of the first that is forgotten.
    beginning : Offset
        Of history.
    adoptions : list of Adopted
        Those up to ``after`` that were not passed over, and are not ``complete``.
    complete : set of Offset
        Where adoptions of complete forgettings are.
    others : dict of Unfinished
        By the name of its adoptions, what a former forgetting has left in history.
    remade : dict of IndexManifest
        What indexes that were adopted on the way were made anew as (``service/rebuild/redacted_replay.py``).
    remembered : Unremembering
    """

    def __init__(
        self,
        place: Place,
        params: ForgetParams,
        tell: Callable[[str, float], None],
        cleared: Cleared | None = None,
        name: str = "",
    ) -> None:
        self.place = place
        self.reason = params.reason
        self.tell = tell
        self.cleared = cleared or Cleared()
        self.name = name
        self.after: Offset | None = None
        self.first: Offset | None = None
        self.beginning = START
        self.adoptions: list[Adopted] = []
        self.complete: set[Offset] = set()
        self.others: dict[str, Unfinished] = {}
        self.remade: dict[str, IndexManifest] = {}
        self.remembered = Unremembering(place.store, place.keys)
        self._params = params
        self._all_time = True
        self._passed: Emptying | None = None
        self._forgotten: set[tuple[str, bytes]] = set()
        self._n = {"requests": 0, "instances": 0}

    async def look(self, after: Offset, again: bool = False) -> dict[str, Any]:
        """Find the events up to ``after``; how many there are.

        Parameters
        ----------
        again : bool
            One that died has begun to take them out; there may be none left.

        Raises
        ------
        UnknownOffset
            Some may lie before history's beginning; names the first possible offset.
        """
        place, params = self.place, self._params
        contents = await History(place.store, place.artifacts, place.keys).contents()
        self.beginning = START if contents is None else contents.beginning
        self.after, self.first = after, None
        self._n = {"requests": 0, "instances": 0}
        since = int((params.since or 0.0) * 1000)
        self._all_time = since <= self.beginning.milliseconds
        if self.beginning != START and params.key is None and not again and self._all_time:
            raise self._too_early(f"give a since of at least {self.beginning.milliseconds / 1000 + 0.001:.3f}")
        snapshots = await manifests.ids(place.store, place.keys)
        await self.remembered.read()
        self.complete = {at for at in await erasures.complete(place.store, place.keys) if at[:2] <= after[:2]}
        adoptions = await adoptions_of(place, after)
        self.adoptions = [one for one in adoptions if one.at not in self.complete]
        adopted = {one.event.adoption for one in adoptions} - {self.name}
        others = await erasures.unfinished(place.store, place.keys)
        self.others = {job: what for job, what in others.items() if job in adopted}
        async for elements in self.without(self.beginning, after, self._count):
            self.tell(f"looking: at {elements[-1][0].decode()}", 0.05)
        self._forgotten = self._passed.forgotten if self._passed is not None else set()
        if self.beginning != START and params.key is not None and self.first is None and not again:
            raise self._too_early("no request with this key came since then")
        imported = self._passed.imported if self._passed is not None else START
        if imported > START and since <= imported.milliseconds and not again and (params.key is None or not self.first):
            raise UnknownOffset(
                f"{place.keys.name} took over an index from a file at {imported}, of which no event can be taken out: "
                f"give a since of at least {imported.milliseconds / 1000 + 0.001:.3f}",
                imported,
            )
        counts = {"forgotten": dict(self._n), "from": str(self.first) if self.first else None}
        if self.first is not None and not again:
            await self.cleared.found(counts, snapshots)
        return counts

    def _too_early(self, hint: str) -> UnknownOffset:
        return UnknownOffset(
            f"the history of {self.place.keys.name} begins at {self.beginning}, and what came before it is only "
            f"there as an index, of which no event can be taken out: {hint}",
            self.beginning,
        )

    async def end_others(self) -> None:
        """Say that what former ones forget is gone, once ``look`` has found nothing: not all have said so themselves.

        One that was begun by a worker may be finished by another, of older code, that does not know it has to.
        """
        await erasures.end(self.place.store, self.place.keys, self.others)

    async def repeated(self, at: Offset) -> bool:
        """Whether a key of a request that is forgotten came again past ``after``, before the adoption at ``at``.

        It was answered as a repeat, or refused with another body, and is learned on top of what was adopted, which
        does not know the first one.
        """
        place = self.place
        if self.after is None:
            raise AssertionError("look first")
        keys = {key for key, _ in self._forgotten}
        if not keys:
            return False
        reading = past.entries(place.store, place.artifacts, place.keys, self.after, at, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    event = past.entry_of(element).event
                    if isinstance(event, Learn) and any(one.key in keys for one in event.units):
                        return True
        return False

    async def emptying(self, note: Note = lambda event, gone, at: None) -> Emptying:
        """One pass over the past up to ``after``, from the beginning on."""
        if self.after is None:
            raise AssertionError("look first")
        self._passed = emptying = Emptying(
            self.place,
            self._params,
            self.after,
            self.adoptions,
            self.complete,
            self.remade,
            note,
            self.name,
            self.others,
        )
        await emptying.begin()
        if emptying.came_before and self._all_time:
            raise self._too_early("a request with this key came before that, and has been learned")
        return emptying

    async def without(
        self, after: Offset, until: Offset, note: Note = lambda event, gone, at: None
    ) -> AsyncGenerator[list[Element]]:
        """The entries past ``after`` up to ``until``, with the events emptied; read from the beginning each time."""
        place = self.place
        emptying = await self.emptying(note)
        reading = past.entries(place.store, place.artifacts, place.keys, self.beginning, until, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                rewritten = [await emptying.rewritten(element) for element in elements]
                wanted = [one for one in rewritten if Offset.of_entry(one[0])[:2] > after[:2]]
                if wanted:
                    yield wanted
                await place.between()
                await asyncio.sleep(0)

    def _count(self, event: Learn, gone: list[bool], at: Offset) -> None:
        if self.first is None:
            self.first = at
        for unit, is_gone in zip(event.units, gone, strict=True):
            if is_gone:
                self._n["requests"] += 1
                self._n["instances"] += unit.n
        self.remembered.compare(event, gone)


Keep = Callable[[dict[str, Any]], Awaitable[None]]
"""Keeps a record for certain."""


async def _nowhere(record: dict[str, Any]) -> None:
    """Nobody goes on after a crash."""


class Cleared:
    """The record of one forgetting.

    Parameters
    ----------
    known : mapping
        The record as one that died has left it, or nothing.
    keep : async callable
    """

    def __init__(self, known: Mapping[str, Any] | None = None, keep: Keep = _nowhere) -> None:
        known = known or {}
        self._keep = keep
        self._found: dict[str, Any] = {name: known[name] for name in ("forgotten", "from") if name in known}
        self._names: dict[str, dict[str, None]] = {
            name: dict.fromkeys(known.get(name, ()))
            for name in ("versions_deleted", "snapshots_deleted", "segments_rewritten", "indexes_deleted")
        }
        self._remade: dict[str, str] = dict(known.get("indexes_rewritten", {}))
        self._n_remembered = int(known.get("remembered_deleted", 0))

    def record(self, **last: Any) -> dict[str, Any]:
        """All of it, and what is only known at the end."""
        return {
            **self._found,
            **{name: list(names) for name, names in self._names.items()},
            "indexes_rewritten": dict(self._remade),
            "remembered_deleted": self._n_remembered,
            **last,
        }

    async def found(self, counts: Mapping[str, Any], snapshots: Iterable[str]) -> None:
        """What is to be forgotten, and which snapshots there are that may hold it."""
        self._found = dict(counts)
        await self.will_delete_snapshots(snapshots)

    async def will_delete_versions(self, names: Iterable[str]) -> None:
        """These go now."""
        self._names["versions_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())

    async def will_delete_snapshots(self, names: Iterable[str]) -> None:
        """These go as newer ones come."""
        self._names["snapshots_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())

    def kept_snapshots(self, names: Iterable[str]) -> None:
        """These have stayed."""
        for name in names:
            self._names["snapshots_deleted"].pop(name, None)

    async def will_forget_remembered(self, n: int) -> None:
        """So many remembered instances go; one that died may have counted some of them already, or all."""
        self._n_remembered = max(self._n_remembered, n)
        await self._keep(self.record())

    async def will_rewrite(self, segments: Iterable[str], indexes: Mapping[str, str]) -> None:
        """History is about to name others in the place of these."""
        self._names["segments_rewritten"] |= dict.fromkeys(segments)
        self._remade |= indexes
        await self._keep(self.record())

    async def will_delete_indexes(self, names: Iterable[str]) -> None:
        """These go now."""
        self._names["indexes_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())
