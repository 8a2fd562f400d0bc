"""What the logs say, read the plain way: no groups in flight, no slices, no snapshots, no kernels' short cuts.

The plain model knows keys by a dictionary, learns one record at a time, and forgets nothing. The incarnations of a
model are told one after the other, each from its beginning: what it was made of by its plan, out of the log of the one
before, and then its own log from the entry on at which it was served. What a replacement has copied is not read here,
but compared with that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from abound.log.catalog import CATALOG_KEY, Catalog, CatalogModel
from abound.log.events import (
    ActivateEvent,
    BoundaryEvent,
    ConfigureEvent,
    Entry,
    LearnEvent,
    ReplacementBegun,
    decode_catalog_entry,
    decode_entry,
)
from abound.log.stream import CLOSED_ID
from abound.store.key_names import ModelKeys
from abound_core.config import ModelConfig
from abound_core.instances.record import iterate, record_ends
from abound_core.model.active_version import LIVE
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset
from tests.simulation.keyspace import Words
from tests.simulation.replacing import Plan, learn_extra


class Fact(NamedTuple):
    """Where an event was learned, and what that found."""

    offset: Offset
    rank: int
    updated: bool


class Step(NamedTuple):
    """An entry that a model has learned; or, without one, an event that a state of one's own has."""

    at: Offset
    entry: Entry | None
    last: int | None = None  # only the batches that begin up to this position
    gone: frozenset[str] = frozenset()  # the requests with these keys are left out
    extra: int = 0
    is_state: bool = False  # nothing before it counts

    def units(self) -> Iterator[tuple[int, list[Unit], list[bool]]]:
        """Its batches: the position of each, its requests, and which of these are left out."""
        event = self.entry.event if self.entry is not None else None
        place = unit_at = 0
        while (
            isinstance(event, LearnEvent) and unit_at < len(event.units) and (self.last is None or place <= self.last)
        ):
            batch = event.units[unit_at : unit_at + event.units[unit_at].batch]
            unit_at += len(batch)
            yield place, batch, [unit.key in self.gone for unit in batch]
            place += sum(unit.n for unit in batch)

    def records(self) -> list[tuple[Unit, bytes]]:
        """What it has of each request; nothing of those that are left out."""
        assert self.entry is not None
        assert isinstance(self.entry.event, LearnEvent)
        event, kept = self.entry.event, []
        ends = record_ends(event.records, event.n).tolist()
        for begin, batch, gone in self.units():
            place = begin
            for unit, is_gone in zip(batch, gone, strict=True):
                if not is_gone:
                    kept.append((unit, event.records[ends[place] : ends[place + unit.n]]))
                place += unit.n
        return kept


