"""The gate on a stream whose concepts change half-way: ``python -m benchmarks.gate [--json] [--data DIR]``.

Real instances in random order. The index of a replica learns all of them. A batch method is fitted on the first part
and entered as a challenger; then comes more of the same, and half-way the labels are permuted: what was called a is
called b from there on, so all that the version knows is wrong, and the index must learn anew. Everything is the
service's own: store, replica, follower, activation by events. Told are the decisions, how many instances each took, how
well the users were served, and how they would have been with the index or the version alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from abound.core.config import ModelConfig
from abound.core.instances.record import pack_labels
from abound.core.instances.vectorizer import Vectorizer
from abound.core.limits import Limits
from abound.core.methods import fitted as fitting
from abound.core.methods import registry
from abound.core.methods.training.gather import MatrixBuilder
from abound.core.methods.training.progress import no_progress
from abound.core.model.active_version import LIVE
from abound.core.promotion_rule import GateParams
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.log.append_group import LearnDraft
from abound.service.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.service.metrics import configure_logging
from abound.service.replica.replica import Replica
from abound.service.store.client import Store
from abound.service.store.lease import acquire
from abound.service.versions import repository as versions
from abound.service.versions.card import Card
from abound.service.versions.promotion import challengers
from abound.service.versions.promotion.contest import ContestFollower
from abound.service.versions.promotion.standings import PURPOSE
from benchmarks.sets import read_file
from tests.support.valkey import Server

SEED = 0
AT_ONCE = 50
WINDOW = 500

Row = tuple[bytes, tuple[str, ...]]


def batches(rows: list[Row]) -> list[list[Row]]:
    """The rows, some at once."""
    return [rows[first : first + AT_ONCE] for first in range(0, len(rows), AT_ONCE)]


def permuted(rows: list[Row], rng: random.Random) -> list[Row]:
    """The same instances with the labels' names moved on by a random cycle: none keeps its own."""
    names = sorted({label for _, labels in rows for label in labels})
    rng.shuffle(names)
    other = dict(zip(names, [*names[1:], names[0]], strict=True))
    return [(vector, tuple(other[label] for label in labels)) for vector, labels in rows]


async def fitted(rows: list[Row], method: str, artifacts: ArtifactStore, living: CatalogModel, at: Offset) -> Card:
    """A version of what was learned so far."""
    gathering = MatrixBuilder((1, 2))
    for vector, labels in rows:
        gathering.add(vector, labels, text=True)
    matrices = gathering.matrices()
    made = fitting.fit(method, matrices, registry.params_of(method, {}), np.random.default_rng(SEED), no_progress)
    counts = (len(rows), len(made.features), len(made.labels), matrices.X.nnz, matrices.Y.nnz)
    sizes = dict(zip(("instances", "features", "classes", "nnz", "assertions"), map(int, counts), strict=True))
    return await versions.write(
        artifacts,
        living.keys,
        made,
        seed=SEED,
        data="history",
        data_range={"after": None, "until": str(at)},
        offset=str(at),
        created=time.time(),
        metrics={},
        sizes=sizes,
    )


async def teach(replica: Replica, rows: list[Row]) -> None:
    """Learn instances."""
    await replica.learn(
        DEFAULT_MODEL, [LearnDraft(vector + pack_labels(labels, Limits()), 1, None, b"") for vector, labels in rows]
    )


async def follow(replica: Replica, follower: ContestFollower) -> None:
    """Score what came, and what a decision appended."""
    await follower.follow_log()
    await follower.follow_log()
    for one in follower.standing.decisions[-1:]:
        if one.outcome.startswith("failed"):
            raise SystemExit(one.outcome)


async def run(rows: list[Row], options: argparse.Namespace) -> dict[str, Any]:
    """One stream."""
    first, second = len(rows) // 4, len(rows) * 5 // 8
    stream = [*rows[:second], *permuted(rows[second:], random.Random(SEED))]
    server = Server()
    figures: dict[str, Any] = {"instances": len(rows), "fitted_on": first, "change_at": second, "windows": []}
    with tempfile.TemporaryDirectory() as folder:
        store, artifacts = Store(server.url), ArtifactStore(folder)
        replica = Replica(Store(server.url), artifacts=ArtifactStore(folder))
        await replica.start()
        await artifacts.join(store)
        living = (await read_catalog(store)).get(DEFAULT_MODEL)
        if living is None:
            raise SystemExit("there is no model")
        for part in batches(stream[:first]):
            await teach(replica, part)
        model = replica.model(DEFAULT_MODEL)
        card = await fitted(stream[:first], options.method, artifacts, living, model.offset)
        await challengers.enter(store, living.keys, card.id, "the benchmark")
        async with acquire(store, living.keys, purpose=PURPOSE) as lease:
            follower = ContestFollower(store, artifacts, living, lease, gate=GateParams())
            await follower.open()
            hits = {"live": 0, "version": 0, "served": 0}
            before = {LIVE: 0, card.id: 0}
            for place, part in enumerate(batches(stream[first:]), 1):
                served = follower.standing.contest.served
                await teach(replica, part)
                await follow(replica, follower)
                scores = follower.standing.contest.scores
                new = {name: scores[name].all.hits_1 - before[name] for name in before}
                before = {name: scores[name].all.hits_1 for name in before}
                for name, n in (("live", new[LIVE]), ("version", new[card.id]), ("served", new[served])):
                    hits[name] += n
                if place * AT_ONCE % WINDOW == 0:
                    at = first + place * AT_ONCE
                    figures["windows"].append({"until": at, **{name: n / WINDOW for name, n in hits.items()}})
                    hits = dict.fromkeys(hits, 0)
            figures["decisions"] = [
                {
                    "kind": one.decision.kind,
                    "n": one.decision.n,
                    "difference": round(one.decision.difference, 4),
                    "interval": [round(one.decision.low, 4), round(one.decision.high, 4)],
                    "evidence": round(one.decision.evidence, 1),
                    "outcome": one.outcome,
                }
                for one in follower.standing.decisions
            ]
            figures["measures"] = {
                "live" if name == LIVE else "version" if name == card.id else name: one.all.measures()
                for name, one in follower.standing.contest.scores.items()
            }
        await replica.stop()
        await store.close()
    server.close()
    for name in ("live", "version", "served"):
        values = [window[name] for window in figures["windows"]]
        half = [window[name] for window in figures["windows"] if window["until"] <= second]
        figures[f"R@1 {name}"] = {
            "before": round(float(np.mean(half)), 4),
            "after": round(float(np.mean(values[len(half) :])), 4),
            "all": round(float(np.mean(values)), 4),
        }
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data", type=Path, default=os.environ.get("ABOUND_DATA"), help="folder of the data sets")
    parser.add_argument("--set", default="clinc150", help="a data set of JSON lines")
    parser.add_argument("--method", default="one_vs_rest")
    options = parser.parse_args()
    if options.data is None:
        parser.error("say where the data sets are, by --data or ABOUND_DATA")
    configure_logging("error", "text")
    folder = Path(options.data) / options.set
    found = [row for part in ("train", "test") for row in read_file(str(folder / f"{part}.jsonl.gz")) if row.labels]
    random.Random(SEED).shuffle(found)
    vectorize = Vectorizer(ModelConfig(), Limits()).vectorize
    rows = [(vectorize(row.features, row.text), tuple(row.labels)) for row in found]
    figures = asyncio.run(run(rows, options))
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name != "windows":
            print(f"{name}: {value}")
    for window in figures["windows"]:
        print("  ".join(f"{name} {value}" for name, value in window.items()))


if __name__ == "__main__":
    main()
