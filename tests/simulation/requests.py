"""What applications ask for in a history, and what they were told: material for the judgement in ``promises``."""

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from abound.log.append_group import LearnDraft, LearnOutcome
from abound_core.config import ModelConfig
from abound_core.instances.record import EMPTY_VECTOR, add_details, pack_change, pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.model.label_changes import ChangeRequest, LabelChange, encode
from abound_core.types import Offset

REFUSED, UNKNOWN, DONE = "refused", "unknown", "done"


@cache
def _vectorizer() -> Vectorizer:
    return Vectorizer(ModelConfig(), Limits())


@cache
def vector_of(event: int) -> bytes:
    """The vector of an event: one feature is its own, one it shares with others."""
    return _vectorizer().vectorize(b'{"e%d": 2, "f%d": 1}' % (event, event % 5), None)


def labels_of(event: int) -> list[str]:
    """What is learned with it: one label to four, so that a small ``sls`` model goes over to rows."""
    return [f"l{event % 7}", *(f"m{(event + one) % 5}" for one in range((0, 2, 3, 3)[event % 4]))]


def registers(event: int) -> bool:
    """Whether the record of an event registers or changes labels: such a record is not counted as learned."""
    return event % 9 == 2 or changes_labels(event)


def changes_labels(event: int) -> bool:
    return event < 900_000 and event % 11 == 5  # not an extra one (``replacing``)


def changes_of(event: int) -> list[LabelChange]:
    """Changes of labels, some of which are impossible by then; labels ``l0`` to ``l6`` are never retired."""
    name, other, more, another = f"l{event % 7}", f"l{event // 7 % 7}", f"m{event % 5}", f"m{event // 5 % 5}"
    is_alias = event % 4 > 0
    changes = [
        LabelChange("rename", name, f"n{event}", is_alias),
        LabelChange("rename", name, f"l{(event + 3) % 7}", is_alias),
        LabelChange("merge", name, other, is_alias),
        LabelChange("merge", more, another, is_alias),
        LabelChange("retire", more),
        LabelChange("revive", another),
        LabelChange("split", more, [another, f"s{event}"]),
    ]
    return random.Random(event).sample(changes, 2)


@cache
def record_of(event: int) -> bytes:
    """The record of an event: many register, change or reject a label, or have feedback of every kind.

    That of a change has the vector of the event, by which it is told; it is not learned.
    """
    labels, other = labels_of(event), f"l{(event + 1) % 7}"
    if changes_labels(event):
        return vector_of(event) + pack_change(encode(ChangeRequest(changes_of(event))))[len(EMPTY_VECTOR) :]
    if registers(event):
        return add_details(vector_of(event) + pack_labels(labels[:1], Limits()), b'{"name":"Label %d"}' % event)
    if event % 9 == 4:
        return vector_of(event) + pack_labels([], Limits(), [other], weight=0.5)
    if event % 9 == 5:
        return vector_of(event) + pack_labels([], Limits(), none=True)
    if event % 9 == 7:
        return vector_of(event) + pack_labels(labels, Limits(), [other], [f"l{(event + 2) % 7}"], 3.0)
    return vector_of(event) + pack_labels(labels, Limits())


@dataclass
class Attempt:
    """One way of a request to a replica.

    Refused: the answer says that nothing was learned. Unknown: there was no answer, or one that says so.
    """

    replica: str
    outcome: str = UNKNOWN
    learned: list[LearnOutcome] | None = None
    why: str = ""


@dataclass
class Request:
    """A request to learn, and all attempts at it."""

    number: int
    model: str
    events: list[list[int]]  # of each draft; no event is in two requests
    drafts: list[LearnDraft]
    wait: str
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def keyed(self) -> bool:
        return self.drafts[0].key is not None


@dataclass
class Read:
    """An answer to a classification that was asked for at an offset or past it, or at any (START)."""

    replica: str
    asked: Offset
    got: Offset
    event: int  # acknowledged at ``asked``, if there is one
    seen: bool  # whether the model knew the feature that only this event has
    model: str
    version: str  # that was active
    incarnation: str  # that answered
    time: float
    process: int  # that answered


class Author:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"requests {seed}")
        self.requests: list[Request] = []
        self._n_events = 0

    def request(self, model: str, key: str | None = None) -> Request:
        """A new one: an instance, a batch under one key or none, or a batch whose instances have keys."""
        rng = self.rng
        number = len(self.requests)
        kind = rng.random()
        keyed = key is not None or rng.random() < 0.6
        key = key or f"k{number}"
        wait = "log" if not keyed and rng.random() < 0.3 else "applied"
        if kind < 0.6:
            events = [self._events(1)]
        elif kind < 0.8:
            events = [self._events(rng.randint(2, 9))]
        else:
            events = [self._events(1) for _ in range(rng.randint(2, 4))]
        drafts = []
        for at, some in enumerate(events):
            own = (key if len(events) == 1 else f"{key}.{at}") if keyed else None
            body = b"%d" % some[0] if keyed else b""
            records = b"".join([record_of(event) for event in some])
            drafts.append(LearnDraft(records, len(some), own, body, None, len(events) if at == 0 else 1))
        request = Request(number, model, events, drafts, wait)
        self.requests.append(request)
        return request

    def _events(self, n: int) -> list[int]:
        first, self._n_events = self._n_events, self._n_events + n
        return list(range(first, first + n))


def told(learned: Any) -> str:
    return " ".join(f"{one.offset}:{one.durability}" for one in learned)