@dataclass
class Truth:
    """The content of one incarnation's log; of none, when there is no such model."""

    keys: ModelKeys | None
    config: ModelConfig = field(default_factory=ModelConfig)
    before: Truth | None = None  # the incarnation that it has replaced
    steps: list[Step] = field(default_factory=list)  # all that it has learned, from the beginning
    last: Offset | None = None  # of the last entry
    n_extra: int = 0
    facts: dict[int, Fact] = field(default_factory=dict)  # of the events that the index knows
    twice: list[int] = field(default_factory=list)  # events that were learned more than once
    refused: set[int] = field(default_factory=set)  # events whose key came before with another body
    received: dict[str, bytes] = field(default_factory=dict)  # by idempotency key, the body that came first
    switches: list[tuple[Offset, str]] = field(default_factory=list)  # from where on which version is active
    activations: list[str] = field(default_factory=list)  # their ids
    wrong: list[str] = field(default_factory=list)  # what a replacement left wrongly in its log, or left out

    @cached_property
    def live(self) -> LiveModel:
        return LiveModel(self.config, (1, 2))

    @property
    def all(self) -> Iterator[Truth]:
        truth: Truth | None = self
        while truth is not None:
            yield truth
            truth = truth.before

    @property
    def origin(self) -> str:
        *_, first = self.all
        return "" if first.keys is None else first.keys.incarnation

    def take(self, step: Step) -> None:
        """Learn the next step."""
        self.steps.append(step)
        if step.entry is None:
            if step.is_state:
                before = self.live
                self.live = LiveModel(before.config, (1, 2))
                self.live.serving = before.serving
                self.facts, self.received, self.n_extra = {}, {}, 0
            learn_extra(self.live, step.extra, START if step.is_state else step.at)
            self.n_extra += 1
            return
        event = step.entry.event
        self.last = step.at
        if isinstance(event, LearnEvent):
            self._learn(event, step)
            self.last = step.at._replace(position=event.n - 1)
        elif isinstance(event, ConfigureEvent):
            self.live.configure(event.changes)
        elif isinstance(event, ActivateEvent):
            before = self.live.serving
            self.live.serving = before.after_activation(event.activation, event.version, event.digest, step.at)
            self.activations.append(event.activation)
            if self.live.serving.version != before.version:
                self.switches.append((step.at, event.version))

    def active_at(self, offset: Offset) -> str:
        return next((version for at, version in reversed(self.switches) if at[:2] <= offset[:2]), LIVE)

    def was_learned(self, event: int) -> bool:
        return any(event in truth.facts for truth in self.all)

    def facts_at(self, event: int, offset: Offset) -> list[Fact]:
        """What was found when an event was learned at an offset, by any incarnation; none if never."""
        facts = [truth.facts[event] for truth in self.all if event in truth.facts]
        return [fact for fact in facts if fact.offset == offset]

    def _learn(self, event: LearnEvent, step: Step) -> None:
        ends = record_ends(event.records, event.n).tolist()
        numbers = events_of(event)
        for begin, batch, gone in step.units():
            kept = [unit for unit, is_gone in zip(batch, gone, strict=True) if not is_gone]
            is_refused = self._conflicts(kept)
            place = begin
            for unit, is_gone in zip(batch, gone, strict=True):
                is_new = not is_gone and (unit.key is None or unit.key not in self.received)
                if unit.key is not None and not is_refused and not is_gone:
                    self.received.setdefault(unit.key, unit.body)
                for position in range(place, place + unit.n):
                    if is_refused:
                        self.refused.add(numbers[position])
                    elif is_new:
                        record = event.records[ends[position] : ends[position + 1]]
                        self._learn_one(record, numbers[position], step.at._replace(position=position))
                place += unit.n

    def _conflicts(self, batch: list[Unit]) -> bool:
        bodies = dict(self.received)
        return any(unit.key is not None and bodies.setdefault(unit.key, unit.body) != unit.body for unit in batch)

    def _learn_one(self, record: bytes, event: int, offset: Offset) -> None:
        applying = self.live.begin(record, 1, [Unit(1)], offset).finish()
        if event in self.facts:
            self.twice.append(event)
        self.facts[event] = Fact(offset, int(applying.ranks[0]), bool(applying.updated[0]))


class _Made(NamedTuple):
    """How an incarnation was made."""

    replaced: ModelKeys
    after: Offset  # the boundary entry, up to which the state stands for the log
    former: ModelKeys | None


class _Told:
    """What the catalog and the logs have, as far as the store has not lost it."""

    def __init__(self, history: list[list[Words]]) -> None:
        self.catalog = Catalog()
        self.logs: dict[bytes, list[Words]] = {}
        self.chains: dict[str, list[CatalogModel]] = {}
        self.made: dict[ModelKeys, _Made] = {}
        self.n_served: dict[ModelKeys, int] = {}
        """Entries that the log of a replaced incarnation had when it was replaced: no more of them count."""
        self.reopened: list[str] = []
        self._replaced: set[bytes] = set()
        for effects in history:
            for words in effects:
                is_opened = words[0] == b"XSETID" and words[2] != CLOSED_ID
                if (words[0] == b"XADD" or is_opened) and words[1] in self._replaced:
                    self.reopened.append(f"after it was replaced: {words[:3]}")
                if words[0] != b"XADD":
                    continue
                if words[1] == CATALOG_KEY:
                    self._change(words)
                else:
                    self.logs.setdefault(words[1], []).append(words)

    def _change(self, words: Words) -> None:
        event = decode_catalog_entry(words[3:]).event
        if isinstance(event, ReplacementBegun) and (living := self.catalog.get(event.name)) is not None:
            after = next(
                (
                    Offset.of_entry(one[2])
                    for one in reversed(self.logs.get(living.keys.log, ()))
                    if decode_entry(one[3:]).event == BoundaryEvent("")
                ),
                START,
            )
            former = self.catalog.former.get(event.name)
            new = ModelKeys(event.name, words[2].decode())
            self.made[new] = _Made(living.keys, after, None if former is None else former.keys)
        before = {one.keys.name: one for one in self.catalog}
        self.catalog.apply((words[2], words[3:]))
        for name in before.keys() - {one.keys.name for one in self.catalog}:
            del self.chains[name]
        for one in self.catalog:
            was = before.get(one.keys.name)
            if was is None or was.origin != one.origin:
                self.chains[one.keys.name] = [one]
            elif was.keys != one.keys:
                self.chains[one.keys.name].append(one)
                self._replaced.add(was.keys.log)
                self.n_served[was.keys] = len(self.logs.get(was.keys.log, ()))


