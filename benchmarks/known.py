"""Ranking of the remaining labels of an instance when some of its labels are known.

    python -m benchmarks.known [--data DIR] [--only NAME]... [--json]

A model with ``update: sls`` learns the training part in one pass. Of each instance of the test part that has more than
``given`` labels, ``given`` random ones are known, and the others are to be found. R@1 and recall@5 of the index alone,
which leaves the known labels out, are shown beside those of ``known``. Labels that were not learned count as not found.
The time of learning is shown for models with and without ``known``, the median of five runs in turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from abound_core.config import ModelConfig
from abound_core.evaluation.evaluate import fit
from abound_core.instances.data_formats import Dataset, vectorize_all
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.model.live_model import LiveModel
from abound_core.types import Ranking
from benchmarks.sets import NAMES, data_folder, read_file

SETS = ("bibtex", "stackex-cooking", "gutenberg-subjects", "rcv1v2", "commits-git", "yso-finna-en")
MOST_LEARNED = {"yso-finna-en": 60_000}
MOST_TESTED = 5_000
SEED = 0

Rank = Callable[[bytes, Sequence[str]], Ranking]


def read(name: str, part: str, data: Path, most: int | None) -> Dataset:
    instances = read_file(str(data / name / f"{part}.{NAMES[name]}.gz"))
    return vectorize_all(islice(instances, most), Vectorizer(ModelConfig(update="sls"), DATASET_LIMITS), DATASET_LIMITS)


def measure(live: LiveModel, test: Dataset, given: int, rank: Rank) -> dict[str, float]:
    """Return R@1 and recall@5 of the labels that are not known, in per cent."""
    rng = np.random.default_rng(SEED)
    hits, recalls = [], []
    for i, vector in enumerate(test.vectors):
        labels = test.labels.ids[test.labels.starts[i] : test.labels.starts[i + 1]]
        if len(labels) > given:
            names = [test.names[label] for label in rng.permutation(labels).tolist()]
            best = [live.label(class_id) for class_id in rank(vector, names[:given]).class_ids.tolist()]
            rest = set(names[given:])
            hits.append(best[0] in rest if best else False)
            recalls.append(len(rest & set(best)) / min(len(rest), 5))
    return {"n": len(hits), "R@1": 100 * float(np.mean(hits)), "recall@5": 100 * float(np.mean(recalls))}


def seconds_to_learn(train: Dataset, known: bool) -> tuple[float, LiveModel]:
    began = time.process_time()
    live = fit(train, ModelConfig(update="sls", known=known), (1, 2))
    return time.process_time() - began, live


def result(name: str, data: Path, runs: int) -> dict[str, Any]:
    train, test = read(name, "train", data, MOST_LEARNED.get(name)), read(name, "test", data, MOST_TESTED)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(runs):
        for known in times:
            seconds, live = seconds_to_learn(train, known)
            times[known].append(seconds)
    figures = {}
    for given in (1, 2):
        if not np.any(test.labels.sizes > given):
            continue
        alone = measure(live, test, given, lambda vector, known: live.rank(vector, 5, exclude=known))
        figures[given] = {
            "alone": alone,
            "known": measure(live, test, given, lambda vector, known: live.rank_known(vector, known, 5)),
        }
    return {
        "set": name,
        "learned": len(train.learnable),
        "connections": [live.label_sets.n_connections, live.index.n_connections],
        "seconds": {str(known): median(values) for known, values in times.items()},
        "given": figures,
    }


def show(one: dict[str, Any]) -> None:
    before, after = one["seconds"].values()
    print(f"{one['set']}: {one['learned']:,} learned, connections {one['connections']}, ", end="")
    print(f"learning {before:.2f} s, with known {after:.2f} s ({100 * (after / before - 1):+.1f} %)")
    for given, figures in one["given"].items():
        alone, known = figures["alone"], figures["known"]
        parts = [f"{name} {alone[name]:.1f} -> {known[name]:.1f}" for name in ("R@1", "recall@5")]
        print(f"  {given} known, {alone['n']:,} instances: {', '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", action="append", choices=SETS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    data = data_folder(given.data)
    for name in given.only or SETS:
        one = result(name, data, given.runs)
        print(json.dumps(one)) if given.json else show(one)


if __name__ == "__main__":
    main()
