"""The blend of the live index and a batch version on a stream in time order, in process.

    python -m benchmarks.blend [--json] [--data DIR] [--set-name NAME] [--update fsu|sls] [--method NAME]
        [--set NAME=VALUE]... [--refit SHARE]... [--limit N] [--plot FILE]

The commits of Git in time order, unless another set is named, whose order is taken for time. The version is fitted
anew on all that came before at some shares of the stream, as a user would who starts a job now and then, and activated;
the index learns on. Every instance is ranked by all before it is learned. Weights are learned by `BlendLearner`, as in
the service. They change when a version is activated, and later at least every `--every` instances.

Told are R@1 and MRR over all instances since the first version, and over stretches of ``--window``; by how much the
blend lies below the better of the two where it does so the most, over all so far (from instance ``WARM`` on) and in
stretches; and how many standard errors of the paired difference that is in the worst stretch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.comparison.blend import DEPTH, BlendLearner, LabelRanking, ranks_under
from abound.core.config import ModelConfig
from abound.core.instances.data_formats import DatasetInstance
from abound.core.instances.record import pack_labels
from abound.core.instances.vectorizer import Vectorizer
from abound.core.limits import DATASET_LIMITS
from abound.core.methods import fitted as fitting
from abound.core.methods import registry
from abound.core.methods.fitted import FittedMethod
from abound.core.methods.training.gather import MatrixBuilder
from abound.core.methods.training.progress import no_progress
from abound.core.model.entry_application import Unit
from abound.core.model.live_model import LiveModel
from benchmarks.sets import read_file

WARM = 1000
"""Instances after the first version before sums over all of them are compared: a difference of few says nothing."""

HELD_OUT, MOST_HELD_OUT = 0.1, 5000
"""What a job judges a version on, by default."""

SIDES = ("live", "batch", "blend")


def fit(method: str, given: dict[str, Any], vectors: list[bytes], rows: list[DatasetInstance]) -> FittedMethod:
    """A batch method on the past."""
    gathering = MatrixBuilder((1, 2))
    for vector, row in zip(vectors, rows, strict=True):
        gathering.add(vector, row.labels, text=row.text is not None)
    params = registry.params_of(method, given)
    return fitting.fit(method, gathering.matrices(), params, np.random.default_rng(0), no_progress)


def listed(made: FittedMethod, vectors: list[bytes]) -> list[LabelRanking]:
    """The best of a version for each vector."""
    found = made.rank_vectors(vectors, DEPTH)
    starts = found.starts.tolist()
    return [
        LabelRanking([made.labels[i] for i in found.ids[start:end].tolist()], found.scores[start:end])
        for start, end in itertools.pairwise(starts)
    ]


def advantage(
    method: str, given: dict[str, Any], vectors: list[bytes], rows: list[DatasetInstance], live: LiveModel
) -> float:
    """By how much the method, fitted without the newest, has a greater MRR on these than the index had."""
    n = min(int(len(rows) * HELD_OUT), MOST_HELD_OUT)
    judged = fit(method, given, vectors[:-n], rows[:-n])
    ranks = [
        rank_in(one.labels, set(row.labels)) for one, row in zip(listed(judged, vectors[-n:]), rows[-n:], strict=True)
    ]
    mine = live.prequential.newest(n)["MRR"]
    return float(np.mean([1.0 / rank if rank else 0.0 for rank in ranks])) - mine


def rank_in(labels: Any, true: set[str]) -> int:
    """The place of the first true label, 0 without one."""
    return next((place for place, label in enumerate(labels, 1) if label in true), 0)


def measure(rows: list[DatasetInstance], options: argparse.Namespace) -> dict[str, Any]:
    """Ranks of all three, from the first version on."""
    vectorizer = Vectorizer(ModelConfig(update=options.update), DATASET_LIMITS)
    vectors = [vectorizer.vectorize(row.features, row.text) for row in rows]
    live = LiveModel(ModelConfig(update=options.update), (1, 2))
    given = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
    points = sorted(round(share * len(rows)) for share in options.refit)
    ranks: list[tuple[int, int, int]] = []
    weights: list[tuple[int, float]] = []
    weighing, used, seconds = BlendLearner(), (0.5, 0.5), {"fit": 0.0, "rank": 0.0, "blend": 0.0}
    batch: list[LabelRanking] = []
    since, weighed, first, advantages = 0, 0, points[0], []
    for i, row in enumerate(rows):
        if i in points:
            clock = time.process_time()
            made = fit(options.method, given, vectors[:i], rows[:i])
            seconds["fit"] += time.process_time() - clock
            clock = time.process_time()
            end = next((point for point in points if point > i), len(rows))
            batch, since = listed(made, vectors[i:end]), i
            seconds["rank"] += time.process_time() - clock
            advantages.append(advantage(options.method, given, vectors[:i], rows[:i], live))
            weighing.start_version(advantages[-1])
            used, weighed = weighing.weights, 0
            weights.append((i, used[1]))
        true = set(row.labels)
        if batch:
            clock = time.process_time()
            best = live.rank(vectors[i], DEPTH)
            index = LabelRanking([live.label(class_id) for class_id in best.class_ids.tolist()], best.scores)
            other = batch[i - since]
            rank = int(ranks_under(index, other, np.array([used]), true)[0])
            weighing.learn(index, other, true)
            ranks.append((rank_in(index.labels, true), rank_in(other.labels, true), rank))
            if weighing.should_publish(weighed, options.every):
                used, weighed = weighing.weights, weighing.since
                weights.append((i + 1, used[1]))
            seconds["blend"] += time.process_time() - clock
        live.begin(vectors[i] + pack_labels(row.labels, DATASET_LIMITS), 1, [Unit(1)]).finish()
    said = {"weights": weights, "cpu_seconds": seconds, "refits": points, "advantages": advantages}
    return told(np.array(ranks), first, options) | said


def told(ranks: npt.NDArray[np.int64], first: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measures over everything and over stretches."""
    hits = (ranks == 1).astype(float)
    reciprocal = np.where(ranks > 0, 1.0 / np.maximum(ranks, 1), 0.0)
    result: dict[str, Any] = {"n": len(ranks), "first": first, "window": options.window}
    starts = range(0, len(ranks) - options.window + 1, options.window)
    for name, values in (("R@1", hits), ("MRR", reciprocal)):
        over_all = np.cumsum(values, axis=0) / np.arange(1, len(values) + 1)[:, None]
        windows = np.array([values[start : start + options.window].mean(axis=0) for start in starts])
        behind_all = (over_all[:, 2] - over_all[:, :2].max(axis=1))[WARM:]
        behind = windows[:, 2] - windows[:, :2].max(axis=1)
        worst = int(np.argmin(behind))
        stretch = values[worst * options.window : (worst + 1) * options.window]
        paired = stretch[:, 2] - stretch[:, int(np.argmax(windows[worst, :2]))]
        error = float(paired.std() / np.sqrt(len(paired)))
        result[name] = {
            "all": dict(zip(SIDES, over_all[-1].round(4).tolist(), strict=True)),
            "windows": {side: windows[:, i].round(4).tolist() for i, side in enumerate(SIDES)},
            "blend_minus_better": {
                "over_all_least": round(float(behind_all.min()), 4),
                "windows_least": round(float(behind.min()), 4),
                "windows_least_in_errors": round(float(behind.min()) / error, 1) if error else 0.0,
                "windows_mean": round(float(behind.mean()), 4),
                "windows_below": int((behind < 0).sum()),
                "windows": len(behind),
            },
        }
    return result


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """R@1 of each stretch, live, batch and blend, a panel a result."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "abound"
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(results), figsize=(5 * len(results), 3.4), sharey=True, squeeze=False)
    for panel, result in zip(panels[0], results, strict=True):
        at = result["first"] + result["window"] * np.arange(1, len(result["R@1"]["windows"]["live"]) + 1)
        for side, style in zip(SIDES, ("C0-", "C1-", "k--"), strict=True):
            panel.plot(at, result["R@1"]["windows"][side], style, label=side, linewidth=1.4)
        for point in result["refits"]:
            panel.axvline(point, color="0.8", linewidth=0.8, zorder=0)
        panel.set_title(f"index: {result['update']}, version: {result['method']}", fontsize=10)
        panel.set_xlabel("commits")
    panels[0][0].set_ylabel(f"R@1 of {results[0]['window']:,} commits")
    panels[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blend", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data", type=Path, default=os.environ.get("ABOUND_DATA"), help="folder of the data sets")
    parser.add_argument(
        "--update", choices=("fsu", "sls"), action="append", help="of the index; several: one after another"
    )
    parser.add_argument("--set-name", default="commits-git", help="a folder of data, whose order is taken for time")
    parser.add_argument("--method", default="swnn")
    parser.add_argument("--set", action="append", default=[], help="a parameter of the method, its value as JSON")
    parser.add_argument("--refit", type=float, action="append", help="shares of the stream at which it is fitted anew")
    parser.add_argument("--limit", type=int, help="only so many of the newest commits")
    parser.add_argument("--window", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250, help="instances between two changes of the weights")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    options.refit = options.refit or [0.25, 0.5, 0.75]
    if options.data is None:
        parser.error("say where the data sets are, by --data or ABOUND_DATA")
    folder = options.data if isinstance(options.data, Path) else Path(options.data)
    files = [next((folder / options.set_name).glob(f"{part}.*")) for part in ("train", "test")]
    rows = [row for file in files for row in read_file(str(file)) if row.labels]
    rows = rows[-options.limit :] if options.limit else rows
    results = []
    for update in options.update or ["fsu", "sls"]:
        options.update = update
        result = {"update": update, "method": options.method, **measure(rows, options)}
        results.append(result)
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        print(f"index {update}, version {options.method}, {result['n']:,} instances since the first version")
        for name in ("R@1", "MRR"):
            print(f"  {name} {result[name]['all']}  blend - better: {result[name]['blend_minus_better']}")
        print(f"  CPU seconds: { ({name: round(value, 1) for name, value in result['cpu_seconds'].items()}) }")
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
