"""What the log says, read the plain way: no groups in flight, no slices, no snapshots, no kernels' short cuts.

The plain model knows keys by a dictionary, learns one record at a time, and forgets nothing. When an index of an
earlier offset is adopted it begins anew, and reads the log once more up to there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from abound.log.catalog import CATALOG_KEY, Catalog, CatalogModel
from abound.log.events import (
    ActivateEvent,
    AdoptEvent,
    ConfigureEvent,
    Entry,
    LearnEvent,
    decode_entry,
)
from abound_core.config import ModelConfig
from abound_core.instances.record import iterate, record_ends
from abound_core.model.active_version import LIVE
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset
from tests.simulation.keyspace import Words


class Fact(NamedTuple):
    """Where an event was learned, and what that found."""

    offset: Offset
    rank: int
    updated: bool


@dataclass
class Truth:
    """The content of one model's log; of none, when there is no such model.

    Attributes
    ----------
    restored : mapping
        For adoptions that go back, by id: where to.
    last : Offset or None
        Of the last entry.
    facts : dict of Fact by event
        Of the events that the index knows.
    ever : dict of list of Fact by event
        Of all that were ever learned, restored away or not.
    again : set of (int, Fact)
        What was found when an index to adopt was made. An event may be learned there alone, since its key had come
        before, but not in that index.
    undone : list of (Offset, set of int)
        Where an index was adopted, and which events it does not know.
    twice : list of int
        Events that were learned more than once.
    keys : dict
        By idempotency key, the body that came first.
    switches : list of (Offset, str)
        From where on which version is active.
    activations : list of str
        Their ids.
    """

    living: CatalogModel | None
    restored: Mapping[str, Offset] = field(default_factory=dict)
    last: Offset | None = None
    n_entries: int = 0
    facts: dict[int, Fact] = field(default_factory=dict)
    twice: list[int] = field(default_factory=list)
    keys: dict[str, bytes] = field(default_factory=dict)
    ever: dict[int, list[Fact]] = field(default_factory=dict)
    again: set[tuple[int, Fact]] = field(default_factory=set)
    undone: list[tuple[Offset, set[int]]] = field(default_factory=list)
    switches: list[tuple[Offset, str]] = field(default_factory=list)
    activations: list[str] = field(default_factory=list)
    _entries: list[tuple[Offset, Entry]] = field(default_factory=list)
    _adopted: Offset = START

    @cached_property
    def live(self) -> LiveModel:
        """The model as the log makes it."""
        return LiveModel(self.living.config if self.living is not None else ModelConfig(), (1, 2))

    def take(self, words: Words) -> None:
        """The next entry."""
        self._take(Offset.of_entry(words[2]), decode_entry(words[3:]))

    def _take(self, at: Offset, entry: Entry, last: int | None = None) -> None:
        """The next entry; with ``last`` only those of its batches that begin up to there."""
        self.n_entries += 1
        event = entry.event
        self.last = at
        if isinstance(event, LearnEvent):
            self._learn(event, at, last)
            self.last = at._replace(position=event.n - 1)
        elif isinstance(event, ConfigureEvent):
            self.live.configure(event.changes)
        elif isinstance(event, ActivateEvent):
            before = self.live.serving
            self.live.serving = before.after_activation(event.activation, event.version, event.digest, at)
            self.activations.append(event.activation)
            if self.live.serving.version != before.version:
                self.switches.append((at, event.version))
        elif isinstance(event, AdoptEvent):
            self._adopt(event, at)
        self._entries.append((at, entry))

    def _adopt(self, event: AdoptEvent, at: Offset) -> None:
        """Go back; what came after the offset that the index stands for is on top of it."""
        after, to = Offset.parse(event.after), self.restored.get(event.adoption)
        if after < self._adopted:
            return
        if to is not None:
            past = self._as_it_was(to, after)
            self.undone.append((at, set(self.facts) - set(past.facts)))
            self.again |= set(past.facts.items()) | past.again
            past.live.serving = self.live.serving
            self.live, self.facts, self.keys = past.live, past.facts, past.keys
        self._adopted = at

    def _as_it_was(self, to: Offset, after: Offset) -> Truth:
        past = Truth(self.living, self.restored)
        for at, entry in self._entries:
            if at[:2] <= to[:2]:
                past._take(at, entry, to.position if at[:2] == to[:2] else None)
            elif at[:2] > after[:2] and isinstance(entry.event, LearnEvent | ConfigureEvent):
                past._take(at, entry)
        return past

    def active_at(self, offset: Offset) -> str:
        """Which version is active at an offset."""
        return next((version for at, version in reversed(self.switches) if at[:2] <= offset[:2]), LIVE)

    def facts_at(self, event: int, offset: Offset) -> list[Fact]:
        """What was found when an event was learned at an offset, first and for adopted indexes; none if never."""
        facts = [*self.ever.get(event, ()), *(fact for number, fact in self.again if number == event)]
        return [fact for fact in facts if fact.offset == offset]

    def _learn(self, event: LearnEvent, at: Offset, last: int | None) -> None:
        ends = record_ends(event.records, event.n).tolist()
        numbers = events_of(event)
        place = unit_at = 0
        while unit_at < len(event.units) and (last is None or place <= last):
            batch = event.units[unit_at : unit_at + event.units[unit_at].batch]
            unit_at += len(batch)
            is_refused = self._conflicts(batch)
            for unit in batch:
                is_new = unit.key is None or unit.key not in self.keys
                if unit.key is not None and not is_refused:
                    self.keys.setdefault(unit.key, unit.body)
                for position in range(place, place + unit.n):
                    if is_new and not is_refused:
                        record = event.records[ends[position] : ends[position + 1]]
                        self._learn_one(record, numbers[position], at._replace(position=position))
                place += unit.n

    def _conflicts(self, batch: list[Unit]) -> bool:
        bodies = dict(self.keys)
        return any(unit.key is not None and bodies.setdefault(unit.key, unit.body) != unit.body for unit in batch)

    def _learn_one(self, record: bytes, event: int, offset: Offset) -> None:
        applying = self.live.begin(record, 1, [Unit(1)], offset)
        applying.step(1)
        if event in self.facts:
            self.twice.append(event)
        self.facts[event] = Fact(offset, int(applying.ranks[0]), bool(applying.updated[0]))
        self.ever.setdefault(event, []).append(self.facts[event])


def events_of(event: LearnEvent) -> list[int]:
    """The numbers of the events of an entry, in order."""
    numbers = []
    for record in iterate(event.records, event.n):
        [name] = [key for key in record.keys if key[0] == "e"]
        numbers.append(int(name[1:]))
    return numbers


def ends_of(history: list[list[Words]]) -> dict[str, Offset]:
    """The last entry of every model that there is, by name; START when it has none."""
    catalog, logs = _logs_of(history)
    return {
        one.keys.name: Offset.of_entry(logs[one.keys.log][-1][2]) if one.keys.log in logs else START for one in catalog
    }


def truths_of(history: list[list[Words]], restored: Mapping[str, Offset]) -> dict[str, Truth]:
    """The truth of every model that there is, by name, from the effects of all commands."""
    catalog, logs = _logs_of(history)
    truths = {}
    for living in catalog:
        truth = truths[living.keys.name] = Truth(living, restored)
        for words in logs.get(living.keys.log, ()):
            truth.take(words)
    return truths


def _logs_of(history: list[list[Words]]) -> tuple[Catalog, dict[bytes, list[Words]]]:
    catalog = Catalog()
    logs: dict[bytes, list[Words]] = {}
    for effects in history:
        for words in effects:
            if words[0] != b"XADD":
                continue
            if words[1] == CATALOG_KEY:
                catalog.apply((words[2], words[3:]))
            else:
                logs.setdefault(words[1], []).append(words)
    return catalog, logs


def entry_of(words: Words) -> Entry | None:
    """The entry that an effect has appended to the log of a model, None for any other effect."""
    if words[0] != b"XADD" or words[1] == CATALOG_KEY:
        return None
    return decode_entry(words[3:])
