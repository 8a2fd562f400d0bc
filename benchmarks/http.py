"""The service over HTTP beside a bare echo of the same bodies, in one run: ``python -m benchmarks.http [--json]``.

Wants the program ``wrk`` (a Debian package). One replica process on core 0; wrk, the store and the streaming client
share core 1. The echo is the least that uvicorn can do with a POST: read the body, send it back. Each figure is the
median of interleaved rounds, so that what the machine does otherwise hits both.

The index is trained first, over HTTP, on a synthetic stream of the shape that the advertisement data of Madani et al.
(JMLR 2009) have (26 features an instance) and on one of the shape of their web pages (207 features).

``--embed ENCODER`` also measures ``/classify`` of texts of 20 and of 200 words, made of those of clinc150, beside the
echo of the same bodies: with words alone, with codes, and re-ranked; and, on no core in particular, of a few clients
while a job fits.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count, cycle, islice, takewhile
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from abound_core.instances.data_formats import DatasetInstance
from benchmarks.meaning import WAYS, config_of
from benchmarks.meaning import instances as instances_of
from benchmarks.serving import Serving, free_port
from benchmarks.sets import data_folder

CONNECTIONS = 16
LENGTHS = (20, 200)
"""Words of a text."""
FITTED = "xr_linear"
ECHO = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
"""
SCRIPT = """
local requests, at = {}, 0
init = function(args)
  for body in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("POST", args[2], {["Content-Type"] = "application/json"}, body)
  end
  at = math.random(#requests)
end
request = function()
  at = at %% #requests + 1
  return requests[at]
end
%s
done = function(summary, latency, requests)
  io.write(string.format("SUMMARY %%d %%d %%d %%f %%f %%f\\n", summary.requests, summary.duration,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write +
    summary.errors.timeout, latency:percentile(50), latency:percentile(99), latency.max))
end
"""


def instances(n: int, active: int, n_features: int, n_classes: int, seed: int) -> list[dict[str, object]]:
    """Instances with Zipf-like features that lean on their class: ``{"features": {...}, "labels": [...]}``."""
    rng = np.random.default_rng(seed)
    classes = np.minimum((n_classes ** rng.random(n)).astype(np.int64), n_classes - 1)
    out: list[dict[str, object]] = []
    for label in classes:
        shared = (n_features ** rng.random(active)).astype(np.int64)
        own = (int(label) * 7919 + (60 ** rng.random(active)).astype(np.int64) * 104729) % n_features
        picked = np.unique(np.where(rng.random(active) < 0.4, own, shared))
        values = np.round(rng.random(len(picked)) + 0.05, 4)
        features = {f"term{f:07d}": float(v) for f, v in zip(picked, values, strict=True)}
        out.append({"features": features, "labels": [f"class {label}"]})
    return out


def pin(pid: int, core: int) -> None:
    """Hold every thread of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def service(directory: str, *options: str, pinned: bool = True) -> Iterator[str]:
    """A fresh service with its embedded store; the replica alone on core 0 if it is ``pinned``."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ABOUND_")}
    output = Path(f"{directory}.log")
    with Serving(Path(directory), *options, output=output, environment=environment) as serving:
        serving.until_ready(600)
        for child in serving.pids()[1:] if pinned else ():
            replica = b"abound.api.server" in Path(f"/proc/{child}/cmdline").read_bytes()
            pin(child, 0 if replica else 1)
        yield serving.url
        serving.stop()


@contextmanager
def echo(directory: str) -> Iterator[str]:
    """The bare echo under uvicorn with the same loop and parser, on core 0."""
    Path(directory, "echo_app.py").write_text(ECHO)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "echo_app:app", "--port", str(port), "--loop", "uvloop"]
    command += ["--http", "httptools", "--no-access-log", "--log-level", "critical", "--lifespan", "off"]
    process = subprocess.Popen(command, cwd=directory)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, process)
        pin(process.pid, 0)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until the echo answers, a minute at most."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with code {process.returncode}")
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not get ready")


def wrk(
    url: str, path: str, bodies: Path, seconds: float, connections: int = CONNECTIONS, delay: int = 0
) -> dict[str, float]:
    """One run of wrk: requests a second, errors, latencies in milliseconds.

    Between two requests of a connection are 0 to ``2 * delay`` milliseconds, at random: they do not all come at once.
    """
    script = bodies.with_suffix(f".{delay}.lua")
    script.write_text(SCRIPT % (f"delay = function() return math.random(0, {2 * delay}) end" if delay else ""))
    command = [
        "taskset",
        "-c",
        "1",
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds:g}s",
        "--latency",
        "-s",
        str(script),
    ]
    output = subprocess.run([*command, url, "--", str(bodies), path], capture_output=True, text=True, check=True).stdout
    found = re.search(r"SUMMARY (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+) ([\d.]+)", output)
    if found is None:
        raise SystemExit(f"wrk said: {output}")
    n, duration, errors = (int(found[i]) for i in (1, 2, 3))
    p50, p99, highest = (float(found[i]) / 1000 for i in (4, 5, 6))
    return {"rps": n / (duration / 1e6), "errors": errors, "p50_ms": p50, "p99_ms": p99, "max_ms": highest}


