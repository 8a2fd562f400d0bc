"""Redaction: one pass over a model's log and history that removes some events and keeps the positions of all.

Removing a request also removes the later requests with its key that were not learned: repeats, and requests refused for
another body. Without the first one a replay would learn them. The pass therefore tracks receipts as they were
(``OutcomeReplay``), also through adoptions. A request that arrives after the adoption counts as a new one.

The adoption of an earlier forget job becomes a mark, because a replay of the redacted events gives its state. So does
the adoption of a refit that has learned removed events: that refit is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from pydantic import Field

from abound.history import erasures, full_log
from abound.history.erasures import UnfinishedErasure, mark_of
from abound.history.history import History
from abound.log.events import AdoptEvent, Event, LearnEvent, MarkEvent, element_of
from abound.log.stream import Element
from abound.replace.adoption import AdoptionContext
from abound.state import state_files
from abound.state.state_image import StateManifest
from abound_core.errors import Conflict, UnknownOffset
from abound_core.instances.record import record_ends
from abound_core.limits import MAX_SOURCE_CHARACTERS, Limits
from abound_core.model.entry_application import OutcomeReplay, Unit
from abound_core.model.receipts import BodyMismatch, Outcome, Receipts
from abound_core.types import START, Offset

OnRedacted = Callable[[LearnEvent, list[bool]], None]  # gets the original entry, and which of its requests are removed

LATEST = 1e12  # accepted Unix time

Time = Annotated[float, Field(json_schema_extra={"format": "unix-time"})]


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
        Reason of the job, 1 to 1000 characters; stored with the job.
    dry_run : bool
        Count the events and change nothing.
    """

    reason: str
    key: str | None = None
    source: str | None = None
    since: Time | None = None
    until: Time | None = None
    dry_run: bool = False

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


