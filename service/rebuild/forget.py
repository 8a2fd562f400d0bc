"""Forget: rebuild a model without some of its events, and erase them from everything stored.

 1. ``find_events`` finds them among all events up to the present end of the log. If one of them is sent again
    before the rebuilt state is adopted (``has_repeats``), a second round covers the events that follow.
 2. ``RedactedReplay.state`` (``service/rebuild/redacted_replay.py``) replays the model from its first state
    without the events. States adopted since the first of the events are rebuilt by their recipes.
 3. The result is adopted (``service/rebuild/adoption.py``). From here on no replica has learned the events.
 4. ``Eraser.erase`` (``service/rebuild/erase.py``) deletes versions that were fitted on the events. It makes
    two snapshots past the adoption and deletes the older ones, archives the log up to the adoption, and deletes
    stored predictions of equal vectors. It writes new segments without the events and swaps all of them in at
    once. Finally it makes the store rewrite its append-only file.

A job that dies in step 4 is repeated by the next one. Whatever is needed to find the events is therefore
deleted last. Every deletion is noted in the record before it happens (``ErasureRecord``), so the record is
complete after a crash as well.

A forgotten event leaves its position empty, so no offset changes. A repeat of a forgotten request is removed
with it. A request that was refused or skipped is not learned because the request that it repeated is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from abound.core.errors import UnknownOffset
from abound.core.types import START, Offset
from abound.service.history import erasures, past
from abound.service.history.erasures import UnfinishedErasure
from abound.service.history.history import History
from abound.service.log.events import LearnEvent
from abound.service.log.stream import Element
from abound.service.rebuild.adoption import AdoptionContext
from abound.service.rebuild.redaction import AppliedAdoption, ForgetParams, OnRedacted, Redaction, adoptions_of
from abound.service.replica.predictions import PredictionEraser
from abound.service.snapshots import snapshots
from abound.service.snapshots.state_image import StateManifest
from abound.service.tasks import do_nothing


class ForgetPlan:
    """Events to forget, and the redacted log and history without them.

    Attributes
    ----------
    place : AdoptionContext
    reason : str
    report_progress : callable
        Called with the stage and the fraction done.
    erasure_record : ErasureRecord
    name : str
        Name of its adoptions.
    after : Offset or None
        Events up to here are searched; None before ``find_events``.
    first : Offset or None
        Entry of the first event to forget.
    beginning : Offset
        The beginning of history.
    adoptions : list of AppliedAdoption
        Effective adoptions up to ``after`` that are not ``complete``.
    complete : set of Offset
        Offsets of the adoptions of complete forget jobs.
    others : dict of UnfinishedErasure
        By the name of its adoptions, the events that an unfinished forget job left in history.
    rebuilt_states : dict of StateManifest
        By id, the rebuilt state files that replace adopted ones (``service/rebuild/redacted_replay.py``).
    remembered : PredictionEraser
    """

    def __init__(
        self,
        place: AdoptionContext,
        params: ForgetParams,
        tell: Callable[[str, float], None],
        cleared: ErasureRecord | None = None,
        name: str = "",
    ) -> None:
        self.place = place
        self.reason = params.reason
        self.report_progress = tell
        self.erasure_record = cleared or ErasureRecord()
        self.name = name
        self.after: Offset | None = None
        self.first: Offset | None = None
        self.beginning = START
        self.adoptions: list[AppliedAdoption] = []
        self.complete: set[Offset] = set()
        self.others: dict[str, UnfinishedErasure] = {}
        self.rebuilt_states: dict[str, StateManifest] = {}
        self.remembered = PredictionEraser(place.store, place.keys)
        self._params = params
        self._all_time = True
        self._passed: Redaction | None = None
        self._forgotten: set[tuple[str, bytes]] = set()
        self._n = {"requests": 0, "instances": 0}

    async def find_events(self, after: Offset, again: bool = False) -> dict[str, Any]:
        """Find the events up to ``after``; return their counts.

        Parameters
        ----------
        again : bool
            A job that died has begun to erase them, so none may be left.

        Raises
        ------
        UnknownOffset
            Some may lie before the beginning of history; the message names the first possible offset.
        """
        place, params = self.place, self._params
        contents = await History(place.store, place.artifacts, place.keys).manifest()
        self.beginning = START if contents is None else contents.start
        self.after, self.first = after, None
        self._n = {"requests": 0, "instances": 0}
        since = int((params.since or 0.0) * 1000)
        self._all_time = since <= self.beginning.milliseconds
        if self.beginning != START and params.key is None and not again and self._all_time:
            raise self._too_early(f"give a since of at least {self.beginning.milliseconds / 1000 + 0.001:.3f}")
        snapshot_ids = await snapshots.ids(place.store, place.keys)
        await self.remembered.read()
        self.complete = {
            at for at in await erasures.completed_adoptions(place.store, place.keys) if at[:2] <= after[:2]
        }
        adoptions = await adoptions_of(place, after)
        self.adoptions = [one for one in adoptions if one.at not in self.complete]
        adopted = {one.event.adoption for one in adoptions} - {self.name}
        others = await erasures.unfinished_erasures(place.store, place.keys)
        self.others = {job: what for job, what in others.items() if job in adopted}
        async for elements in self.redacted_entries(self.beginning, after, self._count):
            self.report_progress(f"searching: at {elements[-1][0].decode()}", 0.05)
        self._forgotten = self._passed.forgotten if self._passed is not None else set()
        if self.beginning != START and params.key is not None and self.first is None and not again:
            raise self._too_early("no request with this key has arrived since then")
        imported = self._passed.last_import if self._passed is not None else START
        if imported > START and since <= imported.milliseconds and not again and (params.key is None or not self.first):
            raise UnknownOffset(
                f"{place.keys.name} was imported from a file at {imported}; its events cannot be forgotten one by one: "
                f"give a since of at least {imported.milliseconds / 1000 + 0.001:.3f}",
                imported,
            )
        counts = {"forgotten": dict(self._n), "from": str(self.first) if self.first else None}
        if self.first is not None and not again:
            await self.erasure_record.add_counts(counts, snapshot_ids)
        return counts

    def _too_early(self, hint: str) -> UnknownOffset:
        return UnknownOffset(
            f"the history of {self.place.keys.name} begins at {self.beginning}; earlier events exist only as a base "
            f"state and cannot be forgotten one by one: {hint}",
            self.beginning,
        )

    async def end_others(self) -> None:
        """Mark unfinished forget jobs as complete, once ``find_events`` has found nothing left.

        A job begun by one worker may be finished by another whose older code does not do this.
        """
        await erasures.remove_unfinished(self.place.store, self.place.keys, self.others)

    async def has_repeats(self, at: Offset) -> bool:
        """Return whether a forgotten key was sent again after ``after`` and before the adoption at ``at``.

        Such a request was answered as a repeat, or refused for another body. It is learned on top of the
        adopted state, which does not have the receipt of the first one.
        """
        place = self.place
        if self.after is None:
            raise AssertionError("call find_events first")
        keys = {key for key, _ in self._forgotten}
        if not keys:
            return False
        reading = past.read_entries(place.store, place.artifacts, place.keys, self.after, at, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    event = past.decode_element(element).event
                    if isinstance(event, LearnEvent) and any(one.key in keys for one in event.units):
                        return True
        return False

    async def begin_redaction(self, note: OnRedacted = lambda event, gone, at: None) -> Redaction:
        """Begin a redaction pass up to ``after``, from the first state on."""
        if self.after is None:
            raise AssertionError("call find_events first")
        self._passed = emptying = Redaction(
            self.place,
            self._params,
            self.after,
            self.adoptions,
            self.complete,
            self.rebuilt_states,
            note,
            self.name,
            self.others,
        )
        await emptying.begin()
        if emptying.key_in_base and self._all_time:
            raise self._too_early("a request with this key has been learned before that")

        return emptying

    async def redacted_entries(
        self, after: Offset, until: Offset, note: OnRedacted = lambda event, gone, at: None
    ) -> AsyncGenerator[list[Element]]:
        """Yield the redacted entries after ``after`` up to ``until``; each call reads from the beginning of history."""
        place = self.place
        emptying = await self.begin_redaction(note)
        reading = past.read_entries(place.store, place.artifacts, place.keys, self.beginning, until, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                rewritten = [await emptying.redact(element) for element in elements]
                wanted = [one for one in rewritten if Offset.of_entry(one[0])[:2] > after[:2]]
                if wanted:
                    yield wanted
                await place.checkpoint()
                await asyncio.sleep(0)

    def _count(self, event: LearnEvent, gone: list[bool], at: Offset) -> None:
        if self.first is None:
            self.first = at
        for unit, is_gone in zip(event.units, gone, strict=True):
            if is_gone:
                self._n["requests"] += 1
                self._n["instances"] += unit.n
        self.remembered.compare(event, gone)


StoreRecord = Callable[[dict[str, Any]], Awaitable[None]]
"""Stores a record durably."""


class ErasureRecord:
    """Record of what one forget job erased. It is stored before each step, so that a crashed job can be resumed.

    Parameters
    ----------
    known : mapping
        The record that a job left when it died, or nothing.
    keep : async callable
        Stores the record.
    """

    def __init__(self, known: Mapping[str, Any] | None = None, keep: StoreRecord = do_nothing) -> None:
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
        """Return the complete record of the job. ``last``: values that are known only at its end."""
        return {
            **self._found,
            **{name: list(names) for name, names in self._names.items()},
            "indexes_rewritten": dict(self._remade),
            "remembered_deleted": self._n_remembered,
            **last,
        }

    async def add_counts(self, counts: Mapping[str, Any], snapshots: Iterable[str]) -> None:
        """Record the counts of the events, and the snapshots that may contain them."""
        self._found = dict(counts)
        await self.will_delete_snapshots(snapshots)

    async def will_delete_versions(self, names: Iterable[str]) -> None:
        """Record versions before they are deleted."""
        self._names["versions_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())

    async def will_delete_snapshots(self, names: Iterable[str]) -> None:
        """Record snapshots before newer ones replace them."""
        self._names["snapshots_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())

    def kept_snapshots(self, names: Iterable[str]) -> None:
        """Take snapshots that were kept out of the record."""
        for name in names:
            self._names["snapshots_deleted"].pop(name, None)

    async def will_forget_remembered(self, n: int) -> None:
        """Record the number of stored predictions before they are deleted.

        A job that died may have counted some of them already, or all.
        """
        self._n_remembered = max(self._n_remembered, n)
        await self._keep(self.record())

    async def will_rewrite(self, segments: Iterable[str], indexes: Mapping[str, str]) -> None:
        """Record segments and state files before history refers to their replacements."""
        self._names["segments_rewritten"] |= dict.fromkeys(segments)
        self._remade |= indexes
        await self._keep(self.record())

    async def will_delete_indexes(self, names: Iterable[str]) -> None:
        """Record state files before they are deleted."""
        self._names["indexes_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())
