"""Write golden logs: ``python -m tests.core.model.golden NAME...``.

A log that exists is never written again: it is what an earlier release wrote. Only add logs, for new kinds of records
and settings, and put the digest that is printed into ``test_golden_logs.py``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from abound.log.events import (
    APPLY_VERSION,
    CatalogEntry,
    ConfigureEvent,
    Entry,
    Event,
    LearnEvent,
    ModelCreated,
    encode,
)
from abound_core.config import ModelConfig
from abound_core.instances.record import add_dense, add_details, pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from tests.core.model.test_golden_logs import path_of, replayed

LIMITS = Limits()
N_CLASSES, D, N_ENTRIES, PER_ENTRY = 9, 12, 12, 10


class Author:
    """Makes records of a model's instances.

    Parameters
    ----------
    n_labels : int
        Most true labels of an instance.
    dense : bool
        Whether most instances have a vector of ``D`` numbers.
    """

    def __init__(self, seed: str, n_labels: int = 1, dense: bool = False) -> None:
        self.rng = random.Random(seed)
        self._n_labels = n_labels
        self._centres = [[self.rng.gauss(0, 40) for _ in range(D)] for _ in range(N_CLASSES)] if dense else []

    def classes(self) -> list[int]:
        """Return the true classes of the next instance, low ones more often."""
        n = self.rng.randint(1, self._n_labels)
        return list(dict.fromkeys(int(N_CLASSES * self.rng.random() ** 2) for _ in range(n)))

    def vector(self, classes: Sequence[int]) -> bytes:
        """Return words of these classes and of no class, with a vector near their first one."""
        words = {f"class{one}-{self.rng.randrange(4)}" for one in classes} | {f"word{self.rng.randrange(12)}"}
        values = np.array([1 + self.rng.randrange(3) for _ in words], np.float32)
        plain = pack_vector([word.encode() for word in sorted(words)], values / np.linalg.norm(values))
        if not self._centres or self.rng.random() < 0.15:
            return plain
        near = [round(x + self.rng.gauss(0, 25)) for x in self._centres[classes[0]]]
        return add_dense(plain, np.clip(near, -127, 127).astype(np.int8).tobytes(), 0.25)

    def record(self, **feedback: Any) -> bytes:
        """Return the next instance with its true labels."""
        classes = self.classes()
        return self.vector(classes) + pack_labels([f"label {one}" for one in classes], LIMITS, **feedback)

    def judged(self) -> bytes:
        """Return an instance with feedback of any kind."""
        true, *others = (f"label {one}" for one in self.rng.sample(range(N_CLASSES), 4))
        vector, weight = self.vector(self.classes()), self.rng.choice((0.25, 1.0, 3.0))
        if self.rng.random() < 0.4:
            return vector + pack_labels([], LIMITS, others[:2], others[2:], weight)
        return vector + pack_labels([true], LIMITS, others[:1], others[1:], weight)

    def registration(self, number: int) -> bytes:
        """Return a record that registers a label with a name."""
        record = self.vector([number]) + pack_labels([f"label {number}"], LIMITS)
        return add_details(record, b'{"name":"Label %d"}' % number)


def plain(author: Author) -> list[Event]:
    """Return entries of single instances."""
    return [learned([author.record() for _ in range(PER_ENTRY)]) for _ in range(N_ENTRIES)]


def learned(records: list[bytes], units: list[Unit] | None = None) -> LearnEvent:
    """Return the event of these records, each a request of its own unless ``units`` are given."""
    units = units or [Unit(1) for _ in records]
    return LearnEvent(b"".join(records), sum(unit.n for unit in units), units)


def with_keys(author: Author) -> list[Event]:
    """Return batches with a key, repeated requests, a key with another body, and forgotten instances."""
    events: list[Event] = []
    for at in range(N_ENTRIES):
        records = [author.record() for _ in range(6)]
        repeated = Unit(2, f"batch{max(at - 1, 0)}", b"body%d" % max(at - 1, 0))
        batch = [Unit(1, f"one{at}", b"1", None, 2), Unit(1, f"one{max(at - 2, 0)}", b"%d" % (at % 3))]
        events.append(learned(records, [Unit(2, f"batch{at}", b"body%d" % at, "web"), repeated, *batch]))
        events.append(learned(records[:2], [Unit(1), Unit(3, emptied=True), Unit(1)]))
    return events


def with_changes(author: Author) -> list[Event]:
    """Return entries between which the configuration changes."""
    changes: list[dict[str, Any]] = [{"d_max": 5}, {"w_min": 0.05, "margin": 0.3}, {"calibrate": True}, {"d_max": 40}]
    events = plain(author)
    for at, change in enumerate(changes):
        events.insert(3 * at + 2, ConfigureEvent(change))
    return events


def with_feedback(author: Author) -> list[Event]:
    """Return entries with rejected and ignored labels and weights."""
    return [
        learned([author.judged() if at % 2 else author.record() for at in range(PER_ENTRY)]) for _ in range(N_ENTRIES)
    ]


def with_names(author: Author) -> list[Event]:
    """Return registrations of labels, before and after instances; some again, under the same or another name."""
    first = [author.registration(number) for number in range(4)]
    again = [author.registration(number) for number in (2, 5, 8)]
    return [learned(first), *plain(author), learned([first[1], *again]), *plain(author)[:2]]


LOGS: dict[str, tuple[dict[str, Any], Author, Callable[[Author], list[Event]]]] = {
    "fsu": ({}, Author("fsu"), plain),
    "multi_label": ({"margin": 0.2}, Author("multi_label", 3), plain),
    "max_features": ({"max_features": 30}, Author("max_features"), plain),
    "memory": ({"memory": 3.0}, Author("memory"), plain),
    "sls": ({"update": "sls", "rows": False}, Author("sls"), plain),
    "rows": ({"update": "sls"}, Author("rows", 4), plain),
    "calibrate": ({"update": "sls", "calibrate": True}, Author("calibrate", 2), plain),
    "vectors": ({"update": "sls", "rerank": False}, Author("vectors", 1, True), plain),
    "rerank": ({"update": "sls", "rerank": True}, Author("rerank", 2, True), plain),
    "keys": ({}, Author("keys"), with_keys),
    "configure": ({}, Author("configure", 2), with_changes),
    "feedback_fsu": ({"implicit": 0.1}, Author("feedback_fsu"), with_feedback),
    "feedback_sls": ({"update": "sls", "implicit": 0.1}, Author("feedback_sls"), with_feedback),
    "names": ({"update": "sls", "rerank": True}, Author("names", 1, True), with_names),
    "default_rerank": ({"update": "sls"}, Author("default_rerank", 2, True), plain),
}


def main() -> None:
    """Write the logs that are named."""
    for name in sys.argv[1:]:
        settings, author, make = LOGS[name]
        if path_of(name).exists():
            raise SystemExit(f"{path_of(name)} exists, and golden logs are never written again")
        created = CatalogEntry(APPLY_VERSION, ModelCreated(name, ModelConfig.from_dict(settings).to_dict()))
        entries = [Entry(APPLY_VERSION, b"golden", number, event) for number, event in enumerate(make(author))]
        path_of(name).write_bytes(msgspec.msgpack.encode([encode(one) for one in (created, *entries)]))
        print(f'    "{name}": "{replayed(name).digest()}",')


if __name__ == "__main__":
    main()
