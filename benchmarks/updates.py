"""How accurate the update rules are, on every data set, by one default setting each.

    python -m benchmarks.updates [--json] [--only NAME]... [--update sls]... [--shuffles 3] [--validate] [--kept DIR]

One pass from an empty index, then the test part is ranked once: R@1, R@5, MRR and P@5 (MRR over the best 1,000). The
figures of ``--shuffles`` orders of the training part are averaged; a set in order of time is also learned in that
order, with R@1 of each instance before it was learned (prequential). ``--validate`` takes a tenth of the training part
for the test part, which is what settings are chosen by. What was measured is kept in ``results.json`` in the folder
``--kept``, and is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from abound.core.config import ModelConfig
from abound.core.index.index import ALL_CLASSES, Index
from abound.core.index.params import IndexParams
from abound.core.kernels.index import learning
from abound.core.kernels.index.layout import Feedback
from abound.core.kernels.index.rank import rank_classes
from benchmarks.sets import ANALYZERS, IN_TIME, NAMES, Rows, Task, data_folder, default_folder, load, validation

UPDATES: dict[str, dict[str, Any]] = {
    "sls rows=false": {"update": "sls", "rows": False},
    "fsu": {},
    "fsu margin .5": {"margin": 0.5},
    "sls": {"update": "sls"},
    "sls eta=1": {"update": "sls", "eta": 1.0},
    "sls idf=false": {"update": "sls", "idf": False},
}
DEPTH = 1000
MEASURES = ("R@1", "R@5", "MRR", "P@5")


@njit(nogil=True)
def learn_rows(arrays, params, starts, ids, values, label_starts, label_ids, first, ranks_out):
    """Learn instances from ``first`` on, until one needs more room; where it stopped. Ranks before learning."""
    ranks, scratch = np.empty(65_536, np.int32), np.empty(2**20, np.float32)
    for i in range(first, len(starts) - 1):
        own, true = slice(starts[i], starts[i + 1]), slice(label_starts[i], label_starts[i + 1])
        if not learning.has_room(arrays, params, ids[own], label_ids[true]):
            return i
        n, m = own.stop - own.start, true.stop - true.start
        scratch[:n] = values[own]
        feedback = Feedback(m, 0, 1.0)
        learning.learn_feedback(arrays, params, ids[own], scratch[:n], label_ids[true], feedback, True, ranks[:m])
        ranks_out[i] = 0
        for rank in ranks[:m]:
            if rank and (ranks_out[i] == 0 or rank < ranks_out[i]):
                ranks_out[i] = rank
    return len(starts) - 1


@njit(nogil=True)
def rank_rows(arrays, params, mask, depth, starts, ids, values, label_starts, label_ids, ranks_out, hits_out):
    """The rank of the best true class, and how many of the best five are true, of each instance."""
    scratch, class_ids, scores = np.empty(2**20, np.float32), np.empty(depth, np.int32), np.empty(depth)
    for i in range(len(starts) - 1):
        own, true = slice(starts[i], starts[i + 1]), label_ids[label_starts[i] : label_starts[i + 1]]
        n = own.stop - own.start
        scratch[:n] = values[own]
        n_ranked = rank_classes(arrays, params, ids[own], scratch[:n], mask, class_ids, scores)
        ranks_out[i] = hits_out[i] = 0
        for place in range(n_ranked):
            if (true == class_ids[place]).any():
                hits_out[i] += place < 5
                ranks_out[i] = ranks_out[i] if ranks_out[i] else place + 1
            if place >= 4 and ranks_out[i]:
                break


def learned(config: ModelConfig, rows: Rows) -> tuple[Index, npt.NDArray[np.int32], float]:
    """An index that learned all rows, the ranks before learning, and the seconds that it took."""
    index = Index(IndexParams.of(config))
    index.make_room(int(rows.ids.max()) + 1, int(rows.label_ids.max()) + 1, 64, 2**16, 4096)
    ranks = np.empty(len(rows), np.int32)
    parts = (rows.starts, rows.ids, rows.values, rows.label_starts, rows.label_ids)
    learn_rows(index.arrays, index.kernel_params, *parts, len(rows), ranks)
    index.make_room_for(rows.ids[:0], rows.label_ids[:0])
    started, at = time.thread_time(), 0
    while True:
        at = learn_rows(index.arrays, index.kernel_params, *parts, at, ranks)
        if at == len(rows):
            return index, ranks, time.thread_time() - started
        own, true = slice(*rows.starts[at : at + 2]), slice(*rows.label_starts[at : at + 2])
        index.make_room_for(rows.ids[own], rows.label_ids[true])


def ranked(index: Index, rows: Rows, depth: int = DEPTH) -> tuple[dict[str, float], float]:
    """The measures of a test part, and the seconds that ranking took."""
    ranks, hits = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    parts = (rows.starts, rows.ids, rows.values, rows.label_starts, rows.label_ids)
    common = (index.arrays, index.kernel_params, ALL_CLASSES, depth)
    rank_rows(*common, rows.starts[:1], *parts[1:], ranks, hits)
    started = time.thread_time()
    rank_rows(*common, *parts, ranks, hits)
    seconds = time.thread_time() - started
    own = ranks[np.diff(rows.label_starts) > 0]
    found = own[own > 0]
    recall = [float((found <= k).sum() / len(own)) for k in (1, 5)]
    values = (*recall, float((1.0 / found).sum() / len(own)), float(hits.sum() / (5 * len(rows))))
    return dict(zip(MEASURES, values, strict=True)), seconds


def in_order_of_arrival(train: Rows, test: Rows) -> tuple[Rows, Rows]:
    """The same with classes numbered as they arrive, which is what decides between equal scores."""
    classes = np.concatenate((train.label_ids, test.label_ids))
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    renamed = np.empty(len(first), np.int32)
    renamed[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    cut = len(train.label_ids)
    return (
        Rows(train.starts, train.ids, train.values, train.label_starts, renamed[inverse[:cut]]),
        Rows(test.starts, test.ids, test.values, test.label_starts, renamed[inverse[cut:]]),
    )


def measured(task: Task, config: ModelConfig, seed: int | None) -> dict[str, float]:
    """The figures of one order of the training part; None: as it is."""
    places = task.train.labelled
    if seed is not None:
        places = np.random.default_rng(seed).permutation(places)
    train, test = in_order_of_arrival(task.train.taken(places), task.test)
    index, ranks, learning_took = learned(config, train)
    measures, ranking_took = ranked(index, test)
    return measures | {
        "prequential": float((ranks == 1).mean()),
        "connections": index.n_connections,
        "learn/s": len(train) / max(learning_took, 1e-9),
        "classify/s": len(test) / max(ranking_took, 1e-9),
    }


def cell(task: Task, name: str, config: ModelConfig, shuffles: int) -> dict[str, Any]:
    """All figures of an update rule on a set: means over the orders, and those in order of time."""
    runs = [measured(task, config, seed) for seed in range(shuffles)]
    figures: dict[str, Any] = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]} if runs else {}
    if name in IN_TIME:
        figures["in time"] = measured(task, config, None)
    return figures


def shown(name: str, update: str, figures: dict[str, Any]) -> str:
    """A line of the table."""
    orders = {"": figures, " in time": figures.get("in time")}
    return "\n".join(
        f"| {name}{order} | {update} | "
        + " | ".join(f"{100 * part[key]:.1f}" for key in (*MEASURES, "prequential"))
        + f" | {part['connections']:,.0f} | {part['learn/s']:,.0f} | {part['classify/s']:,.0f} |"
        for order, part in orders.items()
        if part and "R@1" in part
    )


def main() -> None:
    """Measure what was asked for and is not there yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a set and update rule")
    parser.add_argument("--only", action="append", choices=list(NAMES), help="these sets")
    parser.add_argument("--update", action="append", choices=list(UPDATES), help="these update rules")
    parser.add_argument("--shuffles", type=int, default=3)
    parser.add_argument("--validate", action="store_true", help="a tenth of the training part for the test part")
    parser.add_argument("--analyzer", choices=list(ANALYZERS), default="words", help="how texts become terms")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--kept", type=Path, default=default_folder(), help="folder of arrays and results")
    options = parser.parse_args()
    options.kept.mkdir(parents=True, exist_ok=True)
    path = options.kept / "results.json"
    done = json.loads(path.read_text()) if path.exists() else {}
    for name in options.only or NAMES:
        task = None
        for update in options.update or UPDATES:
            settings = json.dumps(UPDATES[update], sort_keys=True)
            key = f"{name}|{settings}|{options.shuffles}|{'validation' if options.validate else 'test'}"
            key += "" if options.analyzer == "words" else f"|{options.analyzer}"
            if key not in done:
                if task is None:
                    task = load(name, data_folder(options.data), options.kept, options.analyzer)
                    task = validation(task, name) if options.validate else task
                done[key] = cell(task, name, ModelConfig(**UPDATES[update]), options.shuffles)
                path.write_text(json.dumps(done, indent=1))
            figures = done[key]
            line = (
                json.dumps({"set": name, "update": update} | figures) if options.json else shown(name, update, figures)
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
