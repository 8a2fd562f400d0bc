"""Batch methods as jobs from history, and the same fitted in process: ``python -m benchmarks.batch_jobs --set NAME``.

A service of its own with a worker learns the training part of a data set through ``/learn``, line by line. Each method
is then fitted by a job on what the service has learned, and in this process on the same instances.

* equal: whether all arrays of the version are those of the fit in process, to the last bit
* P@1: of the test part, by the version through ``/classify`` and by the fit in process
* learn, classify: milliseconds of single requests to another model of the service, while nothing is fitted and
  while the method is (with the load of the machine, which others may share)
* start: from when the job was asked for to when its process had it; memory of the replica before, at most while the
  job ran, and after it

With ``--activate`` one of the versions is activated then, and answers requests that name none.

What was measured is kept beside the service's data, so that a run that was stopped goes on where it was (``--data``).
A method may be run several times with different parameters: ``rembrandt@softmax`` is ``rembrandt`` by the parameters
that are given for that name.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from joblib import parallel_config
from threadpoolctl import threadpool_limits

from abound.core.config import ModelConfig
from abound.core.errors import InvalidInstance
from abound.core.instances.data_formats import DatasetInstance
from abound.core.instances.record import EMPTY_VECTOR, pack_labels
from abound.core.instances.vectorizer import Vectorizer
from abound.core.limits import DATASET_LIMITS, Limits
from abound.core.methods import fitted as fitting
from abound.core.methods import registry
from abound.core.methods.training.gather import MatrixBuilder
from abound.core.methods.training.matrices import Matrices
from abound.core.methods.training.progress import no_progress
from abound.service.artifacts.checksums import checksum_of
from abound.service.client import Client, Refused
from abound.service.client.local_service import own_service
from abound.service.versions import repository as versions
from benchmarks.sets import read_file

METHODS = "frequency,ff,ind,unweighted,swnn,ogeec,rembrandt"
SEED = 7
PAUSE = 0.01
WAIT_SECONDS = 600.0


class Traffic:
    """Single requests of two kinds, one after the other, a hundred a second at most, and how long each took."""

    def __init__(self, url: str, bodies: dict[str, list[bytes]]) -> None:
        self._address = urlsplit(url)
        self._bodies = bodies
        self._stopping = threading.Event()
        self._taken: dict[str, list[float]] = {name: [] for name in bodies}
        self._threads = [threading.Thread(target=self._send, args=(name,), daemon=True) for name in bodies]
        for thread in self._threads:
            thread.start()

    def take(self) -> dict[str, dict[str, float]]:
        """Milliseconds since the last time: median, p99, most, and how many requests there were."""
        told = {}
        for name, times in self.take_all().items():
            if times:
                p50, p99 = (float(value) * 1000 for value in np.percentile(times, (50, 99)))
                most = max(times) * 1000
                told[name] = {"n": len(times), "p50": round(p50, 2), "p99": round(p99, 2), "most": round(most, 1)}
        return told

    def take_all(self) -> dict[str, list[float]]:
        """The seconds of each request since the last time."""
        taken, self._taken = self._taken, {name: [] for name in self._bodies}
        return taken

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _send(self, name: str) -> None:
        connection = http.client.HTTPConnection(str(self._address.hostname), self._address.port or 80, timeout=60)
        bodies = self._bodies[name]
        at = 0
        while not self._stopping.wait(PAUSE):
            began = time.perf_counter()
            connection.request("POST", f"/models/traffic/{name}", bodies[at % len(bodies)])
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            self._taken[name].append(time.perf_counter() - began)
            at += 1
        connection.close()


def resident(pid: int) -> float:
    """MiB of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def replica_of(url: str) -> int:
    """The process that answers."""
    with Client(url) as client:
        (replica,) = client.stats("default")["replicas"]
    return int(replica["pid"])


def vectorized(name: str, n: int | None) -> Matrices:
    """The first ``n`` instances of a file as matrices: those that the service takes as events."""
    limits = Limits()
    vectorize = Vectorizer(ModelConfig(), limits).vectorize
    gathering = MatrixBuilder((1, 2))
    for instance in islice(read_file(name), n):
        try:
            pack_labels(instance.labels, limits)
            vector = vectorize(instance.features, instance.text)
        except InvalidInstance:
            continue
        if vector != EMPTY_VECTOR:
            gathering.add(vector, instance.labels)
    return gathering.matrices()


