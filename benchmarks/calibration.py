"""What learning probabilities costs: a model that calibrates beside the same one that does not.

    python -m benchmarks.calibration [--json] [--stream ads] [--instances 20000] [--turns 5]

A synthetic stream as records of text keys, learned by both models, slice by slice in turns, then ranked (the best ten)
by both. The best time of each slice counts, in seconds of the processor. For both update rules: instances a second, and
the time of the calibrating model as a multiple of the other's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from abound.core.config import ModelConfig
from abound.core.kernels.model.apply import skip_records
from abound.core.kernels.records.record import vector_end
from abound.core.model.live_model import LiveModel, warmup
from benchmarks.streams import SHAPES, draw, records

SLICES = 40
K = 10


def learn(model: LiveModel, buffer: bytes, at: int, n: int) -> int:
    """Learn ``n`` records from byte ``at`` on; where the next begins."""
    ranks, updated, done = np.zeros(n, np.int32), np.zeros(n, np.bool_), 0
    while done < n:
        at, now = model.apply(buffer, at, ranks[done : done + 32], updated[done : done + 32])
        done += now
    return at


def rank(model: LiveModel, vectors: list[bytes]) -> None:
    """Rank the classes for each, as ``/classify`` does."""
    ask = model.rank_estimated if model.calibration.on else model.rank
    for vector in vectors:
        ask(vector, K)


def compared(update: str, buffer: bytes, n: int, turns: int) -> dict[str, float]:
    """Instances a second without and with calibration, and the ratio of their times."""
    cuts = np.linspace(0, n, SLICES + 1).astype(int).tolist()
    best = {(work, on): np.full(SLICES, np.inf) for work in ("learn", "classify") for on in (False, True)}

    def timed(key: tuple[str, bool], i: int, work: Callable[..., Any], *given: Any) -> Any:
        began = time.thread_time()
        made = work(*given)
        best[key][i] = min(best[key][i], time.thread_time() - began)
        return made

    n_asked = min(100, n // SLICES)
    for _ in range(turns):
        configs = {on: ModelConfig.from_dict({"update": update, "calibrate": on}) for on in (False, True)}
        models = {on: LiveModel(config, (1, 2)) for on, config in configs.items()}
        starts = [0]
        for i, (first, last) in enumerate(itertools.pairwise(cuts)):
            for on, model in models.items():
                end = timed(("learn", on), i, learn, model, buffer, starts[-1], last - first)
            starts.append(end)
        for i, at in enumerate(starts[:-1]):
            vectors = []
            for _ in range(n_asked):
                vectors.append(buffer[at : int(vector_end(buffer, at))])
                at = int(skip_records(buffer, at, 1))
            for on, model in models.items():
                timed(("classify", on), i, rank, model, vectors)
    figures = {}
    for work, count in (("learn", n), ("classify", SLICES * n_asked)):
        without, with_it = (float(best[work, on].sum()) for on in (False, True))
        figures |= {f"{work}_per_s": count / without, f"{work}_calibrating_per_s": count / with_it}
        figures[f"{work}_ratio"] = with_it / without
    return figures


def main() -> None:
    """Measure the stream that was asked for."""
    parser = argparse.ArgumentParser(description="What learning probabilities costs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--stream", choices=list(SHAPES), default="ads", help="the shape of the stream")
    parser.add_argument("--instances", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    warmup()
    stream = draw(replace(SHAPES[options.stream], n_instances=options.instances), seed=1)
    buffer = records(stream, stream.n_instances)
    found = {update: compared(update, buffer, stream.n_instances, options.turns) for update in ("fsu", "sls")}
    if options.json:
        print(json.dumps(found))
        return
    for update, figures in found.items():
        for work in ("learn", "classify"):
            without, with_it = (figures[f"{work}{kind}_per_s"] for kind in ("", "_calibrating"))
            ratio = figures[f"{work}_ratio"]
            print(f"{update} {work:8} {without:9,.0f} /s, calibrating {with_it:9,.0f} /s: {ratio:.2f} x")


if __name__ == "__main__":
    main()
