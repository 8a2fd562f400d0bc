"""What names of labels add: a model that learns each name once as an instance, and one that does not.

    python -m benchmarks.label_names TRAIN.jsonl TEST.jsonl [--examples 0 1 2 3 5 10] [--names LABELS.jsonl.gz] [--json]

Registers the labels of the training part, or those of both parts (``all``), and then learns the training part in file
order: all of it, or the first ``--examples`` of each label, in the orders of ``--draws`` random permutations. The name
of a label is in ``--names`` (lines with ``label`` and ``name``), or the label itself up to ``--cut``. Prints R@1, R@5
and MRR of the test part without names and with them.
"""

from __future__ import annotations

import argparse
import gzip
import json
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
from abound.service.datasets.files import read_file

DEPTH = 1000


def labels_of(data: Dataset, row: int) -> list[str]:
    """The labels of an instance."""
    starts, ids = data.labels
    return [data.names[i] for i in ids[starts[row] : starts[row + 1]].tolist()]


def chosen(data: Dataset, examples: int | None, draw: int) -> list[int]:
    """The rows to learn: all, or the first few of each label in a random order."""
    if examples is None:
        return list(range(len(data)))
    taken: dict[str, int] = {}
    rows = []
    for row in np.random.default_rng(draw).permutation(len(data)).tolist():
        [label, *_] = labels_of(data, row)
        if taken.get(label, 0) < examples:
            taken[label] = taken.get(label, 0) + 1
            rows.append(row)
    return rows


def learn(live: LiveModel, records: list[bytes]) -> None:
    """Learn records as one entry."""
    if records:
        live.begin(b"".join(records), len(records), [Unit(len(records))]).finish()


def measure(
    config: ModelConfig, names: dict[str, str], train: Dataset, rows: list[int], test: Dataset
) -> dict[str, float]:
    """R@1, R@5 and MRR of the test part after learning the names and these rows."""
    live = LiveModel(config, (1, 2))
    vectorize = Vectorizer(config, LIMITS).vectorize
    learn(
        live, [add_details(vectorize(None, name) + pack_labels([label], LIMITS), b"") for label, name in names.items()]
    )
    learn(live, [train.vectors[row] + pack_labels(labels_of(train, row), LIMITS) for row in rows])
    found = np.zeros(len(test))
    for row, vector in enumerate(test.vectors):
        true = {live.labels.find(label.encode()) for label in labels_of(test, row)}
        ranked = live.rank(vector, DEPTH).class_ids.tolist()
        found[row] = next((1 / rank for rank, class_id in enumerate(ranked, 1) if class_id in true), 0.0)
    return {"R@1": float((found == 1).mean()), "R@5": float((found >= 0.2).mean()), "MRR": float(found.mean())}


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--update", choices=["fsu", "sls"], nargs="+", default=["fsu", "sls"])
    parser.add_argument("--examples", type=int, nargs="+", help="of each label; all, if not given")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--names", metavar="FILE")
    parser.add_argument("--cut", metavar="SIGN", help="the name of a label ends at this sign")
    parser.add_argument("--most", type=int, help="instances of the training part that are read")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    own = {}
    if given.names:
        with gzip.open(given.names) as lines:
            own = {str(one["label"]): one["name"] for one in map(msgspec.json.decode, lines)}
    told: list[dict[str, Any]] = []
    for update in given.update:
        config = ModelConfig.from_dict({"update": update})
        vectorize = Vectorizer(config, LIMITS).vectorize
        train, test = (
            vectorize_all((one for i, one in enumerate(read_file(path)) if most is None or i < most), vectorize, LIMITS)
            for path, most in ((given.train, given.most), (given.test, None))
        )
        in_train = {label for row in range(len(train)) for label in labels_of(train, row)}
        names = {
            label: name
            for label in dict.fromkeys([*train.names, *test.names])
            if (name := own.get(label) or words_of(label.partition(given.cut)[0] if given.cut else label))
        }
        known = {label: name for label, name in names.items() if label in in_train}
        for examples in given.examples or [None]:
            for kind, registered in (("without", {}), ("train", known), ("all", names)):
                if kind == "all" and (len(known) == len(names) or examples is not None):
                    continue
                draws = [
                    measure(config, registered, train, chosen(train, examples, draw), test)
                    for draw in range(given.draws if examples else 1)
                ]
                means = {name: float(np.mean([one[name] for one in draws])) for name in draws[0]}
                told.append({"update": update, "examples": examples, "names": kind, **means})
                if not given.json:
                    print(*(f"{value:.4f}" if isinstance(value, float) else value for value in told[-1].values()))
    if given.json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
