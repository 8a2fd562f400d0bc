"""Whether a score of ``sls`` can be read as a probability: how often the best label is true, by its score.

    python -m benchmarks.reliability [--json] [--only SET]... [--kept DIR] [--data DIR]

One pass over the training part in a random order, then the best label of each test instance. For each tenth of the
scores from 0 to 1 (beyond counts as the ends): instances, their mean score, and the share of true ones; and the mean
distance of the two over all instances (expected calibration error).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from abound.core.config import ModelConfig
from abound.core.model.calibration import binned, reliability_of
from benchmarks.sets import IN_TIME, NAMES, Task, data_folder, default_folder, load
from benchmarks.updates import in_order_of_arrival, learned


def reliability(task: Task, name: str) -> dict[str, Any]:
    """Counts, mean scores and shares of true labels of each bin, and the calibration error."""
    places = task.train.labelled
    if name not in IN_TIME:
        places = np.random.default_rng(0).permutation(places)
    train, test = in_order_of_arrival(task.train.taken(places), task.test)
    index = learned(ModelConfig(update="sls"), train)[0]
    scores, true = np.zeros(len(test)), np.zeros(len(test), np.bool_)
    for i in range(len(test)):
        own, labels = slice(*test.starts[i : i + 2]), test.label_ids[slice(*test.label_starts[i : i + 2])]
        ranking = index.rank(test.ids[own], test.values[own], 1)
        if len(ranking.class_ids):
            scores[i], true[i] = min(max(ranking.scores[0], 0.0), 1.0), ranking.class_ids[0] in labels
    return reliability_of(binned(scores, true))


def main() -> None:
    """Measure the sets that were asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a set")
    parser.add_argument("--only", action="append", choices=list(NAMES), help="these sets")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--kept", type=Path, default=default_folder(), help="folder of arrays")
    options = parser.parse_args()
    for name in options.only or NAMES:
        figures = reliability(load(name, data_folder(options.data), options.kept), name)
        if options.json:
            print(json.dumps({"set": name} | figures), flush=True)
        else:
            shares = " | ".join(f"{one['true']:.2f}" if one["n"] else "" for one in figures["bins"])
            print(f"| {name} | {shares} | {figures['error']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
