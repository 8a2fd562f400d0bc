"""All methods on the two large data sets: within 20 GB, or refused."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduction.experiment import Bound, Experiment, ResultTable, Row
from benchmarks.reproduction.indexes import WORD_DOWN, WORD_REST

LARGE = {"wordnet-hypernyms": "WordNet", "yso-finna-en-2000": "yso"}

METHODS: tuple[tuple[str, str, dict[str, Any], tuple[float, float]], ...] = (
    ("frequency", "frequency", {}, (1, 5)),
    ("ff, margin 0", "ff", {"margin": 0.0}, (15, 60)),
    ("ff, margin 0.5", "ff", {"margin": 0.5}, (40, 300)),
    ("ind", "ind", {}, (8, 40)),
    ("unweighted, 1 pass", "unweighted", {"passes": 1}, (10, 2000)),
    ("swnn", "swnn", {}, (6, 20)),
    ("ogeec", "ogeec", {"neighbors": 50}, (30, 90)),
    ("rembrandt, squared loss", "rembrandt", {"decoder": "squared"}, (60, 300)),
    ("rembrandt, softmax, 5 epochs", "rembrandt", {"decoder": "softmax", "epochs": 5}, (1500, 30000)),
    ("exmlds1, 1 learner", "exmlds1", {"learners": 1}, (20, 150)),
    ("exmlds1", "exmlds1", {}, (60, 500)),
    ("exmlds2, 1 learner", "exmlds2", {"learners": 1}, (120, 900)),
    ("exmlds_joint, 1 learner", "exmlds_joint", {"learners": 1}, (150, 1500)),
    ("exmlds3", "exmlds3", {}, (30, 900)),
)
"""Label, method, parameters, and approximate seconds on each data set."""


def _rows() -> list[Row]:
    rows = []
    for label, method, params, seconds in METHODS:
        for (data, shown), estimate in zip(LARGE.items(), seconds, strict=True):
            if method == "rembrandt" and params["decoder"] == "softmax" and estimate > 3600:
                continue
            experiment = Experiment(data=data, method=method, params=params, seconds=estimate)
            rows.append(Row(label=f"{shown}: {label}", experiment=experiment))
    rows.append(Row(label="WordNet: one_vs_rest, perceptron, no idf", experiment=WORD_REST))
    down = {"kind": "perceptron", "idf": False}
    rows.append(
        Row(
            label="yso: one_vs_rest, perceptron",
            experiment=Experiment(data="yso-finna-en-2000", method="one_vs_rest", params=down, seconds=1),
        )
    )
    rows.append(Row(label="WordNet: top_down, perceptron, no idf", experiment=WORD_DOWN))
    rows.append(
        Row(
            label="yso: top_down, perceptron, no idf",
            experiment=Experiment(data="yso-finna-en-2000", method="top_down", params=down, seconds=600),
        )
    )
    return sorted(rows, key=lambda row: row.label.partition(":")[0])


def _slow_rows() -> tuple[Row, ...]:
    """Return rows for methods that take hours on all of the data, on a part of them."""
    perceptron = {"kind": "perceptron", "idf": False}
    word, yso = "WordNet, 10,000 instances", "yso, 50,000 instances"
    rest = Experiment(data="wordnet-10000", method="one_vs_rest", params=perceptron, seconds=100)
    softmax = {"decoder": "softmax", "epochs": 5}
    others: tuple[tuple[str, dict[str, Any], float], ...] = (
        ("unweighted", {"passes": 1}, 100),
        ("top_down", perceptron, 60),
        *((f"exmlds{kind}", {"learners": 1}, 80.0) for kind in ("1", "2", "_joint")),
    )
    return (
        Row(label=f"{word}: one_vs_rest, perceptron, no idf", experiment=rest),
        Row(
            label=f"{word}: top_down, perceptron, no idf",
            experiment=Experiment(data="wordnet-10000", method="top_down", params=perceptron, seconds=15),
            bounds=(Bound(measure="fit", most=0.125, than=rest, named="one_vs_rest", ratio=True),),
        ),
        Row(
            label=f"{word}: rembrandt, softmax, 5 epochs",
            experiment=Experiment(data="wordnet-10000", method="rembrandt", params=softmax, seconds=90),
        ),
        *(
            Row(
                label=f"{yso}: {method}" + (", 1 learner" if "learners" in params else ""),
                experiment=Experiment(data="yso-50000", method=method, params=params, seconds=seconds),
            )
            for method, params, seconds in others
        ),
    )


TABLES = (
    ResultTable(
        name="large",
        title="All methods on large data",
        note="WordNet: 85,873 instances, 19,387 labels; yso: 588,314 instances, 24,975 labels, 2,000 queries. A "
        "method that would need more than 20 GB is refused. The next table has the methods "
        "that would take too long.",
        measures=("P@1", "P@3", "P@5", "peak GB"),
        rows=tuple(_rows()),
    ),
    ResultTable(
        name="slow",
        title="Slow methods on a part of the large data",
        note="The first 10,000 instances of WordNet and the first 50,000 of yso, which are in a random order; 2,000 "
        "queries. The time of one_vs_rest and the softmax grows with instances times labels, that of the others with "
        "instances.",
        measures=("P@1", "P@3", "P@5", "peak GB"),
        rows=_slow_rows(),
    ),
)
