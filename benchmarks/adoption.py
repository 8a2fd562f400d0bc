"""What it costs to adopt an index while a replica answers and learns: ``python -m benchmarks.adoption``.

A model of about so many connections is taught, written as an index, and adopted by a replica in this process that
learns and answers all the while. Printed: seconds of each step, and the longest time for which the event loop did not
come to its turn (nothing is answered then), before and while the index is made ready and adopted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from typing import Any

import numpy as np

from abound.core.config import ModelConfig
from abound.core.instances.record import pack_labels, pack_vector
from abound.core.limits import Limits
from abound.core.model.entry_application import Unit
from abound.core.model.live_model import LiveModel
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.log.append_group import LearnDraft
from abound.service.log.catalog import DEFAULT_MODEL, read_catalog
from abound.service.metrics import configure_logging
from abound.service.rebuild.adoption import AdoptionContext, begin
from abound.service.replica.replica import Replica
from abound.service.snapshots import state_files
from abound.service.store.client import Store
from tests.support.valkey import Server

FEATURES = 26


def records(n: int, n_features: int, n_classes: int, seed: int) -> tuple[bytes, int]:
    """``n`` instances of 26 features, drawn at random."""
    rng = np.random.default_rng(seed)
    value = np.full(FEATURES, 1 / np.sqrt(FEATURES), np.float32)
    parts = []
    for _ in range(n):
        keys = [b"feature-%d" % i for i in np.unique(rng.integers(0, n_features, FEATURES)).tolist()]
        parts.append(
            pack_vector(keys, value[: len(keys)]) + pack_labels([f"class {rng.integers(n_classes)}"], Limits())
        )
    return b"".join(parts), n


def taught(connections: int) -> LiveModel:
    """A model with about so many connections."""
    live = LiveModel(ModelConfig(w_min=0.0), (1, 2))
    seed = 0
    while live.index.n_connections < connections:
        payload, n = records(2000, connections // 8, 5000, seed)
        live.begin(payload, n, [Unit(n)]).finish()
        seed += 1
    return live


class Turns:
    """The longest time between two turns of the event loop, while the context lasts."""

    async def __aenter__(self) -> Turns:
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.0005)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - 0.0005)
            last = now


async def measure(connections: int) -> dict[str, Any]:
    """One adoption."""
    live = await asyncio.to_thread(taught, connections)
    server = Server()
    figures: dict[str, Any] = {"connections": live.index.n_connections}
    with tempfile.TemporaryDirectory() as folder:
        artifacts = ArtifactStore(folder)
        store = Store(server.url)
        replica = Replica(Store(server.url), artifacts=ArtifactStore(folder))
        await replica.start()
        await artifacts.join(store)
        living = (await read_catalog(store)).get(DEFAULT_MODEL)
        assert living is not None
        stop = asyncio.Event()
        learned = 0

        async def learn() -> None:
            nonlocal learned
            payload, _ = records(1, 1000, 50, 9)
            while not stop.is_set():
                await replica.learn(DEFAULT_MODEL, [LearnDraft(payload, 1)])
                learned += 1

        learning = asyncio.create_task(learn())
        async with Turns() as turns:
            await asyncio.sleep(3)
        figures["longest_pause_before_ms"] = round(turns.longest * 1000, 1)
        place = AdoptionContext(store=store, artifacts=artifacts, living=living)
        async with begin(place, "measured") as adoption:
            # Written beforehand, as the process of a job does it: it is not this process that would pause for it.
            writing = time.perf_counter()
            index = await state_files.write(artifacts, living.keys, live, adoption.after, {"method": "measure"})
            figures["write_seconds"] = round(time.perf_counter() - writing, 2)
            figures["index_bytes"] = index.size
            before, began = learned, time.perf_counter()
            async with Turns() as turns:
                at = await adoption.adopt(index, "measured")
                await replica.wait_for(DEFAULT_MODEL, at, 60)
            figures["adopt_seconds"] = round(time.perf_counter() - began, 2)
            figures["learned_meanwhile"] = learned - before
            figures["longest_pause_meanwhile_ms"] = round(turns.longest * 1000, 1)
        stop.set()
        await learning
        figures["halted"] = replica.model(DEFAULT_MODEL).position.adopted != at
        await replica.stop()
        await store.close()
    server.close()
    return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--connections", type=int, default=1_000_000)
    options = parser.parse_args()
    configure_logging("error", "text")
    print(json.dumps(asyncio.run(measure(options.connections))))


if __name__ == "__main__":
    main()