def truths_of(history: list[list[Words]], plans: Mapping[ModelKeys, Plan]) -> dict[str, Truth]:
    """The truth of every model that there is, by name, from the effects of all commands."""
    told = _Told(history)
    truths = {}
    for name, chain in told.chains.items():
        by_keys: dict[ModelKeys, Truth] = {}
        truth: Truth | None = None
        for one in chain:
            own = told.logs.get(one.keys.log, [])[: told.n_served.get(one.keys)]
            if truth is None:
                truth = Truth(one.keys, one.config)
            else:
                truth = _replaced(truth, one.keys, told.made[one.keys], plans[one.keys], by_keys, own)
            begin = truth.last
            for words in own:
                at = Offset.of_entry(words[2])
                if begin is None or at[:2] > begin[:2]:
                    truth.take(Step(at, decode_entry(words[3:])))
            by_keys[one.keys] = truth
        assert truth is not None
        truth.wrong += told.reopened
        truths[name] = truth
    return truths


def _replaced(
    old: Truth, keys: ModelKeys, made: _Made, plan: Plan, by_keys: dict[ModelKeys, Truth], own: list[Words]
) -> Truth:
    """What an incarnation was to be when it replaced another one, with the entry at which it did."""
    assert old.last is not None
    end, after = old.last, made.after
    gone = frozenset({plan.key}) if plan.kind == "forget" and plan.key is not None else frozenset[str]()
    if plan.kind == "restore":
        assert plan.to is not None
        steps = _until(old.steps, plan.to)
    elif plan.kind == "undo":
        assert made.former is not None
        former = by_keys[made.former]
        assert former.last is not None
        steps, after = list(former.steps), former.last
    else:
        steps = _until(old.steps, after)
    if plan.kind == "forget":
        first = min((step.at for step in steps if any(any(gone) for _, _, gone in _of(step, gone))), default=after)
        steps = [step._replace(gone=step.gone | gone) for step in _without_late_extras(steps, first)]
    if plan.kind in ("refit", "import"):
        steps.append(Step(after, None, extra=plan.extra, is_state=plan.kind == "import"))
    tail = [
        step._replace(gone=step.gone | gone)
        for step in old.steps
        if step.entry is not None and after[:2] < step.at[:2] < end[:2]
    ]
    truth = Truth(keys, old.config, old)
    for step in [*steps, *tail]:
        truth.take(step)
    own_steps = [Step(Offset.of_entry(words[2]), decode_entry(words[3:])) for words in own]
    copied = [step for step in own_steps if step.at[:2] < end[:2]]
    state = next((step.at for step in reversed(steps) if step.entry is not None or step.is_state), after)
    if plan.kind == "restore" and copied and copied[0].at[:2] == after[:2]:
        state = after  # to where history begins: the state alone is left
    if [step.at[:2] for step in copied] != [state[:2], *(step.at[:2] for step in tail)]:
        have, wanted = [step.at.entry for step in copied], [state.entry, *(step.at.entry for step in tail)]
        truth.wrong.append(f"{keys} ({plan.kind}) began with the log {have}, and not {wanted}")
    for have_step, step in zip(copied[1:], tail, strict=False):
        truth.wrong += _differ(have_step, step)
    if own_steps[len(copied) :][:1] and own_steps[len(copied)].at[:2] == end[:2]:
        truth.take(own_steps[len(copied)])
    else:
        truth.wrong.append(f"{keys} ({plan.kind}) was served without the entry {end.entry}")
    if truth.active_at(end) != old.active_at(end):
        truth.wrong.append(
            f"{keys} ({plan.kind}) answers by {truth.active_at(end)} at {end.entry}, and before by {old.active_at(end)}"
        )
    return truth