class Redaction:
    """One redaction pass, from the first state on.

    It removes the events ``what``, up to its last offset, and those of ``others``, which unfinished forget jobs left in
    history. ``rebuilt`` has by id the rebuilt state files that replace those of restores. With ``is_strict``, raise
    UnknownOffset if a state whose events are not in history may have learned events to remove.
    """

    def __init__(
        self,
        place: AdoptionContext,
        what: UnfinishedErasure,
        others: Iterable[UnfinishedErasure],
        rebuilt: Mapping[str, StateManifest],
        note: OnRedacted = lambda event, gone: None,
        is_strict: bool = False,
    ) -> None:
        self.beginning = START  # of history: the offset of the first state
        self.first: Offset | None = None  # entry of the first removed event
        self.keys: set[str] = set()  # of the removed requests
        self.dropped: list[str] = []  # the adoptions of refits that have learned removed events
        # To raise if the pass finds no event: a state whose events are not in history may have learned them.
        self.missed: UnknownOffset | None = None
        self._place = place
        self._what = what
        self._after = Offset.parse(what.after)
        self._erased = [(one, Offset.parse(one.after)) for one in (what, *others)]
        self._rebuilt = rebuilt
        self._note = note
        self._is_strict = is_strict
        self._outcomes = OutcomeReplay()
        self._adopted = START
        self._complete: set[Offset] = set()

    async def begin(self) -> None:
        """Load the receipts of the first state. Raises UnknownOffset if events to remove may be in it."""
        place = self._place
        self._complete = await erasures.completed_adoptions(place.store, place.keys)
        contents = await History(place.store, place.artifacts, place.keys).manifest()
        if contents is not None and contents.base is not None:
            base = contents.base
            live = await state_files.load(place.artifacts, place.keys, base.index, base.digest, Limits())
            self._outcomes = OutcomeReplay(live.receipts)
            self._adopted, self.beginning = base.position.adopted, contents.start
            self._check(contents.start, f"the history of {place.keys.name} begins at {contents.start}", live.receipts)

    async def redact(self, element: Element) -> Element:
        name = element[0]
        at = Offset.of_entry(name)
        if at[:2] > self._after[:2]:
            return element
        entry = full_log.decode_element(element)
        event: Event = entry.event
        if isinstance(event, LearnEvent):
            event = self._redact_learn(event, at)
        elif isinstance(event, AdoptEvent):
            event = await self._redact_adoption(event, at)
        return element if event is entry.event else element_of(name, msgspec.structs.replace(entry, event=event))

    def _check(self, at: Offset, what: str, receipts: Receipts) -> None:
        """Raise UnknownOffset if events to remove were learned before ``at``, where none can be removed one by one."""
        key = self._what.key
        if not self._is_strict or int((self._what.since or 0.0) * 1000) > at.milliseconds:
            return
        why = ", and a request with this key has been learned in it" if key is not None and key in receipts else ""
        error = UnknownOffset(
            f"{what}; earlier events exist only as a state and cannot be forgotten one by one{why}: give a since of at "
            f"least {at.milliseconds / 1000 + 0.001:.3f}",
            at,
        )
        if key is None or why:
            raise error
        self.missed = error

    async def _redact_adoption(self, event: AdoptEvent, at: Offset) -> AdoptEvent | MarkEvent:
        place, after = self._place, Offset.parse(event.after)
        if after < self._adopted:
            return mark_of(event)  # it had no effect
        self._adopted = at
        if at in self._complete:
            return mark_of(event)
        live = await state_files.load(place.artifacts, place.keys, event.index, event.digest, Limits())
        self._outcomes = OutcomeReplay(live.receipts)
        reading = full_log.read_entries(place.store, place.artifacts, place.keys, after, at, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    learned = full_log.decode_element(element).event
                    if isinstance(learned, LearnEvent):
                        self._outcomes.replay(learned.records, learned.units, Offset.of_entry(element[0]))
                await place.checkpoint()
        manifest = await state_files.read_manifest(place.artifacts, place.keys, event.index)
        method = manifest.recipe.get("method")
        if method == "import":
            self._check(at, f"{place.keys.name} was imported from a file at {at}", live.receipts)
        if method == "forget":
            return mark_of(event)
        if method in ("import", "base") or not contains(manifest, self.first):
            return event
        if method == "refit":
            self.dropped.append(event.adoption)
            return mark_of(event)
        if method != "restore":
            raise Conflict(
                f"the state file {event.index} contains events that are to be forgotten, and it is unknown how it was "
                "made"
            )
        new = self._rebuilt.get(event.index)
        return event if new is None else msgspec.structs.replace(event, index=new.id, digest=new.digest)

    def _redact_learn(self, event: LearnEvent, at: Offset) -> LearnEvent:
        units = event.units
        outcomes = self._outcomes.replay(event.records, units, at)
        erased = [one for one, after in self._erased if at[:2] <= after[:2]]
        gone = [not unit.emptied and any(one.matches(unit, at) for one in erased) for unit in units]
        self.keys |= {unit.key for unit, is_gone in zip(units, gone, strict=True) if is_gone and unit.key is not None}
        gone = [
            is_gone or _known_key(unit, outcome) in self.keys
            for is_gone, unit, outcome in zip(gone, units, outcomes, strict=True)
        ]
        if not any(gone):
            return event
        self.first = self.first or at
        self._note(event, gone)
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


def contains(manifest: StateManifest, first: Offset | None) -> bool:
    return first is not None and last_offset(manifest)[:2] >= first[:2]


def last_offset(manifest: StateManifest) -> Offset:
    """Return the offset of the last event that a state file may contain."""
    after = Offset.parse(manifest.offset)
    return min(after, Offset.parse(manifest.recipe["to"])) if manifest.recipe.get("method") == "restore" else after


def _known_key(unit: Unit, outcome: Outcome) -> str | None:
    """Return the key because of which a request was not learned; None if it was learned."""
    if outcome is None:
        return None
    return outcome.key if isinstance(outcome, BodyMismatch) else unit.key
