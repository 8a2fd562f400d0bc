"""What feedback on the shown labels alone teaches, and what an application does that confirms its own suggestions.

A model first learns ``SEED_EVENTS`` instances with all their labels. Then come up to ``EVENTS`` instances, of which
the application shows the best five labels:

- **none**: nothing more is learned.
- **confirmed**: the true ones among the shown labels are learned; without one nothing is.
- **shown**: the same, and without a true one all five are ``rejected``.
- **known**: the true labels that the model knows are learned, shown or not. Other labels cannot be shown.
- **full**: all true labels are learned.

The figures are R@1 and R@5 on the test part, in percent. **Lost** is the part of the gap between none and full that a
kind of feedback leaves. It should be at most a third with *shown*.

**Self-confirmation**: with probability p the application learns the label that the model ranks first, right or wrong,
with ``weight`` w; otherwise it learns the true labels. **Tail** is the mean recall at 1 of the half of the test part's
labels that have the fewest instances in the whole stream. Recall of a label is over the test instances that have it.

``commits-git`` is in order of time, so its later labels cannot be shown; the other sets are in a random order.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from abound.core.config import ModelConfig
from abound.core.errors import InvalidInstance
from abound.core.instances.data_formats import DatasetInstance
from abound.core.instances.record import EMPTY_VECTOR, pack_labels
from abound.core.instances.vectorizer import Vectorizer
from abound.core.limits import Limits
from abound.core.model.entry_application import Unit
from abound.core.model.live_model import LiveModel
from benchmarks.inputs.parts import UPDATES
from benchmarks.sets import IN_TIME, NAMES, read_file

SETS = ("clinc150", "stackex-cooking", "commits-git")
SEED_EVENTS, EVENTS, TESTED, SHOWN = 1_000, 10_000, 2_000, 5
LIMITS = Limits()

ACCEPTED = (0.5, 0.8)
"""Probabilities with which an application accepts the first label whatever it is."""

WEIGHTS = (1.0, 0.1, 0.01)
"""Weights of such an event."""


class Row(NamedTuple):
    """An instance as a vector, with its labels."""

    vector: bytes
    labels: tuple[str, ...]


class Stream(NamedTuple):
    """The parts of a set: learned with all labels, learned from feedback, and tested."""

    seed: list[Row]
    events: list[Row]
    test: list[Row]


Feedback = tuple[Sequence[str], Sequence[str]]
"""The true and the rejected labels that are learned."""


def stream(name: str, data: Path, n_events: int) -> Stream:
    """A set as a stream; the test part of a set in time follows the stream immediately."""
    vectorizer = Vectorizer(ModelConfig(), LIMITS)
    parts = [rows(read_file(str(data / name / f"{part}.{NAMES[name]}.gz")), vectorizer) for part in ("train", "test")]
    if name in IN_TIME:
        parts = [parts[0][: SEED_EVENTS + n_events], parts[0][SEED_EVENTS + n_events :]]
    else:
        random.Random(0).shuffle(parts[0])
    train, test = parts
    return Stream(train[:SEED_EVENTS], train[SEED_EVENTS : SEED_EVENTS + n_events], test[:TESTED])


def rows(instances: Any, vectorizer: Vectorizer) -> list[Row]:
    """The instances that a service would learn."""
    made = []
    for instance in instances:
        row = row_of(instance, vectorizer)
        if row is not None and row.labels and row.vector != EMPTY_VECTOR:
            made.append(row)
    return made


def row_of(instance: DatasetInstance, vectorizer: Vectorizer) -> Row | None:
    """The instance, or None if a service would refuse it."""
    try:
        return Row(vectorizer.vectorize(instance.features, instance.text), instance.labels[: LIMITS.max_labels])
    except InvalidInstance:
        return None


def learn(live: LiveModel, row: Row, labels: Sequence[str], rejected: Sequence[str] = (), weight: float = 1.0) -> None:
    """Learn one instance with this feedback."""
    applying = live.begin(row.vector + pack_labels(labels, LIMITS, rejected, (), weight), 1, [Unit(1)])
    while not applying.done:
        applying.step(1)


def best(live: LiveModel, row: Row, k: int = SHOWN) -> list[str]:
    """The labels that the model shows."""
    return [live.label(class_id) for class_id in live.rank(row.vector, k).class_ids.tolist()]


def none(live: LiveModel, row: Row) -> Feedback:
    """No feedback."""
    return (), ()


def confirmed(live: LiveModel, row: Row) -> Feedback:
    """The true ones among the shown labels."""
    return [label for label in best(live, row) if label in row.labels], ()


def shown(live: LiveModel, row: Row) -> Feedback:
    """The true ones among the shown labels, or else all of them rejected."""
    labels = best(live, row)
    true = [label for label in labels if label in row.labels]
    return true, () if true else labels


def known(live: LiveModel, row: Row) -> Feedback:
    """The true labels that the model knows."""
    return [label for label in row.labels if live.labels.find(label.encode()) >= 0], ()


def full(live: LiveModel, row: Row) -> Feedback:
    """All true labels."""
    return row.labels, ()


KINDS: dict[str, Callable[[LiveModel, Row], Feedback]] = {
    "none": none,
    "confirmed": confirmed,
    "shown": shown,
    "known": known,
    "full": full,
}


def seeded(rule: str, parts: Stream) -> LiveModel:
    """A model that has learned the first part."""
    live = LiveModel(ModelConfig.from_dict({"update": rule}), (1, 2))
    for row in parts.seed:
        learn(live, row, row.labels)
    return live


def tested(live: LiveModel, parts: Stream) -> dict[str, float]:
    """R@1 and R@5 on the test part, and the mean recall at 1 of the rarer half of its labels, in percent."""
    hits, of_label = Counter[int](), defaultdict[str, list[bool]](list)
    for row in parts.test:
        listed = best(live, row)
        hits[1] += any(label in row.labels for label in listed[:1])
        hits[5] += any(label in row.labels for label in listed)
        for label in row.labels:
            of_label[label].append(listed[:1] == [label])
    counts = Counter(label for row in (*parts.seed, *parts.events) for label in row.labels)
    rare = sorted(of_label, key=lambda label: (counts[label], label))[: (len(of_label) + 1) // 2]
    tail = sum(sum(of_label[label]) / len(of_label[label]) for label in rare) / len(rare)
    n = len(parts.test) / 100
    return {"R@1": hits[1] / n, "R@5": hits[5] / n, "tail": 100 * tail}


def with_feedback(rule: str, parts: Stream, kind: str) -> dict[str, float]:
    """Measures after the events with one kind of feedback."""
    live = seeded(rule, parts)
    for row in parts.events:
        labels, rejected = KINDS[kind](live, row)
        if labels or rejected:
            learn(live, row, labels, rejected)
    return tested(live, parts)


def self_confirmed(rule: str, parts: Stream, p: float, weight: float) -> dict[str, float]:
    """Measures after events of which a share ``p`` has the label that was ranked first, with this weight."""
    live, draws = seeded(rule, parts), random.Random(1)
    for row in parts.events:
        first = best(live, row, 1) if draws.random() < p else []
        learn(live, row, first or row.labels, (), weight if first else 1.0)
    return tested(live, parts)


def lost(figures: dict[str, dict[str, float]], kind: str, measure: str = "R@1") -> float:
    """The part of the gap between no feedback and full feedback that a kind leaves."""
    gap = figures["full"][measure] - figures["none"][measure]
    return (figures["full"][measure] - figures[kind][measure]) / gap if gap else 0.0


def measure(name: str, data: Path, n_events: int = EVENTS) -> dict[str, Any]:
    """Return all figures of a set, for each update rule."""
    parts = stream(name, data, n_events)
    return {"set": name, "events": len(parts.events)} | {rule: of_rule(rule, parts) for rule in UPDATES}


def of_rule(rule: str, parts: Stream) -> dict[str, Any]:
    """Return all figures of a set under an update rule."""
    figures = {kind: with_feedback(rule, parts, kind) for kind in KINDS}
    return {
        **figures,
        "lost in percent": {kind: 100 * lost(figures, kind) for kind in ("confirmed", "shown", "known")},
        **{
            f"accepts {p:g}, weight {weight:g}": self_confirmed(rule, parts, p, weight)
            for p in ACCEPTED
            for weight in WEIGHTS
        },
    }