def half_load(url: str, path: str, bodies: Path, rps: float, seconds: float) -> dict[str, float]:
    """Latencies at about half of ``rps``: as many connections, each with pauses, as give that rate."""
    delay = 10
    connections = max(1, round(rps / 2 * (delay + 0.6) / 1000))
    return wrk(url, path, bodies, seconds, connections, delay)


def stream(url: str, lines: list[bytes], chunk: int, stop: threading.Event | None = None) -> tuple[int, float]:
    """Learn lines as successive NDJSON requests (again from the start until ``stop``): instances and seconds."""
    sent, began = 0, time.perf_counter()
    with httpx.Client(timeout=120) as client:
        while True:
            for at in range(0, len(lines), chunk):
                body = b"\n".join(lines[at : at + chunk])
                answer = client.post(f"{url}/learn", content=body, headers={"content-type": "application/x-ndjson"})
                answer.raise_for_status()
                sent += answer.text.count('"rank"')
                if stop is not None and stop.is_set():
                    return sent, time.perf_counter() - began
            if stop is None:
                return sent, time.perf_counter() - began


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The round in the middle, by requests a second, with the errors of all."""
    middle = sorted(rounds, key=lambda r: r["rps"])[len(rounds) // 2]
    return middle | {"errors": sum(r["errors"] for r in rounds)}


def measure(active: int, n: int, shape: tuple[int, int], seconds: float, rounds: int) -> dict[str, object]:
    """All figures for one shape of instances."""
    made = instances(n, active, *shape, seed=active)
    lines = [json.dumps(instance).encode() for instance in made]
    with tempfile.TemporaryDirectory(prefix="abound-bench-") as directory:
        ask, teach = Path(directory, "ask.ndjson"), Path(directory, "teach.ndjson")
        ask.write_text("\n".join(json.dumps({"features": i["features"]}) for i in made[:500]) + "\n")
        teach.write_text("\n".join(json.dumps(i) for i in made[:500]) + "\n")
        with service(f"{directory}/data", "--no-worker") as url, echo(directory) as echo_url:
            learned, took = stream(url, lines, 5_000)
            results: dict[str, list[dict[str, float]]] = {"echo": [], "classify": [], "echo_learn": [], "learn": []}
            for _ in range(rounds):
                results["echo"].append(wrk(echo_url, "/", ask, seconds))
                results["classify"].append(wrk(url, "/classify", ask, seconds))
                results["echo_learn"].append(wrk(echo_url, "/", teach, seconds))
                results["learn"].append(wrk(url, "/learn", teach, seconds))
            best = {name: median(rows) for name, rows in results.items()}
            half = {
                "classify": half_load(url, "/classify", ask, best["classify"]["rps"], seconds),
                "learn": half_load(url, "/learn", teach, best["learn"]["rps"], seconds),
            }
            stop, told = threading.Event(), []
            teacher = threading.Thread(target=lambda: told.append(stream(url, lines, 2_000, stop)))
            teacher.start()
            time.sleep(0.5)
            beside = wrk(url, "/classify", ask, seconds, 2, 2)
            stop.set()
            teacher.join()
            sizes = httpx.get(f"{url}/models/default/stats").json()
    return {
        "features": statistics.mean(len(i["features"]) for i in made),  # type: ignore[arg-type]
        "body_bytes": statistics.mean(len(line) for line in lines),
        "ndjson_learn_per_second": learned / took,
        **best,
        "classify_to_echo": statistics.median(
            c["rps"] / e["rps"] for c, e in zip(results["classify"], results["echo"], strict=True)
        ),
        "learn_to_echo": statistics.median(
            c["rps"] / e["rps"] for c, e in zip(results["learn"], results["echo_learn"], strict=True)
        ),
        "half_load": half,
        "while_learning": {"learn_per_second": told[0][0] / told[0][1], "classify": beside},
        "connections": sizes.get("connections"),
    }


def texts(instances: list[DatasetInstance], n_words: int) -> bytes:
    """Return bodies for ``/classify``: texts of ``n_words`` words, those of the instances one after the other."""
    words = cycle(" ".join(str(one.text) for one in instances).split())
    return b"".join(json.dumps({"text": " ".join(islice(words, n_words))}).encode() + b"\n" for _ in range(500))


def teach_ways(url: str, train: list[DatasetInstance], encoder: str, ways: Iterable[str]) -> None:
    """Make the models of the ways, and teach each the training part."""
    for way in ways:
        httpx.put(f"{url}/models/{way}", json=config_of(way, encoder).to_dict(), timeout=60).raise_for_status()
        stream(f"{url}/models/{way}", [one.to_json() for one in train], 5_000)


def measure_texts(encoder: str, data: Path | None, seconds: float, rounds: int) -> dict[str, dict[str, Any]]:
    """Figures of ``/classify`` for texts, by way and length: at full and at half load, and the ratio to the echo."""
    train, test = instances_of("clinc150", data_folder(data))
    found: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="abound-bench-") as directory,
        service(f"{directory}/data", "--no-worker") as url,
        echo(directory) as echo_url,
    ):
        teach_ways(url, train, encoder, WAYS)
        for n_words in LENGTHS:
            ask = Path(directory, f"{n_words}.ndjson")
            ask.write_bytes(texts(test, n_words))
            paths = {way: f"/models/{way}/classify" for way in WAYS}
            echoed: list[dict[str, float]] = []
            runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                echoed.append(wrk(echo_url, "/", ask, seconds))
                for way, path in paths.items():
                    runs[way].append(wrk(url, path, ask, seconds))
            for way, path in paths.items():
                full = median(runs[way])
                ratio = statistics.median(own["rps"] / bare["rps"] for own, bare in zip(runs[way], echoed, strict=True))
                half = median([half_load(url, path, ask, full["rps"], seconds) for _ in range(rounds)])
                found[f"{way}, {n_words} words"] = {"to_echo": ratio, "full load": full, "half load": half}
            found[f"echo, {n_words} words"] = {"to_echo": 1.0, "full load": median(echoed)}
    return found


def measure_beside_a_job(encoder: str, data: Path | None, seconds: float) -> dict[str, dict[str, float]]:
    """Latencies of two clients before a job fits the model's events, and while it does."""
    train, test = instances_of("clinc150", data_folder(data))
    found: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="abound-bench-") as directory,
        service(f"{directory}/data", pinned=False) as url,
    ):
        ask = Path(directory, "ask.ndjson")
        ask.write_bytes(texts(test, LENGTHS[0]))
        teach_ways(url, train, encoder, ["words"])
        classify = "/models/words/classify"
        found["before the job"] = wrk(url, classify, ask, seconds, 2, 2)
        job = httpx.post(f"{url}/jobs", json={"model": "words", "method": FITTED, "params": {}}).json()["id"]
        states = (httpx.get(f"{url}/jobs/{job}").json()["state"] for _ in count())
        rows = [wrk(url, classify, ask, 1.0, 2, 2) for state in takewhile(("queued", "running").__contains__, states)]
        found[f"while {FITTED} fits, {len(rows)} s"] = median(rows) | {"max_ms": max(row["max_ms"] for row in rows)}
    return found


