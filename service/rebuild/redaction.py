"""Redaction: one pass over a model's log and history that removes some events and keeps the positions of all.

A repeat of a removed request is removed with it. A request that was refused or skipped as a repeat must not be
learned because the request that it repeated is gone. The pass therefore tracks receipts as they were
(``OutcomeReplay``). From the first removed event on, it also removes every request that was not learned.

Events between the offset A of a rebuilt state and its adoption were learned twice: by the live state, and on
top of the rebuilt state. The rebuilt state may lack receipts, for example after a restore. The pass tracks
both, and keeps what either of them learned.

Events after ``after`` are replayed on the state that this forget job adopts. That state lacks the receipts of
forgotten keys. The replay therefore learns a repeat of a forgotten request that arrived before the adoption, and a
request that was refused because its body differs from that of a forgotten request with the same key. A second round
with another adoption removes both (``service/jobs/rebuild.py``). In that round, only the live state decides what was
learned before the adoptions of forget jobs.

A request that arrives after the adoption counts as a new one. So does a request that was refused before, and is
now answered as a repeat of the event that the adoption learned.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from abound.core.errors import UnknownOffset
from abound.core.instances.record import record_ends
from abound.core.limits import MAX_SOURCE_CHARACTERS, Limits
from abound.core.model.apply import OutcomeReplay, Unit
from abound.core.model.receipts import BodyMismatch, Outcome, Receipt
from abound.core.types import START, Offset
from abound.service.history import past
from abound.service.history.erasures import UnfinishedErasure, mark_of
from abound.service.history.history import History
from abound.service.log.events import AdoptEvent, Entry, LearnEvent, PrepareEvent, adoption_after, decode_entry, encode
from abound.service.log.stream import Element
from abound.service.rebuild.adoption import AdoptionContext
from abound.service.snapshots import state_files
from abound.service.snapshots.state_image import StateManifest

OnRedacted = Callable[[LearnEvent, list[bool], Offset], None]
"""Called for each entry from which requests are removed: the original entry, which requests, and its offset."""

LATEST = 1e12
"""Latest accepted Unix time."""


@dataclass(frozen=True, kw_only=True)
class ForgetParams:
    """Events to forget: those that match all given conditions.

    Attributes
    ----------
    key : str or None
        The events of the request with this idempotency key.
    source : str or None
        The events that were sent with this ``source``; the page sends ``page``.
    since : float or None
        The events appended at this time or later: seconds since 1970 (Unix time), by the store's clock.
    until : float or None
        The events appended at this time or before: seconds since 1970 (Unix time), by the store's clock.
    reason : str
        The reason, 1 to 1000 characters; stored with the job.
    """

    reason: str
    key: str | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.reason) <= 1000:
            raise ValueError("reason must say why, in 1 to 1000 characters")
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None and not 0 <= at <= LATEST:
                raise ValueError(f"{name} must be from 0 to {LATEST:.0f} seconds")
        if self.key is None and self.source is None and self.since is None and self.until is None:
            raise ValueError("key, source, since or until must say which events")
        if max(len(self.key or ""), len(self.source or "")) > MAX_SOURCE_CHARACTERS:
            raise ValueError(f"key and source have at most {MAX_SOURCE_CHARACTERS} characters")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError("since must not be after until")

    def matches(self, unit: Unit, at: Offset) -> bool:
        """Return whether a request in the entry at an offset is to be forgotten."""
        return (
            (self.key is None or unit.key == self.key)
            and (self.source is None or unit.source == self.source)
            and (self.since is None or at.milliseconds >= int(self.since * 1000))
            and (self.until is None or at.milliseconds <= int(self.until * 1000))
        )


class AppliedAdoption(NamedTuple):
    """Adoption that took effect at ``at``; its state stands for everything up to ``after``."""

    at: Offset
    after: Offset
    event: AdoptEvent


async def adoptions_of(place: AdoptionContext, until: Offset) -> list[AppliedAdoption]:
    """Return the effective adoptions in a model's log and history up to an offset, in order.

    Raises what reading them raises.
    """
    contents = await History(place.store, place.artifacts, place.keys).manifest()
    beginning, last = START, START
    if contents is not None:
        beginning = contents.start
        last = contents.base.position.adopted if contents.base is not None else START
    found = []
    reading = past.read_entries(place.store, place.artifacts, place.keys, beginning, until, params=place.log)
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                after = adoption_after(element)
                event = decode_entry(element[1]).event if after is not None and after >= last else None
                if after is not None and isinstance(event, AdoptEvent):
                    last = Offset.of_entry(element[0])
                    found.append(AppliedAdoption(last, after, event))
            await place.checkpoint()
    return found


class Redaction:
    """One redaction pass, from the first state on.

    Parameters
    ----------
    params : ForgetParams
        The events to remove.
    after : Offset
        Events after this offset are not changed.
    adoptions : sequence of AppliedAdoption
        Effective adoptions up to ``after`` that are not ``complete``.
    complete : collection of Offset
        Offsets of adoptions whose forget jobs are complete (``service/history/erasures.py``); each is replaced
        by a mark.
    remade : mapping
        By id, the rebuilt state files that replace adopted ones.
    note : callable
    own : str
        The name of this job's adoptions, also those of earlier rounds.
    others : mapping
        By the name of its adoptions, the events that an unfinished forget job left in history; they are removed
        as well.

    Attributes
    ----------
    forgotten : set of (str, bytes)
        Key and body of the removed requests.
    key_in_base : bool
        A request with the key to forget was learned before the beginning of history.
    last_import : Offset
        Offset of the last import, whose events are not in the log or history.
    """

    def __init__(
        self,
        place: AdoptionContext,
        params: ForgetParams,
        after: Offset,
        adoptions: Sequence[AppliedAdoption],
        complete: Collection[Offset],
        remade: Mapping[str, StateManifest],
        note: OnRedacted,
        own: str,
        others: Mapping[str, UnfinishedErasure],
    ) -> None:
        self._place = place
        self._params = params
        self._after = after
        self._remade = remade
        self._note = note
        self._own = {own, *others}
        self._others = [
            (ForgetParams(reason="r", key=one.key, source=one.source, since=one.since, until=one.until), one.after)
            for one in others.values()
        ]
        self.forgotten: set[tuple[str, bytes]] = set()
        self._refused: set[tuple[str, bytes]] = set()  # refused at first, then learned by a forget job's adoption
        self._outcomes = OutcomeReplay()
        self._ahead: OutcomeReplay | None = None
        self._is_in_index = False  # whether the next adopted state has learned a request with the key to forget
        self._adoptions = deque(adoptions)
        self._complete = complete
        self._began = False
        self.key_in_base = False
        self.last_import = START

    async def begin(self) -> None:
        """Load the receipts of the first state."""
        place = self._place
        contents = await History(place.store, place.artifacts, place.keys).manifest()
        if contents is not None and contents.base is not None:
            base = contents.base
            live = await state_files.load(place.artifacts, place.keys, base.index, base.digest, Limits())
            self._outcomes = OutcomeReplay(live.receipts)
            self.key_in_base = self._params.key is not None and self._params.key in live.receipts

    async def redact(self, element: Element) -> Element:
        """Return the next entry without the events to forget."""
        name = element[0]
        entry = past.decode_element(element)
        event, at = entry.event, Offset.of_entry(name)
        if self._adoptions and at[:2] > self._adoptions[0].after[:2]:
            await self._come_to_adoption(self._adoptions[0], at)
        if isinstance(event, LearnEvent):
            changed = self._emptied(event, at)
            return element if changed is event else element_of(name, msgspec.structs.replace(entry, event=changed))
        if isinstance(event, AdoptEvent) and at in self._complete:
            return element_of(name, msgspec.structs.replace(entry, event=mark_of(event)))
        if isinstance(event, AdoptEvent | PrepareEvent):
            new = self._remade.get(event.index)
            if new is not None:
                changed_event = msgspec.structs.replace(event, index=new.id, digest=new.digest)
                return element_of(name, msgspec.structs.replace(entry, event=changed_event))
        return element

    async def _come_to_adoption(self, adopted: AppliedAdoption, at: Offset) -> None:
        """Track outcomes on top of the rebuilt state; from its adoption on, only those count.

        Raises UnknownOffset if an imported state has learned a request with the key: later ones are only its repeats.
        """
        place, event = self._place, adopted.event
        if self._ahead is None:
            live = await state_files.load(place.artifacts, place.keys, event.index, event.digest, Limits())
            self._is_in_index = self._params.key is not None and self._params.key in live.receipts
            self._ahead = OutcomeReplay(live.receipts)
        if at[:2] < adopted.at[:2]:
            return
        self._outcomes, self._ahead = self._ahead, None
        self._adoptions.popleft()
        recipe = (await state_files.read_manifest(place.artifacts, place.keys, event.index)).recipe
        if recipe.get("method") == "import":
            self.last_import = adopted.at
            if self._is_in_index and int((self._params.since or 0.0) * 1000) <= adopted.at.milliseconds:
                raise UnknownOffset(
                    f"{place.keys.name} was imported from a file at {adopted.at}; its events cannot be forgotten one "
                    "by one, and a request with this key has been learned in it: give a since of at least "
                    f"{adopted.at.milliseconds / 1000 + 0.001:.3f}",
                    adopted.at,
                )

    def _emptied(self, event: LearnEvent, at: Offset) -> LearnEvent:
        if at[:2] > self._after[:2]:
            return event
        units = event.units
        told, learned = self._follow(event, at)
        matching = [self._params, *(one for one, after in self._others if at[:2] <= Offset.parse(after)[:2])]
        gone = [not unit.emptied and any(one.matches(unit, at) for one in matching) for unit in units]
        for i, unit in enumerate(units):
            if unit.key is None or unit.emptied:
                continue
            request = (unit.key, unit.body)
            if gone[i]:
                self.forgotten.add(request)
            elif request in self.forgotten:
                gone[i] = not learned[i]
            elif request in self._refused and isinstance(told[i], Receipt):
                self._refused.discard(request)
                learned[i] = True
        if any(gone):
            self._began = True
            self._note(event, gone, at)
        if self._began:  # a request that was not learned must stay so
            gone = [one or not good for one, good in zip(gone, learned, strict=True)]
        if not any(is_gone and not unit.emptied for unit, is_gone in zip(units, gone, strict=True)):
            return event
        ends = record_ends(event.records, event.n_records).tolist()
        kept: list[Unit] = []
        records: list[bytes] = []
        place = 0
        for unit, is_gone in zip(units, gone, strict=True):
            n = 0 if unit.emptied else unit.n
            if is_gone or unit.emptied:
                kept.append(Unit(unit.n, batch=unit.batch, emptied=True))
            else:
                kept.append(unit)
                records.append(event.records[ends[place] : ends[place + n]])
            place += n
        return LearnEvent(b"".join(records), event.n, kept)

    def _follow(self, event: LearnEvent, at: Offset) -> tuple[list[Outcome], list[bool]]:
        """Return the live state's outcome for each request of the next entry, and whether any tracked state learned it.

        For the adoptions of this job and of unfinished forget jobs, only the live state counts.
        """
        units = event.units
        told = self._outcomes.replay(event.records, units, at)
        learned = [one is None and not unit.emptied for one, unit in zip(told, units, strict=True)]
        if self._ahead is not None:
            ahead = self._ahead.were_learned(event.records, units, at)
            if self._adoptions[0].event.adoption not in self._own:
                return told, [one or other for one, other in zip(learned, ahead, strict=True)]
            for unit, one, is_learned in zip(units, told, ahead, strict=True):
                if unit.key is not None and is_learned and isinstance(one, BodyMismatch):
                    self._refused.add((unit.key, unit.body))
        return told, learned


def element_of(name: bytes, entry: Entry) -> Element:
    """Return the log element with the id ``name`` and the content ``entry``."""
    payload, checksum = encode(entry)
    return name, [b"e", payload, b"c", checksum]
