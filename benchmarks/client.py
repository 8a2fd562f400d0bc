"""Learning through the client beside bare NDJSON requests, in one run: ``python -m benchmarks.client [--json]``.

One replica process alone on core 0; this program and the store share core 1. The bare stream sends bodies that were
made before, one after the other, and only counts the lines of the answers. The clients begin with Python objects: they
encode, cut, send, decode, check and match. Interleaved rounds, a model of its own for each stream of a round. What the
processors spent on an event says more than the rates where others are at work on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from abound.service.client import AsyncClient, AsyncModel, Client, Labelled, Model, Refused
from benchmarks.http import instances, service
from benchmarks.serving import tree

LINES = 1000
"""Lines of a bare request, as many as the client sends."""


def bare(url: str, name: str, made: list[Labelled], bodies: list[bytes]) -> int:
    """Lines answered of bodies that are there already."""
    answered = 0
    headers = {"Content-Type": "application/x-ndjson"}
    with httpx.Client(base_url=url, timeout=60) as http:
        for body in bodies:
            answered += http.post(f"/models/{name}/learn", content=body, headers=headers).content.count(b"\n")
    return answered


def bare_with_keys(url: str, name: str, made: list[Labelled], bodies: list[bytes]) -> int:
    """The same with an idempotency key in each line."""
    prefix = b'{"key":"' + os.urandom(8).hex().encode()
    keyed = []
    for at, body in enumerate(bodies):
        lines = body.splitlines()
        keyed.append(b"".join(b'%b%d-%d",%b\n' % (prefix, at, i, line[1:]) for i, line in enumerate(lines)))
    return bare(url, name, made, keyed)


def by_client(keyed: bool) -> Callable[[str, str, list[Labelled], list[bytes]], int]:
    """Instances learned by ``Model``."""

    def run(url: str, name: str, made: list[Labelled], bodies: list[bytes]) -> int:
        with Client(url) as client:
            answers = Model(client, name).learn_many(made, keyed=keyed)
            return sum(not isinstance(answer, Refused) for answer in answers)

    return run


def by_async_client(keyed: bool) -> Callable[[str, str, list[Labelled], list[bytes]], int]:
    """Instances learned by ``AsyncModel``, with three requests in flight."""

    async def learn(url: str, name: str, made: list[Labelled]) -> int:
        async with AsyncClient(url) as client:
            answers = AsyncModel(client, name).learn_many(made, keyed=keyed)
            return len([1 async for answer in answers if not isinstance(answer, Refused)])

    return lambda url, name, made, bodies: asyncio.run(learn(url, name, made))


WAYS: dict[str, Callable[[str, str, list[Labelled], list[bytes]], int]] = {
    "bare NDJSON": bare,
    "bare NDJSON, keys": bare_with_keys,
    "client, no keys": by_client(False),
    "client, keys (default)": by_client(True),
    "async client, 3 in flight, no keys": by_async_client(False),
    "async client, 3 in flight, keys (default)": by_async_client(True),
}


def replica() -> Path:
    """What the kernel says of the time that the replica's process had, in nanoseconds."""
    pid, *_ = [  # after it, the process that it forks to compile kernels
        pid for pid in tree(os.getpid()) if b"abound.service.api.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return Path(f"/proc/{pid}/schedstat")


def measure(n: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of the rounds for each way.

    Instances a second, their ratio to the bare stream of the same round, and microseconds of the processors that this
    program and the replica have spent on an instance.
    """
    raw = instances(n, 29, 300_000, 12_600, seed=1)
    made = [Labelled(features=one["features"], labels=one["labels"]) for one in raw]  # type: ignore[arg-type]
    lines = [json.dumps(one).encode() + b"\n" for one in raw]
    bodies = [b"".join(lines[at : at + LINES]) for at in range(0, n, LINES)]
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    cpu: dict[str, list[float]] = {name: [] for name in WAYS}
    replica_cpu: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="abound-bench-") as directory, service(f"{directory}/data") as url:
        os.sched_setaffinity(0, {1})
        spent = replica()
        for turn in range(rounds):
            for number, (name, way) in enumerate(WAYS.items()):
                model = f"m{turn}-{number}"
                httpx.put(f"{url}/models/{model}", json={}).raise_for_status()
                before = int(spent.read_text().split()[0])
                began, worked = time.perf_counter(), time.process_time()
                learned = way(url, model, made, bodies)
                rates[name].append(n / (time.perf_counter() - began))
                cpu[name].append((time.process_time() - worked) / n * 1e6)
                replica_cpu[name].append((int(spent.read_text().split()[0]) - before) / n / 1e3)
                if learned != n:
                    raise SystemExit(f"{name}: {learned} of {n} were learned")
                httpx.delete(f"{url}/models/{model}", timeout=60).raise_for_status()
    base = rates["bare NDJSON"]
    return {
        name: {
            "per_second": statistics.median(rates[name]),
            "ratio": statistics.median(r / b for r, b in zip(rates[name], base, strict=True)),
            "cpu_us": statistics.median(cpu[name]),
            "replica_us": statistics.median(replica_cpu[name]),
        }
        for name in WAYS
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--instances", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    figures = measure(options.instances, options.rounds)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, row in figures.items():
        rates = f"{row['per_second']:9.0f}/s   {row['ratio']:.2f} of bare"
        print(f"{name:41s} {rates}   us of a processor: client {row['cpu_us']:.1f}, replica {row['replica_us']:.1f}")


if __name__ == "__main__":
    main()
