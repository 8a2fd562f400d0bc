"""Durable appends beside the store's own: ``python -m benchmarks.durability [--json]``.

For 1, 32 and 256 clients at once, each with one event of 26 features on its way at a time, at the levels ``log`` and
``fsync``; all of it in turn, in one run, over one connection of the same kind:

    xadd       XADD alone: each client sends its event as an entry of its own and awaits its own reply
    bulk       XADD alone: one client sends as many commands in one go, and counts replies; nobody awaits one
    learn      a replica in this process: acknowledged when durable; a round lasts until all of it is applied, too
    applied    acknowledged when durable and applied, as ``/learn`` does by default
    http       a service, with wrk, if it is there

A level that the store cannot confirm is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from abound.core.instances.record import record_ends
from abound.core.model.entry_application import Unit
from abound.core.types import START
from abound.service.log.append_group import LearnDraft
from abound.service.log.catalog import DEFAULT_MODEL
from abound.service.log.events import APPLY_VERSION, Entry, LearnEvent, encode
from abound.service.log.stream import xadd
from abound.service.metrics import configure_logging
from abound.service.replica.replica import Replica, ReplicaParams
from abound.service.store.client import Store
from abound.service.store.raw_connection import StoreConnection
from benchmarks.http import instances, service, wrk
from benchmarks.stores import StoreServer
from benchmarks.streams import SHAPES, draw, records

CLIENTS = (1, 32, 256)
LEVELS = ("log", "fsync")
POLICIES = ("always", "everysec")
POOL = 2000

Round = Callable[[float], Awaitable[float]]
"""Runs for so many seconds; events a second."""


def drafts() -> list[LearnDraft]:
    """Events of 26 features on average, each a request."""
    stream = draw(dataclasses.replace(SHAPES["ads"], n_instances=POOL), 1)
    payload = records(stream, POOL)
    ends = record_ends(payload, POOL)
    return [LearnDraft(payload[ends[i] : ends[i + 1]], 1) for i in range(POOL)]


def commands(pool: list[LearnDraft], key: bytes) -> list[bytes]:
    """The same events as packed XADD commands, an entry each."""
    made = []
    for number, draft in enumerate(pool):
        entry = Entry(APPLY_VERSION, b"benchmar", number, LearnEvent(draft.records, 1, [Unit(1)]))
        made.append(xadd(key, *encode(entry)))
    return made


def xadd_alone(connection: StoreConnection, made: list[bytes], clients: int) -> Round:
    """As many clients, each appending one event after the other: what ``learned`` does, with the store alone."""

    async def run(seconds: float) -> float:
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        counts = [0] * clients

        async def client(number: int) -> None:
            at = number * 7919
            while time.perf_counter() - began < seconds:
                answered: asyncio.Future[object] = loop.create_future()
                connection.send(made[at % POOL], answered.set_result, 10.0)
                assert type(await answered) is bytes
                at += 1
                counts[number] += 1

        await asyncio.gather(*(client(number) for number in range(clients)))
        return sum(counts) / (time.perf_counter() - began)

    return run


def xadd_in_bulk(connection: StoreConnection, made: list[bytes], clients: int) -> Round:
    """Pipelines of as many XADD as there are clients, each sent when the one before it is answered."""

    async def run(seconds: float) -> float:
        loop = asyncio.get_running_loop()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            batch = [made[(done + i) % POOL] for i in range(clients)]
            left = len(batch)
            answered: asyncio.Future[None] = loop.create_future()

            def on_reply(reply: object, answered: asyncio.Future[None] = answered) -> None:
                nonlocal left
                if isinstance(reply, Exception):
                    raise reply
                left -= 1
                if left == 0:
                    answered.set_result(None)

            for command in batch:
                connection.send(command, on_reply, 10.0)
            await answered
            done += clients
        return done / (time.perf_counter() - began)

    return run


def learned(replica: Replica, pool: list[LearnDraft], clients: int, level: str, wait: str) -> Round:
    """As many clients, each learning one event after the other.

    With `wait=log` clients can run ahead of the replica. The time to apply the rest counts, so that a backlog does not
    look like speed.
    """

    async def run(seconds: float) -> float:
        began = time.perf_counter()
        counts, last = [0] * clients, [START] * clients

        async def client(number: int) -> None:
            at = number * 7919
            while time.perf_counter() - began < seconds:
                [one] = await replica.learn(DEFAULT_MODEL, [pool[at % POOL]], wait)  # type: ignore[arg-type]
                assert one.durability == level
                at += 1
                counts[number] += 1
                last[number] = one.offset

        await asyncio.gather(*(client(number) for number in range(clients)))
        await replica.model(DEFAULT_MODEL).wait_for(max(last))
        return sum(counts) / (time.perf_counter() - began)

    return run


async def beside(policy: str, directory: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """All figures in this process for one appendfsync policy of the store."""
    server = StoreServer(directory / policy, appendfsync=policy)
    server.launch()
    server.until_answering()
    store = Store(server.url)
    connection = await store.open_connection("benchmark")
    pool, key = drafts(), b"benchmark:log"
    made = commands(pool, key)
    gc.collect()
    gc.freeze()  # as the service does when it is ready
    figures: dict[str, Any] = {}
    info = await store.server_info()
    replicas = {
        level: Replica(Store(server.url), ReplicaParams(durability=level)) for level in LEVELS if info.reachable(level)
    }
    for replica in replicas.values():
        await replica.start()
    try:
        for clients in CLIENTS:
            for level, replica in replicas.items():
                kinds: dict[str, Round] = {
                    "xadd": xadd_alone(connection, made, clients),
                    "bulk": xadd_in_bulk(connection, made, clients),
                    "learn": learned(replica, pool, clients, level, "log"),
                    "applied": learned(replica, pool, clients, level, "applied"),
                }
                rates: dict[str, list[float]] = {name: [] for name in kinds}
                for _ in range(rounds):
                    for name, run in kinds.items():
                        rates[name].append(await run(seconds))
                    await store.client.delete(key)
                row = {name: round(statistics.median(values)) for name, values in rates.items()}
                ratios = {
                    f"{name}_to_{other}": round(
                        statistics.median(a / b for a, b in zip(rates[name], rates[other], strict=True)), 2
                    )
                    for name, other in (("learn", "xadd"), ("applied", "xadd"), ("learn", "bulk"))
                }
                figures[f"{level}, {clients}"] = row | ratios
    finally:
        connection.close()
        for replica in replicas.values():
            await replica.stop()
        await store.close()
        server.kill()
    return figures


def over_http(seconds: float) -> dict[str, Any]:
    """Learned over HTTP a second, with as many connections; the embedded store writes every command to disk."""
    figures = {}
    made = instances(POOL, 29, 300_000, 12_600, 1)
    with tempfile.TemporaryDirectory(prefix="abound-bench-") as directory, service(f"{directory}/data") as url:
        bodies = Path(directory, "bodies.ndjson")
        bodies.write_text("\n".join(map(json.dumps, made)) + "\n")
        for clients in CLIENTS:
            run = wrk(url, "/learn", bodies, seconds, clients)
            assert run["errors"] == 0, run
            figures[f"log, {clients}"] = {"learn": round(run["rps"]), "p99_ms": round(run["p99_ms"], 2)}
    return figures


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 0.2, 1
    configure_logging("error", "text")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="abound-bench-") as directory:
        for policy in POLICIES:
            figures[policy] = uvloop.run(beside(policy, Path(directory), options.seconds, options.rounds))
    if shutil.which("wrk") is not None:
        figures["http"] = over_http(max(1.0, round(2 * options.seconds)))
    if options.json:
        print(json.dumps(figures, indent=2))
        return 0
    for name, rows in figures.items():
        print(f"\n{name if name == 'http' else f'appendfsync {name}'}")
        for what, row in rows.items():
            print(f"  {what:12} " + "   ".join(f"{key} {value:,}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
