"""Half an hour at four fifths of what a service can take: ``python -m benchmarks.soak [--json FILE] [--plot FILE]``.

One `abound serve` with its embedded store and worker, so with compaction. First it learns as fast as it can for a
while: the capacity. Then it learns at 80 % of that, event by event in NDJSON requests. It repeats one stream, so the
model stops growing. Meanwhile other clients send single requests and measure their latency.
Every few seconds are noted: the memory of each process, the lag, entries of the log, the age of the newest snapshot,
p50 and p99.

Writes JSON, and a plot with ``--plot FILE`` (needs matplotlib: ``pip install abound[bench]``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import redis

from abound.service.processes.embedded_store import EmbeddedStore
from abound.service.processes.supervisor import REPLICA, WORKER
from benchmarks.http import instances
from benchmarks.serving import Serving

POOL = 60_000
LINES = 500
PART = 0.8
SAMPLE_SECONDS = 5.0
WARM_PART = 0.1
"""The first tenth is left out of what is said to be flat or not: caches, first snapshots."""

PROCESSES = {"abound": "parent", REPLICA: "replica", WORKER: "worker"}
"""Names of processes by the modules that they run."""

SETTINGS = {"ABOUND_HISTORY_KEEP_BYTES": str(2**30), "ABOUND_SNAPSHOTS_EVERY_BYTES": str(64 * 2**20)}


class Teacher(threading.Thread):
    """Learns lines at a rate, or as fast as it can.

    Attributes
    ----------
    learned : int
    failed : list of str
        What was answered instead of an offset.
    """

    def __init__(self, url: str, lines: Sequence[bytes], rate: float | None) -> None:
        super().__init__(daemon=True)
        self.learned = 0
        self.failed: list[str] = []
        self._url, self._lines, self._rate = url, lines, rate
        self._over = threading.Event()

    def stop(self) -> None:
        """Come to an end."""
        self._over.set()

    def run(self) -> None:
        """Learn."""
        chunks = [b"\n".join(self._lines[at : at + LINES]) for at in range(0, len(self._lines), LINES)]
        began = time.monotonic()
        sent = 0
        with httpx.Client(base_url=self._url, timeout=60) as http:
            for chunk in itertools.cycle(chunks):
                if self._over.is_set():
                    return
                answer = http.post("/learn", content=chunk, headers={"Content-Type": "application/x-ndjson"})
                told = answer.text.count('"rank"')
                self.learned += told
                if told != LINES:
                    self.failed.append(answer.text[:300])
                sent += LINES
                if self._rate is not None:
                    self._over.wait(max(0.0, began + sent / self._rate - time.monotonic()))


class Asker(threading.Thread):
    """Sends one request after the other, with a pause between them, and takes the time of each."""

    def __init__(self, url: str, path: str, bodies: Sequence[bytes], pause: float) -> None:
        super().__init__(daemon=True)
        self.failed: list[str] = []
        self._url, self._path, self._bodies, self._pause = url, path, bodies, pause
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._took: list[float] = []

    def stop(self) -> None:
        """Come to an end."""
        self._over.set()

    def times(self) -> list[float]:
        """Milliseconds of the requests since this was asked last."""
        with self._lock:
            took, self._took = self._took, []
        return took

    def run(self) -> None:
        """Ask."""
        headers = {"Content-Type": "application/json"}
        with httpx.Client(base_url=self._url, timeout=60) as http:
            for body in itertools.cycle(self._bodies):
                if self._over.is_set():
                    return
                began = time.perf_counter()
                answer = http.post(self._path, content=body, headers=headers)
                with self._lock:
                    self._took.append(1000 * (time.perf_counter() - began))
                if answer.status_code != 200:
                    self.failed.append(answer.text[:300])
                self._over.wait(self._pause)


def quantile(values: list[float], part: float) -> float:
    """A quantile of values; 0 without any."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3) if ordered else 0.0


def memory(serving: Serving) -> dict[str, float]:
    """Resident MiB of each kind of process of a service."""
    found: dict[str, float] = {}
    for pid in serving.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
        except OSError:
            continue
        module = re.search(r" -m (\S+)", words)
        name = PROCESSES.get(module[1], "other") if module else "store" if "-server" in words else "other"
        found[name] = round(found.get(name, 0.0) + resident, 1)
    return found


def store_state(url: str) -> dict[str, float]:
    """Entries and memory that the store holds, and the age of the newest snapshot."""
    path = url.removeprefix("unix://")
    with redis.Redis(unix_socket_path=path, protocol=2) as client:
        [log] = list(client.scan_iter(match="abound:{default:*}:log", count=10_000))
        snapshots = client.lrange(log.removesuffix(b"log") + b"snapshots", 0, -1)
        age = 0.0
        if snapshots:
            manifest = client.get(log.removesuffix(b"log") + b"snapshot:" + snapshots[-1] + b":manifest")
            seconds, _ = client.time()
            age = seconds - json.loads(manifest)["created"] / 1000 if manifest else 0.0
        return {"log_entries": client.xlen(log), "store_mib": client.info("memory")["used_memory"] / 2**20, "age": age}


