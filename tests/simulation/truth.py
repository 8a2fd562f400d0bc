"""What the log says, read the plain way: no groups in flight, no slices, no snapshots, no kernels' short cuts.

The plain model knows keys by a dictionary, learns one record at a time, and forgets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from core.applying import Unit
from core.config import ModelConfig
from core.live import LiveModel
from core.record import iterate, record_ends
from core.types import START, Offset
from service.catalog import CATALOG_KEY, Catalog, Living
from service.events import Activate, Configure, Entry, Learn, decode_entry
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
    last : Offset or None
        Of the last entry.
    facts : dict of Fact by event
    twice : list of int
        Events that were learned more than once.
    keys : dict
        By idempotency key, the body that came first.
    """

    living: Living | None
    last: Offset | None = None
    n_entries: int = 0
    facts: dict[int, Fact] = field(default_factory=dict)
    twice: list[int] = field(default_factory=list)
    keys: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.live = LiveModel(self.living.config if self.living is not None else ModelConfig(), (1, 2))

    def take(self, words: Words) -> None:
        """The next entry."""
        entry = decode_entry(words[3:])
        at = Offset.of_entry(words[2])
        self.n_entries += 1
        event = entry.event
        if isinstance(event, Learn):
            self._learn(event, at)
            at = at._replace(position=event.n - 1)
        elif isinstance(event, Configure):
            self.live.configure(event.changes)
        elif isinstance(event, Activate):
            self.live.serving = self.live.serving.activated(event.activation, event.version, event.digest, at)
        self.last = at

    def _learn(self, event: Learn, at: Offset) -> None:
        ends = record_ends(event.records, event.n).tolist()
        numbers = events_of(event)
        place = unit_at = 0
        while unit_at < len(event.units):
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


def events_of(event: Learn) -> list[int]:
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


def truths_of(history: list[list[Words]]) -> dict[str, Truth]:
    """The truth of every model that there is, by name, from the effects of all commands."""
    catalog, logs = _logs_of(history)
    truths = {}
    for living in catalog:
        truth = truths[living.keys.name] = Truth(living)
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