def teach(client: Client, model: str, instances: Iterator[DatasetInstance]) -> int:
    """Learn instances in their order; how many."""
    n = 0
    lines = (instance.to_json() for instance in instances if instance.labels)
    for answer in client.learn_stream(model, lines):
        n += "offset" in answer
    return n


def precision_over_http(client: Client, version: str | None, test: list[DatasetInstance]) -> float | None:
    """P@1 of a version, or of what is active, by what the service answers; None where it cannot be asked for one."""
    named = {} if version is None else {"version": version}
    lines = [json.dumps({**json.loads(one.to_json(labels=False)), "k": 1, **named}).encode() for one in test]
    right = 0
    for answer, one in zip(client.classify_stream("default", lines), test, strict=True):
        if "labels" not in answer:
            if answer.get("status") == 404:
                return None
            continue  # an instance without an active feature
        right += bool(answer["labels"]) and answer["labels"][0]["label"] in one.labels
    return right / len(test)


def precision_in_process(fitted: fitting.FittedMethod, test: list[DatasetInstance]) -> float:
    """The same of what was fitted here."""
    vectorize = Vectorizer(ModelConfig(), DATASET_LIMITS).vectorize
    right = 0
    for first in range(0, len(test), 256):
        block = test[first : first + 256]
        ranked = fitted.rank_vectors([vectorize(one.features, one.text) for one in block], 1)
        for row, one in enumerate(block):
            ids = ranked.ids[ranked.starts[row] : ranked.starts[row + 1]]
            right += len(ids) > 0 and fitted.labels[ids[0]] in one.labels
    return right / len(test)


def digest_of(fitted: fitting.FittedMethod) -> dict[str, str]:
    """A checksum of each array."""
    return {name: checksum_of(np.ascontiguousarray(array).tobytes()) for name, array in fitted.to_arrays().items()}


def digest_of_version(client: Client, version: str, directory: Path) -> dict[str, str]:
    """The same of a version, by its file."""
    import asyncio

    from abound.service.artifacts.artifact_store import ArtifactStore
    from abound.service.store.keys import ModelKeys

    artifacts = ArtifactStore(str(directory / "artifacts"))
    (folder,) = (directory / "artifacts").iterdir()
    artifacts.id = folder.name
    keys = ModelKeys("default", client.describe("default")["incarnation"])
    return digest_of(asyncio.run(versions.load(artifacts, keys, version)).fitted)


def run_job(client: Client, pid: int, method: str, params: dict[str, Any], traffic: Traffic) -> dict[str, Any]:
    """One job, and what the service did meanwhile."""
    before = resident(pid)
    traffic.take()
    job = client.submit({"method": method.partition("@")[0], "params": {"seed": SEED, **params}})
    most = before
    while job["ended"] is None:
        time.sleep(0.1)
        most = max(most, resident(pid))
        job = client.job(job["id"])
    told: dict[str, Any] = {"state": job["state"], "error": job["error"], "load": os.getloadavg()[0]}
    if job["state"] == "succeeded":
        told |= {
            "start_ms": round((job["started"] - job["created"]) * 1000, 1),
            "seconds": job["outcome"]["seconds"],
            "version": job["version"],
            "metrics": {name: job["metrics"].get(name) for name in ("R@1", "R@5", "MRR", "P@1", "held_out")},
            "instances": job["outcome"]["sizes"]["instances"],
            "bytes": job["outcome"]["bytes"],
        }
    time.sleep(1.0)
    memory = {"before": round(before), "most": round(most), "after": round(resident(pid))}
    return told | {"replica_mib": memory, "traffic": traffic.take()}


def fit_here(method: str, train: Matrices, params: dict[str, Any]) -> fitting.FittedMethod:
    """The method fitted in this process."""
    method = method.partition("@")[0]
    own = registry.params_of(method, {name: value for name, value in params.items() if name not in OF_JOBS})
    threads = max(1, (os.cpu_count() or 2) - 1)
    with threadpool_limits(1), parallel_config("threading", n_jobs=threads):
        rng = np.random.default_rng(SEED)
        return fitting.fit(method, train, own, rng, no_progress, use_idf=registry.METHODS[method].idf)


OF_JOBS = ("held_out", "most_held_out", "refit")