def capacity(url: str, lines: Sequence[bytes], seconds: float) -> float:
    """Events a second that are learned at full speed."""
    teacher = Teacher(url, lines, None)
    teacher.start()
    time.sleep(seconds / 3)
    before, began = teacher.learned, time.monotonic()
    time.sleep(seconds)
    rate = (teacher.learned - before) / (time.monotonic() - began)
    teacher.stop()
    teacher.join(60)
    assert not teacher.failed, teacher.failed[0]
    return rate


def soak(minutes: float, capacity_seconds: float) -> dict[str, Any]:
    """Run it; the samples and what they come to."""
    made = instances(POOL, 29, 300_000, 12_600, 1)
    lines = [json.dumps(one).encode() for one in made]
    questions = [json.dumps({"features": one["features"]}).encode() for one in made[:2000]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ABOUND_")} | SETTINGS
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="abound-soak-") as work:
        data = Path(work, "data")
        with Serving(data, output=Path(work, "output"), environment=environment) as serving:
            serving.until_ready(600)
            full = capacity(serving.url, lines, capacity_seconds)
            teacher = Teacher(serving.url, lines, PART * full)
            askers = {
                "classify": Asker(serving.url, "/classify", questions, 0.01),
                "learn": Asker(serving.url, "/learn", lines[:2000], 0.02),
            }
            threads: list[Teacher | Asker] = [teacher, *askers.values()]
            for thread in threads:
                thread.start()
            began = time.monotonic()
            learned, at = 0, began
            while time.monotonic() - began < 60 * minutes:
                time.sleep(SAMPLE_SECONDS)
                now = time.monotonic()
                sample: dict[str, Any] = {
                    "seconds": round(now - began, 1),
                    "learned_per_second": round((teacher.learned - learned) / (now - at)),
                    "lag": httpx.get(f"{serving.url}/readyz", timeout=30).json()["lag"],
                    "memory_mib": memory(serving),
                    **{key: round(value, 1) for key, value in store_state(EmbeddedStore(data).url).items()},
                }
                learned, at = teacher.learned, now
                for name, asker in askers.items():
                    took = asker.times()
                    sample[f"{name}_p50_ms"], sample[f"{name}_p99_ms"] = quantile(took, 0.5), quantile(took, 0.99)
                samples.append(sample)
                print(json.dumps(sample), file=sys.stderr, flush=True)
            for thread in threads:
                thread.stop()
            for thread in threads:
                thread.join(60)
            failed = [what for thread in threads for what in thread.failed]
            serving.stop(120)
    return {
        "capacity_per_second": round(full),
        "asked_per_second": round(PART * full),
        "learned": teacher.learned,
        "failed": len(failed),
        "failures": failed[:5],
        **summary(samples),
        "samples": samples,
    }


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the first and the last third after the warm-up: flat when they are alike."""
    settled = samples[int(WARM_PART * len(samples)) :]
    third = max(1, len(settled) // 3)
    parts = {"first_third": settled[:third], "last_third": settled[-third:]}
    names = ["learned_per_second", "classify_p99_ms", "learn_p99_ms", "lag", "log_entries", "store_mib", "age"]
    found: dict[str, Any] = {}
    for name, part in parts.items():
        row = {key: statistics.median(one[key] or 0 for one in part) for key in names}
        kinds = {kind for one in part for kind in one["memory_mib"]}
        row |= {f"{kind}_mib": statistics.median(one["memory_mib"].get(kind, 0.0) for one in part) for kind in kinds}
        found[name] = row
    found["lag_max"] = max(one["lag"] or 0 for one in settled)
    return found


def plot(result: dict[str, Any], path: Path) -> None:
    """Memory, lag and p99 over time, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    samples = result["samples"]
    minutes = [one["seconds"] / 60 for one in samples]
    figure, axes = pyplot.subplots(4, 1, sharex=True, figsize=(9, 10), layout="constrained")
    for kind in sorted({kind for one in samples for kind in one["memory_mib"]}):
        axes[0].plot(minutes, [one["memory_mib"].get(kind) for one in samples], label=kind)
    axes[0].set_ylabel("resident MiB")
    axes[0].legend(ncols=4)
    axes[1].plot(minutes, [one["lag"] for one in samples], label="lag, entries")
    axes[1].plot(minutes, [one["age"] for one in samples], label="age of the newest snapshot, s")
    axes[1].legend(ncols=2)
    for name in ("classify", "learn"):
        axes[2].plot(minutes, [one[f"{name}_p99_ms"] for one in samples], label=f"/{name} p99")
    axes[2].set_ylabel("ms")
    axes[2].legend(ncols=2)
    axes[3].plot(minutes, [one["learned_per_second"] for one in samples], label="learned a second")
    axes[3].plot(minutes, [one["log_entries"] for one in samples], label="entries in the log")
    axes[3].legend(ncols=2)
    axes[3].set_xlabel("minutes")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    figure.suptitle(f"{result['asked_per_second']:,} events a second, 80 % of {result['capacity_per_second']:,}")
    figure.savefig(path)


def main() -> int:
    """Write and print the figures; exit code 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--capacity-seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--plot", type=Path, help="write a picture there (.svg or .png)")
    options = parser.parse_args()
    result = soak(options.minutes, options.capacity_seconds)
    if options.json is not None:
        options.json.write_text(json.dumps(result))
    if options.plot is not None:
        plot(result, options.plot)
    print(json.dumps({name: value for name, value in result.items() if name != "samples"}, indent=2))
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
