"""Names of labels: a model that learns each name once as an instance of its label, and one that does not.

``names`` registers the labels of the training part, ``all`` those of both parts; then the training part is learned in
file order. The sets with few examples learn the first of each label, in random orders. The name of a label of
yso-finna-en is in its file ``labels``, that of wordnet-hypernyms is the label up to the first ``.``, and others are
the words of the label itself. R@1, R@5 and MRR of the test part, in percent, for both update rules.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from abound.core.config import ModelConfig
from abound.core.instances.data_formats import Dataset, vectorize_all
from abound.core.instances.record import add_details, pack_labels
from abound.core.instances.vectorizer import Vectorizer
from abound.core.limits import DATASET_LIMITS as LIMITS
from abound.core.model.entry_application import Unit
from abound.core.model.label_details import words_of
from abound.core.model.live_model import LiveModel
from benchmarks.inputs.parts import UPDATES
from benchmarks.sets import NAMES, read_file

SETS = ("clinc150", "gutenberg-subjects", "wordnet-hypernyms", "yso-finna-en")
FEW = ("clinc150",)
"""Sets that are also learned with few examples."""

MOST = {"yso-finna-en": 100_000}
"""Instances of the training part that are learned, where not all are."""

CUTS = {"wordnet-hypernyms": "."}
"""The sign at which the name of a label ends."""

EXAMPLES, DRAWS = (0, 1, 2, 3, 5, 10), 3
DEPTH = 1000
EMPTY: Mapping[str, str] = MappingProxyType({})


def labels_of(data: Dataset, row: int) -> list[str]:
    """The labels of an instance."""
    starts, ids = data.labels
    return [data.names[i] for i in ids[starts[row] : starts[row + 1]].tolist()]


def chosen(data: Dataset, examples: int, draw: int) -> list[int]:
    """Return the rows of the first few instances of each label in a random order."""
    taken: dict[str, int] = {}
    rows = []
    for row in np.random.default_rng(draw).permutation(len(data)).tolist():
        [label, *_] = labels_of(data, row)
        if taken.get(label, 0) < examples:
            taken[label] = taken.get(label, 0) + 1
            rows.append(row)
    return rows


def names_of(labels: Iterable[str], own: Mapping[str, str] = EMPTY, cut: str | None = None) -> dict[str, str]:
    """Return the names of the labels that have one: their own, or the words of the label up to a sign."""
    words = {label: own.get(label) or words_of(label.partition(cut)[0] if cut else label) for label in labels}
    return {label: name for label, name in words.items() if name}


def learn_names(live: LiveModel, names: dict[str, str]) -> None:
    """Register labels with these names."""
    vectorize = live.vectorizer.vectorize
    _learn(
        live, [add_details(vectorize(None, name) + pack_labels([label], LIMITS), b"") for label, name in names.items()]
    )


def learn_rows(live: LiveModel, data: Dataset, rows: list[int]) -> None:
    """Learn these instances."""
    _learn(live, [data.vectors[row] + data.label_parts[row] for row in rows])


def _learn(live: LiveModel, records: list[bytes]) -> None:
    if records:
        live.begin(b"".join(records), len(records), [Unit(len(records))]).finish()


def tested(
    config: ModelConfig, names: dict[str, str], train: Dataset, rows: list[int], test: Dataset
) -> dict[str, float]:
    """Return R@1, R@5 and MRR of the test part after learning the names and these rows."""
    live = LiveModel(config, (1, 2))
    learn_names(live, names)
    learn_rows(live, train, rows)
    found = np.zeros(len(test))
    for row, vector in enumerate(test.vectors):
        true = {live.labels.find(label.encode()) for label in labels_of(test, row)}
        ranked = live.rank(vector, DEPTH).class_ids.tolist()
        found[row] = next((1 / rank for rank, class_id in enumerate(ranked, 1) if class_id in true), 0.0)
    shares = {"R@1": (found == 1).mean(), "R@5": (found >= 0.2).mean(), "MRR": found.mean()}
    return {name: 100 * float(share) for name, share in shares.items()}


def own_names(name: str, data: Path) -> dict[str, str]:
    """Return the names in the file of labels of a set, if it has one."""
    path = data / name / "labels.jsonl.gz"
    if not path.exists():
        return {}
    with gzip.open(path) as lines:
        return {str(one["label"]): one["name"] for one in map(msgspec.json.decode, lines)}


def measure(name: str, data: Path) -> dict[str, Any]:
    """Measure one set with and without names."""
    vectorize = Vectorizer(ModelConfig(), LIMITS).vectorize
    train, test = (
        vectorize_all(islice(read_file(str(data / name / f"{part}.{NAMES[name]}.gz")), most), vectorize, LIMITS)
        for part, most in (("train", MOST.get(name)), ("test", None))
    )
    names = names_of(dict.fromkeys([*train.names, *test.names]), own_names(name, data), CUTS.get(name))
    known = {label: names[label] for label in train.names if label in names}
    figures: dict[str, Any] = {"set": name}
    for update in UPDATES:
        config = ModelConfig.from_dict({"update": update})
        everything = list(range(len(train)))
        figures[update] = {"without": tested(config, {}, train, everything, test)}
        figures[update]["names"] = tested(config, known, train, everything, test)
        if len(known) < len(names):
            figures[update]["all"] = tested(config, names, train, everything, test)
        for n in EXAMPLES if name in FEW else ():
            for way, registered in (("without", {}), ("names", known)):
                draws = [
                    tested(config, registered, train, chosen(train, n, draw), test) for draw in range(DRAWS if n else 1)
                ]
                means = {measured: float(np.mean([one[measured] for one in draws])) for measured in draws[0]}
                figures[update][f"{n} examples, {way}"] = means
    return figures