def main() -> None:
    """Print the figures of both shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run of wrk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it runs")
    parser.add_argument("--embed", metavar="ENCODER", help="measure texts with this encoder as well, such as wordllama")
    parser.add_argument("--data", type=Path, help="the folder of the data sets; ABOUND_DATA without it")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 1.0, 1
    figures = {}
    for name, active, n, shape in (("26", 29, 60_000, (300_000, 12_600)), ("207", 330, 12_000, (685_000, 14_000))):
        figures[name] = measure(active, n if not options.quick else n // 10, shape, options.seconds, options.rounds)
    encoded, beside_a_job = {}, {}
    if options.embed:
        encoded = measure_texts(options.embed, options.data, options.seconds, options.rounds)
        beside_a_job = measure_beside_a_job(options.embed, options.data, options.seconds)
    if options.json:
        print(json.dumps(figures | encoded | beside_a_job, indent=2))
        return
    for row in figures.values():
        print(f"\n{row['features']:.0f} features, {row['body_bytes']:.0f} B a body, {row['connections']} connections")
        for kind in ("echo", "classify", "echo_learn", "learn"):
            print(f"  {kind:11s} {shown(row[kind])}")
        print(f"  classify / echo {row['classify_to_echo']:.2f}   learn / echo {row['learn_to_echo']:.2f}")
        for kind, run in row["half_load"].items():
            print(f"  half load, {kind}: {shown(run)}")
        beside = row["while_learning"]
        print(f"  NDJSON learn {row['ndjson_learn_per_second']:.0f} instances/s")
        print(f"  while learning {beside['learn_per_second']:.0f}/s, classify: {shown(beside['classify'])}")
    for way, runs in encoded.items():
        print(f"\ntexts, {way}: {runs.pop('to_echo'):.2f} of the echo")
        for load, run in runs.items():
            print(f"  {load:11s} {shown(run)}")
    for when, run in beside_a_job.items():
        print(f"\n{when}\n  {shown(run)}   worst {run['max_ms']:.1f} ms")


def shown(run: dict[str, float]) -> str:
    """One run of wrk on a line."""
    latency = f"p50 {run['p50_ms']:.2f} ms   p99 {run['p99_ms']:.2f} ms"
    return f"{run['rps']:9.0f} /s   {latency}   errors {run['errors']:.0f}"


if __name__ == "__main__":
    main()
