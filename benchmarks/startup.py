"""How soon a replica is ready, and how fast it replays: ``python -m benchmarks.startup [--json]``.

Synthetic streams (``streams.py``) are put into the log of a real store, a snapshot of the index that they make is
written, and `abound serve` is started on that store: seconds from exec to ready. Then more events of 26 features are
put behind the snapshot, and a replica in this process loads and replays: events a second, and the seconds of each
stage. Kernels come from the cache: a start before the measured ones sees to that. CPU seconds stand beside seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from abound.history.replay import compact
from abound.log.catalog import CATALOG_KEY, DEFAULT_MODEL, CatalogModel, read_catalog
from abound.log.events import APPLY_VERSION, CatalogEntry, Entry, LearnEvent, ModelCreated, encode
from abound.metrics import configure_logging
from abound.processes import kernel_compiler
from abound.replica.replica import Replica
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store, StoreParams
from abound_core.instances.record import record_ends
from abound_core.model.entry_application import Unit
from benchmarks.serving import Serving
from benchmarks.stores import StoreServer
from benchmarks.streams import SHAPES, Shape, draw, records

SIZES: dict[str, Shape] = {
    "1M": dataclasses.replace(SHAPES["ads"], n_instances=320_000),
    "10M": dataclasses.replace(SHAPES["sparse"], n_instances=440_000),
}
"""Streams whose index has about so many connections."""

ENTRY_EVENTS = 1000
STARTS, QUICK_STARTS = 3, 1
QUICK_PART = 50
"""By how much the streams are smaller with ``--quick``."""
PATIENT = StoreParams(reply_seconds=60.0)


async def create(store: Store) -> CatalogModel:
    """The default model in an empty store."""
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, ModelCreated(DEFAULT_MODEL, {})))
    await store.client.xadd(CATALOG_KEY, {"e": payload, "c": checksum})
    living = (await read_catalog(store)).get(DEFAULT_MODEL)
    assert living is not None
    return living


async def fill(store: Store, living: CatalogModel, payload: bytes, n: int) -> None:
    """Put records into the log, a thousand in an entry, as busy replicas do."""
    ends = record_ends(payload, n)
    for number, first in enumerate(range(0, n, ENTRY_EVENTS)):
        last = min(n, first + ENTRY_EVENTS)
        learn = LearnEvent(payload[ends[first] : ends[last]], last - first, [Unit(last - first)])
        packed, checksum = encode(Entry(APPLY_VERSION, b"benchmark", number, learn))
        await store.client.xadd(living.keys.log, {"e": packed, "c": checksum})


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """Of this process, or of its children that have ended."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def start_once(url: str, directory: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Start a service on a store and stop it: seconds from exec to ready, CPU seconds; and what it has."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ABOUND_")}
    environment["ABOUND_REDIS_URL"] = url
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    with Serving(directory / "data", "--no-worker", output=directory / "output", environment=environment) as serving:
        ready = serving.until_ready()
        began = time.perf_counter()
        httpx.post(f"{serving.url}/classify", json={"features": {"feature0000001": 1}}, timeout=30).raise_for_status()
        first = time.perf_counter() - began
        stats = httpx.get(f"{serving.url}/models/default/stats", timeout=30).raise_for_status().json()
        serving.stop()
    cpu = cpu_seconds(resource.RUSAGE_CHILDREN) - before
    return {"ready": ready, "first_classify": first, "cpu": cpu}, stats


async def replay(url: str, n: int) -> dict[str, float]:
    """Load and replay in this process: seconds of each stage, and events of the log's tail a second."""
    stages: dict[str, tuple[float, float]] = {}

    def tell(stage: str, done: float) -> None:
        stages.setdefault(stage.split(" ")[0], (time.perf_counter(), cpu_seconds()))

    kernel_compiler.load()
    replica = Replica(Store(url, PATIENT))
    await replica.start(tell)
    learned = replica.model(DEFAULT_MODEL).live.n_learned
    await replica.stop()
    assert learned >= n
    (loading, loading_cpu), (replaying, replaying_cpu), (ready, ready_cpu) = (
        stages[name] for name in ("loading", "replaying", "opening")
    )
    return {
        "load_seconds": replaying - loading,
        "load_cpu_seconds": replaying_cpu - loading_cpu,
        "replay_seconds": ready - replaying,
        "replay_cpu_seconds": ready_cpu - replaying_cpu,
        "replayed_per_second": n / (ready - replaying),
        "replayed_per_cpu_second": n / (ready_cpu - replaying_cpu),
    }


def measure(shape: Shape, n_replayed: int, n_starts: int) -> dict[str, Any]:
    """All figures for a snapshot of what a stream makes."""
    with tempfile.TemporaryDirectory(prefix="abound-bench-") as temporary:
        directory = Path(temporary)
        server = StoreServer(directory / "store", appendfsync="everysec")
        server.launch()
        server.until_answering()
        try:
            start_once(server.url, directory)
            with server.client() as client:
                client.flushall()
            bytes_ = asyncio.run(_prepare(server.url, shape))
            starts: list[dict[str, float]] = []
            stats: dict[str, Any] = {}
            for _ in range(n_starts):
                figures, stats = start_once(server.url, directory)
                starts.append(figures)
            asyncio.run(_append(server.url, n_replayed))
            replayed = asyncio.run(replay(server.url, n_replayed))
        finally:
            server.kill()
    return {
        "connections": stats["connections"],
        "snapshot_bytes": bytes_,
        "ready_seconds": round(statistics.median(one["ready"] for one in starts), 2),
        "ready_seconds_max": round(max(one["ready"] for one in starts), 2),
        "start_and_stop_cpu_seconds": round(statistics.median(one["cpu"] for one in starts), 2),
        "first_classify_ms": round(1000 * max(one["first_classify"] for one in starts), 2),
        **{name: round(value, 0 if "per" in name else 2) for name, value in replayed.items()},
    }


async def _prepare(url: str, shape: Shape) -> int:
    """Fill a store with a stream and write a snapshot of it; its bytes."""
    store = Store(url, PATIENT)
    living = await create(store)
    stream = draw(shape, 1)
    await fill(store, living, records(stream, stream.n_instances), stream.n_instances)
    manifest = await compact(store, living, SnapshotParams())
    await store.close()
    return manifest.size


async def _append(url: str, n: int) -> None:
    """Put events of 26 features behind the snapshot."""
    store = Store(url, PATIENT)
    living = (await read_catalog(store)).get(DEFAULT_MODEL)
    assert living is not None
    stream = draw(dataclasses.replace(SHAPES["ads"], n_instances=n), 2)
    await fill(store, living, records(stream, n), n)
    await store.close()


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--replayed", type=int, default=300_000, help="events behind the snapshot")
    parser.add_argument("--quick", action="store_true", help="small streams, one start: to see that it runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "text")
    part, n_starts = (QUICK_PART, QUICK_STARTS) if options.quick else (1, STARTS)
    shapes = {
        size: dataclasses.replace(SIZES[size], n_instances=SIZES[size].n_instances // part) for size in options.sizes
    }
    figures = {size: measure(shape, options.replayed // part, n_starts) for size, shape in shapes.items()}
    if options.json:
        print(json.dumps(figures, indent=2))
        return 0
    for size, row in figures.items():
        print(f"a snapshot of {size}")
        for name, value in row.items():
            print(f"  {name:26} {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