def run(options: argparse.Namespace) -> None:
    """Teach, then a method after the other."""
    began = time.monotonic()
    folder = Path(os.environ["ABOUND_DATA"], options.set)
    train_file, test_file = (str(next(folder.glob(f"{part}.*"))) for part in ("train", "test"))
    options.data.mkdir(parents=True, exist_ok=True)
    kept = options.data / "measured.json"
    measured: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"methods": {}}

    def keep() -> None:
        kept.write_text(json.dumps(measured, indent=1))

    test = list(islice(read_file(test_file), options.test))
    data = options.data / "data"
    with own_service(data_dir=data, worker=True) as url, Client(url, timeout=WAIT_SECONDS) as client:
        pid = replica_of(url)
        learned = client.stats("default")["learned"]
        if "taught" not in measured:
            assert learned == 0, f"{data} holds a part of the stream only; delete it"
            since = time.monotonic()
            n = teach(client, "default", islice(read_file(train_file), options.train))
            measured["taught"] = {"instances": n, "seconds": round(time.monotonic() - since, 1)}
            client.configure("traffic", {})
            teach(client, "traffic", islice(read_file(train_file), 20_000))
            keep()
        first = client.submit({"method": "frequency", "model": "traffic"})  # the worker is there when it has ended
        assert list(client.follow(first["id"]))[-1]["state"] == "succeeded"
        some = list(islice(read_file(test_file), 1000))
        bodies = {"classify": [one.to_json(labels=False) for one in some], "learn": [one.to_json() for one in some]}
        train = None
        traffic = Traffic(url, bodies)
        try:
            if "quiet" not in measured:
                time.sleep(2.0)
                traffic.take()
                time.sleep(10.0)
                measured["quiet"] = {"load": os.getloadavg()[0], "traffic": traffic.take()}
                keep()
            for method in options.methods.split(","):
                found = measured["methods"].setdefault(method, {})
                given = {"held_out": 0.05, **json.loads(options.params).get(method, {})}
                if "state" not in found:
                    if time.monotonic() - began > options.seconds:
                        continue
                    found |= {"params": given, **run_job(client, pid, method, given, traffic)}
                    keep()
                if found["state"] != "succeeded" or found.get("p1_here") is not None:
                    continue
                if train is None:
                    train = vectorized(train_file, options.train)
                    found["events"] = train.X.shape[0]
                since = time.monotonic()
                here = fit_here(method, train, given)
                found["seconds_here"] = round(time.monotonic() - since, 1)
                found["equal"] = digest_of(here) == digest_of_version(client, found["version"], data)
                found["p1_here"] = precision_in_process(here, test)
                with contextlib.suppress(Refused):
                    found["p1_http"] = precision_over_http(client, found["version"], test)
                keep()
            if options.activate:
                measured["activated"] = activated(client, measured["methods"][options.activate], test)
                keep()
        finally:
            traffic.stop()
    print(json.dumps(measured)) if options.json else show(measured)


def activated(client: Client, found: dict[str, Any], test: list[DatasetInstance]) -> dict[str, Any]:
    """A version is activated and answers for a while; then the index does again."""
    since = time.monotonic()
    client.activate("default", found["version"], "a benchmark")
    seconds = round(time.monotonic() - since, 3)
    serving = client.describe("default")["serving"]["version"]
    precision = precision_over_http(client, None, test)
    client.activate("default", "live", "the end of a benchmark")
    return {"version": found["version"], "serving": serving, "seconds": seconds, "p1_http": precision}


def show(measured: dict[str, Any]) -> None:
    """Print what was measured."""
    print(f"taught {measured['taught']['instances']:,} instances in {measured['taught']['seconds']} s")
    print("quiet", json.dumps(measured.get("quiet")))
    print("activated", json.dumps(measured.get("activated")))
    for method, found in measured["methods"].items():
        if found.get("state") != "succeeded":
            print(f"{method:12} {found.get('state', 'not run')} {found.get('error') or ''}")
            continue
        p1 = "  ".join(f"{name} {found[name]:.4f}" for name in ("p1_http", "p1_here") if found.get(name) is not None)
        print(
            f"{method:12} equal {found.get('equal')}  {p1}  start {found['start_ms']} ms  seconds {found['seconds']}  "
            f"replica MiB {found['replica_mib']}  load {found['load']:.1f}"
        )
        for name, times in found["traffic"].items():
            print(f"    {name:9} {times}")


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_jobs", description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="wordnet-hypernyms", help="a folder below ABOUND_DATA")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--params", default="{}", help='as {"ogeec": {"learners": 1}}')
    parser.add_argument("--activate", help="the method whose version is activated at the end")
    parser.add_argument("--train", type=int, help="instances of the training part at most")
    parser.add_argument("--test", type=int, default=2000, help="instances of the test part at most")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no further method after that")
    parser.add_argument("--data", type=Path, required=True, help="where the service's data and the figures are kept")
    parser.add_argument("--json", action="store_true")
    run(parser.parse_args())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
