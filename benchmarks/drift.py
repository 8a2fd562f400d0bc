"""How the update rules follow a stream that changes: accuracy over time, and how long they take after a change.

    python -m benchmarks.drift [--json] [--plots DIR] [--only STREAM]... [--kept DIR] [--data DIR]

Streams: ``commits-git`` in order of time (classes come and go by themselves), the same ``permuted``: from the half on
every class is called as another one, and ``gutenberg-subjects`` by date (new classes all the time). Each instance is
ranked before it is learned; R@1 is over windows of a fortieth of the stream.

For ``permuted``, **recovery** is how many instances after the change it takes until R@1 over the last 1,000 is again
nine tenths of what the same rule has there without the change (mean over the last quarter); the smaller the better.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.config import ModelConfig
from benchmarks.sets import Rows, data_folder, default_folder, load
from benchmarks.updates import in_order_of_arrival, learned

RULES: dict[str, dict[str, Any]] = {
    "fsu": {},
    "fsu memory 20": {"memory": 20.0},
    "fsu memory 100": {"memory": 100.0},
    "sls": {"update": "sls"},
    "sls eta 1": {"update": "sls", "eta": 1.0},
}
STREAMS = ("commits-git", "permuted", "gutenberg-subjects")
WINDOWS = 40
RECENT = 1000


def stream(name: str, data: Path, kept: Path) -> Rows:
    """The training part and the test part of a set, one after the other, in order of time."""
    task = load("commits-git" if name == "permuted" else name, data, kept)
    parts = (task.train.taken(task.train.labelled), task.test.taken(task.test.labelled))
    starts = [np.concatenate((a, a[-1] + b[1:])) for a, b in ((parts[0].starts, parts[1].starts), _labels(parts))]
    rows = Rows(
        starts[0],
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.values for part in parts]),
        starts[1],
        np.concatenate([part.label_ids for part in parts]),
    )
    rows = in_order_of_arrival(rows, task.test)[0]
    return permuted(rows) if name == "permuted" else rows


def _labels(parts: tuple[Rows, Rows]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return parts[0].label_starts, parts[1].label_starts


def permuted(rows: Rows) -> Rows:
    """From the half on every class is another one, by a fixed permutation."""
    other = np.random.default_rng(0).permutation(int(rows.label_ids.max()) + 1).astype(np.int32)
    half = rows.label_starts[len(rows) // 2]
    return replace(rows, label_ids=np.concatenate((rows.label_ids[:half], other[rows.label_ids[half:]])))


def right(rows: Rows, settings: dict[str, Any]) -> npt.NDArray[np.bool_]:
    """Whether the best label of each instance was true before it was learned."""
    return learned(ModelConfig(**settings), rows)[1] == 1


def recovery(changed: npt.NDArray[np.bool_], plain: npt.NDArray[np.bool_]) -> int | None:
    """Instances from the change on until the last 1,000 are nine tenths of as good as without it; None: never."""
    wanted = 0.9 * plain[len(plain) * 3 // 4 :].mean()
    after = np.cumsum(np.concatenate(([0], changed[len(changed) // 2 :])))
    recent = (after[RECENT:] - after[:-RECENT]) / RECENT
    reached = np.flatnonzero(recent >= wanted)
    return int(reached[0]) + RECENT if len(reached) else None


def plot(name: str, curves: dict[str, list[float]], n: int, folder: Path) -> None:
    """R@1 over time of all rules; needs matplotlib (the extra ``bench``)."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for rule, values in curves.items():
        axes.plot((np.arange(len(values)) + 0.5) * n / len(values), values, label=rule)
    axes.set(title=name, xlabel="instances", ylabel="R@1 before learning")
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / f"drift-{name}.svg", metadata={"Date": None})


def main() -> None:
    """Measure the streams that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a stream and rule")
    parser.add_argument("--plots", type=Path, help="folder to draw R@1 over time into")
    parser.add_argument("--only", action="append", choices=STREAMS)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--kept", type=Path, default=default_folder(), help="folder of arrays")
    options = parser.parse_args()
    plain: dict[str, npt.NDArray[np.bool_]] = {}
    for name in options.only or STREAMS:
        rows, curves = stream(name, data_folder(options.data), options.kept), {}
        for rule, settings in RULES.items():
            hits = right(rows, settings)
            curves[rule] = [float(window.mean()) for window in np.array_split(hits, WINDOWS)]
            told: dict[str, Any] = {"stream": name, "rule": rule, "R@1": float(hits.mean())}
            told |= {"last quarter": float(hits[len(hits) * 3 // 4 :].mean())}
            if name == "commits-git":
                plain[rule] = hits
            if name == "permuted" and rule in plain:
                told["recovery"] = recovery(hits, plain[rule])
            if options.json:
                print(json.dumps(told | {"windows": curves[rule]}), flush=True)
            else:
                rest = f" | {told['recovery']}" if "recovery" in told else ""
                print(f"| {name} | {rule} | {told['R@1']:.3f} | {told['last quarter']:.3f}{rest} |", flush=True)
        if options.plots:
            plot(name, curves, len(rows), options.plots)


if __name__ == "__main__":
    main()