def _of(step: Step, gone: frozenset[str]) -> Iterator[tuple[int, list[Unit], list[bool]]]:
    """The batches of a step, with what would be left out of it that was not before."""
    for place, batch, is_gone in step.units():
        yield place, batch, [unit.key in gone and not was for unit, was in zip(batch, is_gone, strict=True)]


def _until(steps: list[Step], to: Offset) -> list[Step]:
    """The steps up to an offset; the entry of that offset up to its position."""
    kept = []
    for step in steps:
        if step.entry is not None and step.at[:2] == to[:2]:
            last = to.position if step.last is None else min(step.last, to.position)
            kept.append(step._replace(last=last))
        elif step.at <= to:
            kept.append(step)
    n_extra = sum(step.entry is None and not step.is_state for step in steps)
    if sum(step.entry is None and not step.is_state for step in kept) < n_extra:  # only the newest refit is kept
        kept = [step for step in kept if step.entry is not None or step.is_state]
    return kept


def _without_late_extras(steps: list[Step], first: Offset) -> list[Step]:
    """The steps without refits, if the newest has learned an event at ``first``."""
    extras = [step.at for step in steps if step.entry is None and not step.is_state]
    if extras and extras[-1][:2] >= first[:2]:
        return [step for step in steps if step.entry is not None or step.is_state]
    return steps


def _differ(have: Step, step: Step) -> Iterator[str]:
    """How an entry differs from what it should be."""
    assert have.entry is not None
    assert step.entry is not None
    event, wanted = have.entry.event, step.entry.event
    if not isinstance(wanted, LearnEvent) or not isinstance(event, LearnEvent):
        if event != wanted:
            yield f"the entry {step.at.entry} is {event}, and not {wanted}"
        return
    units = [unit for unit in event.units if not unit.emptied]
    kept = step.records()
    if b"".join(records for _, records in kept) != event.records or units != [unit for unit, _ in kept]:
        yield f"the entry {step.at.entry} has {units}, and not {[unit for unit, _ in kept]}"


def differences(start: Offset, found: list[tuple[Offset, Entry]], truth: Truth) -> Iterator[str]:
    """How history and log, from their beginning on, differ from what they should have."""
    steps = [step for step in truth.steps if step.entry is not None]
    for at, step in enumerate(truth.steps):
        if step.is_state:
            steps = [one for one in truth.steps[at:] if one.entry is not None]
    steps = [step for step in steps if step.at[:2] > start[:2]]
    if [at[:2] for at, _ in found] != [step.at[:2] for step in steps]:
        have, wanted = [at.entry for at, _ in found], [step.at.entry for step in steps]
        yield f"history and log of {truth.keys} are {have}, and not {wanted}"
        return
    for (at, entry), step in zip(found, steps, strict=True):
        yield from _differ(Step(at, entry), step)


def events_of(event: LearnEvent) -> dict[int, int]:
    """The numbers of the events of an entry, by position."""
    numbers, place = {}, 0
    records = iterate(event.records, event.n_records)
    for unit in event.units:
        for position in range(place, place + (0 if unit.emptied else unit.n)):
            [name] = [key for key in next(records).keys if key[0] == "e"]
            numbers[position] = int(name[1:])
        place += unit.n
    return numbers


def ends_of(history: list[list[Words]]) -> dict[str, tuple[ModelKeys, Offset]]:
    """The incarnation and the last entry of every model that there is, by name; START when it has none."""
    told = _Told(history)
    return {
        one.keys.name: (
            one.keys,
            Offset.of_entry(told.logs[one.keys.log][-1][2]) if one.keys.log in told.logs else START,
        )
        for one in told.catalog
    }


def entry_of(words: Words) -> Entry | None:
    """The entry that an effect has appended to the log of a model, None for any other effect."""
    if words[0] != b"XADD" or words[1] == CATALOG_KEY or not words[1].endswith(b":log"):
        return None
    return decode_entry(words[3:])
