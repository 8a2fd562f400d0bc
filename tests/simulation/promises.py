"""What must hold after every history. Each broken promise is a sentence."""

import math
from collections.abc import Iterator, Mapping

from abound.log.append_group import LearnOutcome
from abound.log.catalog import CATALOG_KEY
from abound.log.events import LearnEvent
from abound.store.key_names import ModelKeys
from abound_core.types import Offset
from tests.simulation.replacing import Plan
from tests.simulation.requests import DONE, REFUSED, Attempt, Read, Request
from tests.simulation.server import Loss
from tests.simulation.truth import Truth, entry_of, events_of


class Lost:
    """What the store has lost, by event and offset, and why."""

    def __init__(self, losses: list[Loss]) -> None:
        self._by_event: dict[int, list[tuple[Offset, Loss]]] = {}
        self._entries: set[Offset] = set()
        self.has_catalog = any(words[:2] == [b"XADD", CATALOG_KEY] for loss in losses for words in loss.effects)
        for loss in losses:
            for words in loss.effects:
                entry = entry_of(words)
                if entry is None:
                    continue
                at = Offset.of_entry(words[2])
                self._entries.add(at)
                if isinstance(entry.event, LearnEvent):
                    for position, event in events_of(entry.event).items():
                        self._by_event.setdefault(event, []).append((at._replace(position=position), loss))

    def excuses(self, event: int, offset: Offset, level: str) -> bool:
        """Whether an event that was acknowledged at this level may be gone."""
        return any(
            at == offset and _may_lose(level, loss.reason, loss.policy) for at, loss in self._by_event.get(event, ())
        )

    def has_entry(self, offset: Offset) -> bool:
        return offset._replace(position=0) in self._entries

    def knows(self, event: int, offset: Offset) -> bool:
        return any(at == offset for at, _ in self._by_event.get(event, ()))


def _may_lose(level: str, reason: str, policy: str) -> bool:
    if reason == "copy's power":  # the second fault; WAIT says that a copy has received it, and not where it keeps it
        return True
    if reason == "failover":
        return level != "replica"
    return reason == "power" and policy != "always" and level == "log"


def broken_by(requests: list[Request], truths: dict[str, Truth], lost: Lost) -> Iterator[str]:
    """What requests were told that is not so."""
    for truth in truths.values():
        for one in truth.all:
            if one.twice:
                yield f"learned more than once: {one.twice}"
            yield from one.wrong
    for request in requests:
        truth = truths.get(request.model) or Truth(None)
        outcomes = {attempt.outcome for attempt in request.attempts}
        if outcomes <= {REFUSED}:
            # What follows on an earlier state is learned even if the log before had refused it for its key.
            there = [
                event
                for events in request.events
                for event in events
                if truth.was_learned(event) and not any(event in one.refused for one in truth.all)
            ]
            if there:
                yield f"{_name(request)}: refused ({request.attempts[-1].why}), but learned: {there}"
        for attempt in request.attempts:
            if attempt.outcome == DONE and attempt.learned is not None:
                yield from _false_answers(request, attempt, truth, lost)
        for one in truth.all:
            learned = [sum(event in one.facts for event in events) for events in request.events]
            if any(0 < n < len(events) for n, events in zip(learned, request.events, strict=True)):
                yield f"{_name(request)}: learned in part"


def _false_answers(request: Request, attempt: Attempt, truth: Truth, lost: Lost) -> Iterator[str]:
    assert attempt.learned is not None
    for events, learned in zip(request.events, attempt.learned, strict=True):
        who = f"{_name(request)} at {attempt.replica}"
        if learned.refused is not None:
            yield f"{who}: refused inside a batch: {learned.refused}"
            continue
        for at, event in enumerate(events):
            offset = learned.offset._replace(position=learned.offset.position + at)
            facts = truth.facts_at(event, offset)
            if not facts:
                if not lost.excuses(event, offset, learned.durability):
                    where = [str(one.facts[event].offset) for one in truth.all if event in one.facts] or "nowhere"
                    known = " (lost)" if lost.knows(event, offset) else ""
                    said = f"event {event} acknowledged ({learned.durability}) at {offset}"
                    yield f"{who}: {said}, but is at {where}{known}"
            elif learned.ranks is not None and _said(learned, at) not in {(one.rank, one.updated) for one in facts}:
                yield f"{who}: event {event} was answered {_said(learned, at)}, but found {facts}"


def _said(learned: LearnOutcome, at: int) -> tuple[int, bool]:
    assert learned.ranks is not None
    assert learned.updated is not None
    return learned.ranks[at], learned.updated[at]


def stale(reads: list[Read], truths: dict[str, Truth], lost: Lost, served: Mapping[str, float]) -> Iterator[str]:
    """Answers that are older than what they were asked for, or by an incarnation that was not served.

    Where the store has lost a tail, a replica that has not heard of it yet answers from what it has, at an offset that
    is no more; an offset says nothing then.
    """
    for read in reads:
        if read.got < read.asked:
            yield f"read at {read.replica}: asked for {read.asked}, answered at {read.got}"
            continue
        if served.get(read.incarnation, math.inf) > read.time:
            yield f"read at {read.replica}: answered by {read.incarnation}, which was not served yet"
        if lost.has_entry(read.got) or lost.knows(read.event, read.asked):
            continue
        last = truths.get(read.model) or Truth(None)
        truth = next((one for one in last.all if one.keys and one.keys.incarnation == read.incarnation), None)
        if truth is None:  # the store has lost it
            continue
        if read.version != truth.active_at(read.got):
            yield f"read at {read.replica}: answered by {read.version} at {read.got}, not {truth.active_at(read.got)}"
        fact = truth.facts.get(read.event)
        if read.seen != (fact is not None and fact.offset <= read.got):
            is_seen = "seen" if read.seen else "not seen"
            yield f"read at {read.replica}: event {read.event} of {read.asked} is {is_seen} at {read.got}"


def backwards(reads: list[Read], lost: Lost) -> Iterator[str]:
    """Answers of a replica at an offset before that of an earlier answer, though the store has lost nothing of it."""
    newest: dict[tuple[int, str], Read] = {}
    for read in sorted(reads, key=lambda one: one.time):
        before = newest.get((read.process, read.model))
        if before is not None and read.got < before.got and not lost.has_entry(before.got):
            yield f"read at {read.replica}: answered at {read.got} after {before.got}"
        newest[(read.process, read.model)] = read


def broken_replacements(
    done: list[Plan], plans: Mapping[ModelKeys, Plan], truths: dict[str, Truth], lost: Lost
) -> Iterator[str]:
    """Replacements that were said to be made, and are not."""
    made = [plans[one.keys] for truth in truths.values() for one in truth.all if one.keys in plans]
    origins = {truth.origin for truth in truths.values()}
    for plan in done:
        is_there = plan.origin in origins  # else the model was deleted
        if is_there and not any(plan is one for one in made) and not lost.has_catalog:
            yield f"replaced, was said, and it is not: {plan}"


def broken_activations(said: list[tuple[ModelKeys, str, Offset]], truth: Truth, lost: Lost) -> Iterator[str]:
    """What whoever activated versions was told that is not so; of a model that was lost nothing is left."""
    for one in truth.all:
        if len(set(one.activations)) < len(one.activations):
            yield f"activated more than once: {one.activations}"
        for keys, version, at in said:
            if keys == one.keys and one.active_at(at) != version and not lost.has_entry(at):
                yield f"the version {version} is active since {at}, was said, and it is {one.active_at(at)}"


def _name(request: Request) -> str:
    key = request.drafts[0].key
    return f"request {request.number}" + (f" key {key}" if key else "")
