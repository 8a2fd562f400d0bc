"""What an answer by a version costs, in process: one after the other, many at once, in batches; the index beside it.

::

    python -m benchmarks.by_version [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from abound.core.config import ModelConfig
from abound.core.instances.record import pack_labels
from abound.core.methods import fitted as fitting
from abound.core.methods import registry
from abound.core.methods.training.gather import MatrixBuilder
from abound.core.methods.training.progress import no_progress
from abound.core.model.active_version import LIVE
from abound.core.model.entry_application import Unit
from abound.core.model.live_model import warmup
from abound.core.types import Offset
from abound.service.api.routes.classify import Classify
from abound.service.model.position import Position
from abound.service.model.replicated_model import ReplicatedModel, new_secret
from abound.service.replica.loaded_versions import ServingParams
from abound.service.replica.predictions import RememberParams
from abound.service.replica.ranking_pool import Rankers
from abound.service.settings import Settings
from abound.service.store.keys import ModelKeys
from abound.service.versions.repository import LoadedVersion

N_LEARNED, N_QUICKLY, N_CLASSES, N_FEATURES = 20_000, 500, 2_000, 5_000
N_ASKED, AT_ONCE = 500, 50
VERSION = "0123456789abcdef"

Figures = dict[str, dict[str, float]]


def taught(n: int) -> tuple[ReplicatedModel, MatrixBuilder]:
    """A model that has learned ``n`` instances of eight features, and these again for batch methods."""
    rng = random.Random(3)
    model = ReplicatedModel(ModelKeys("default", "1-0"), ModelConfig())
    live, gathering = model.live, MatrixBuilder(new_secret())
    for _ in range(n):
        label = rng.randrange(N_CLASSES)
        features = {f"w{(label * 7 + rng.randrange(30)) % N_FEATURES}": 1.0 for _ in range(8)}
        vector = live.vectorizer.vectorize(json.dumps(features).encode(), None)
        live.begin(vector + pack_labels([f"label {label}"], live.limits), 1, [Unit(1)]).step(1)
        gathering.add(vector, [f"label {label}"])
    model.position = Position(Offset(5, 0, 0), b"", 1, 1)
    model.versions, model.ready = {}, True
    return model, gathering


def classify_of(model: ReplicatedModel, loaded: Any) -> Classify:
    """The route's work over a model, with one version loaded."""
    replica: Any = SimpleNamespace(
        model=lambda name: model, params=SimpleNamespace(log=SimpleNamespace(request_bytes=2**24))
    )
    versions: Any = SimpleNamespace(get_loaded=lambda of, version: loaded)
    rates: Any = SimpleNamespace(limits=lambda grant: False)
    return Classify(replica, Settings(), RememberParams(), rates, Rankers(versions, ServingParams()))


async def measure(work: Classify, said: dict[str, Any]) -> Figures:
    """Microseconds of CPU, and of the clock, an instance, by the way of asking."""
    rng = random.Random(4)
    asked = [{"features": {f"w{rng.randrange(N_FEATURES)}": 1.0 for _ in range(8)}} for _ in range(N_ASKED)]
    bodies = [json.dumps(one | said).encode() for one in asked]

    async def one_by_one() -> None:
        for body in bodies:
            await work.answer("default", body, {}, None)

    async def at_once() -> None:
        for first in range(0, N_ASKED, AT_ONCE):
            await asyncio.gather(*(work.answer("default", body, {}, None) for body in bodies[first : first + AT_ONCE]))

    async def batch() -> None:
        await work.answer("default", json.dumps({"instances": asked} | said).encode(), {}, None)

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "one by one": one_by_one,
        f"{AT_ONCE} at once": at_once,
        f"a batch of {N_ASKED}": batch,
    }
    told = {}
    for way, ask in ways.items():
        await ask()
        cpu, clock = time.process_time(), time.perf_counter()
        await ask()
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        told[way] = {"cpu_us": cpu / N_ASKED * 1e6, "clock_us": clock / N_ASKED * 1e6}
    return told


async def run(n: int) -> dict[str, Figures]:
    """Measure the index, and versions of two methods."""
    warmup()
    model, gathering = taught(n)
    data = gathering.matrices()
    told = {LIVE: await measure(classify_of(model, None), {"version": LIVE})}
    for method in ("ind", "swnn"):
        params = registry.params_of(method, {})
        fitted = fitting.fit(method, data, params, np.random.default_rng(1), no_progress)
        card: Any = SimpleNamespace(id=VERSION, digest="digest", n_bytes=0)
        model.live.serving = model.live.serving.after_activation(method, VERSION, "digest", Offset(4, 0, 0))
        work = classify_of(model, LoadedVersion(card, fitted))
        told[method] = await measure(work, {})
    return told


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_version", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a model that has learned little: to see that it runs")
    options = parser.parse_args()
    told = asyncio.run(run(N_QUICKLY if options.quick else N_LEARNED))
    if options.json:
        print(json.dumps(told))
        return
    for name, ways in told.items():
        for way, took in ways.items():
            print(f"{name:12} {way:16} {took['cpu_us']:6.0f} us CPU {took['clock_us']:6.0f} us")


if __name__ == "__main__":
    main()
