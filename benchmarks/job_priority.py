"""Latency of requests beside a fit, by the priority of the fit.

    python -m benchmarks.job_priority [--seconds S] [--method NAME]

A service of its own learns the first instances of a data set; a long fit runs as a job while single requests to learn
and to classify are sent, a hundred a second of each. Every ``--turn`` seconds the process of the job is scheduled in
another way, in turns, so that whatever else the machine does hits all of them alike: not at all (stopped), at niceness
0, 10 and 19, and at the policy SCHED_IDLE; each with the niceness of its session, where Linux groups processes by
sessions (``autogroup``). Needs the right to raise a priority (root).

Prints the milliseconds of requests under each, and the share of a processor that the fit had.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from abound.service.client import Client
from abound.service.client.local_service import own_service
from benchmarks.batch_jobs import SEED, Traffic, replica_of, teach
from benchmarks.sets import read_file


def threads_of(pid: int) -> list[int]:
    """The threads of a process."""
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


def scheduled(policy: int, niceness: int, of_session: int = 0) -> Callable[[int], None]:
    """Schedules all threads of a process so, and lets it go on."""

    def change(pid: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/{pid}/autogroup").write_text(str(of_session), encoding="ascii")
        for thread in threads_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        os.kill(pid, signal.SIGCONT)

    return change


WAYS: dict[str, Callable[[int], None]] = {
    "stopped": lambda pid: os.kill(pid, signal.SIGSTOP),
    "nice 0": scheduled(os.SCHED_OTHER, 0),
    "nice 10": scheduled(os.SCHED_OTHER, 10),
    "nice 19": scheduled(os.SCHED_OTHER, 19),
    "nice 10, session 5": scheduled(os.SCHED_OTHER, 10, 5),
    "nice 10, session 10": scheduled(os.SCHED_OTHER, 10, 10),
    "nice 19, session 19": scheduled(os.SCHED_OTHER, 19, 19),
    "idle, session 19": scheduled(os.SCHED_IDLE, 19, 19),
}


TOO_SHORT = "the fit ended before the last turn: take a longer one (--train, --params)"


def processor_seconds(pid: int) -> float:
    """That the process of the fit has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        raise SystemExit(TOO_SHORT) from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def job_process_of(replica: int) -> int:
    """The process of the job that runs: below the one that forks for the worker, beside the replica."""
    (status,) = (line for line in Path(f"/proc/{replica}/status").read_text().splitlines() if line.startswith("PPid"))
    parent = int(status.split()[1])
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            command = (path / "cmdline").read_bytes().split(b"\0")
            above = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"abound.service.worker" in command:
                found[int(path.name)] = above
    (process,) = (pid for pid, above in found.items() if found.get(above) in found and parent in ancestors(pid))
    return process


def ancestors(pid: int) -> list[int]:
    """Of a process."""
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Requests, in turns."""
    folder = Path(os.environ["ABOUND_DATA"], options.set)
    train, test = (str(next(folder.glob(f"{part}.*"))) for part in ("train", "test"))
    with own_service(worker=True) as url, Client(url, timeout=600.0) as client:
        teach(client, "default", islice(read_file(train), options.train))
        client.configure("traffic", {})
        teach(client, "traffic", islice(read_file(train), options.train))
        job = client.submit({"method": options.method, "params": {"seed": SEED, **json.loads(options.params)}})
        while client.job(job["id"])["stage"] is None or client.job(job["id"])["progress"] < 0.02:
            time.sleep(0.1)
        process = job_process_of(replica_of(url))
        some = list(islice(read_file(test), 1000))
        bodies = {"classify": [one.to_json(labels=False) for one in some], "learn": [one.to_json() for one in some]}
        taken: dict[str, dict[str, list[float]]] = {way: {name: [] for name in bodies} for way in WAYS}
        shares: dict[str, list[float]] = {way: [] for way in WAYS}
        traffic = Traffic(url, bodies)
        try:
            began = time.monotonic()
            while time.monotonic() - began < options.seconds:
                for way, change in WAYS.items():
                    change(process)
                    time.sleep(0.2)
                    traffic.take_all()
                    before = processor_seconds(process)
                    time.sleep(options.turn)
                    shares[way].append((processor_seconds(process) - before) / options.turn)
                    for name, times in traffic.take_all().items():
                        taken[way][name] += times
        finally:
            traffic.stop()
        os.kill(process, signal.SIGCONT)
        state = client.job(job["id"])["state"]
        client.cancel(job["id"])
    if state != "running":
        raise SystemExit(TOO_SHORT)
    return {
        way: {
            "share": round(float(np.mean(shares[way])), 2),
            **{
                name: [round(float(value) * 1000, 2) for value in (*np.percentile(times, (50, 99, 99.9)), max(times))]
                for name, times in taken[way].items()
            },
            "n": len(taken[way]["learn"]),
        }
        for way in WAYS
    }


def main() -> int:
    """Measure and print."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job_priority", description=about)
    parser.add_argument("--set", default="wordnet-hypernyms", help="a folder below ABOUND_DATA")
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--method", default="unweighted")
    parser.add_argument("--params", default='{"passes": 1000, "held_out": 0}', help="of the method, as JSON")
    parser.add_argument("--turn", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = measure(options)
    if options.json:
        print(json.dumps({"load": load, "ways": found}))
        return 0
    print(f"load before {load:.1f}; milliseconds: median, p99, p99.9, most")
    for way, told in found.items():
        print(
            f"{way:15} fit {told['share']:.2f} cores  learn {told['learn']}  classify {told['classify']}  n {told['n']}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
