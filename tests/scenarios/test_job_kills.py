"""A worker, or one of its processes, is killed at random moments while it does jobs.

Whatever happens: every job ends as succeeded, failed with a reason, or cancelled; the artifact store holds what was
committed and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from abound.client import Client, Refused
from abound.client.local_service import own_service
from abound.jobs.record import job_key
from benchmarks.serving import tree
from tests.support.job_worker import Office, office, until


def submit_one(place: Office, random_: random.Random) -> str:
    kind = random_.choice(("steps", "steps", "crunch", "ending"))
    if kind == "ending":
        return place.submit("ending", how=random_.choice(("error", "death once", "death", "none")))
    return place.submit(kind, steps=random_.randint(0, 25), seconds=0.02)


def hurt(place: Office, random_: random.Random) -> None:
    """Kill something: the worker with everything below it, or one process; or cancel a job."""
    assert place.worker.process is not None
    what = random_.choice(("worker", "worker", "process", "cancel"))
    if what == "cancel":
        going = place.http.get("/jobs", params={"state": "running"}).json()["jobs"]
        if going:
            assert place.http.delete(f"/jobs/{going[0]['id']}").status_code in (200, 202, 409)
    elif what == "process":
        below = tree(place.worker.process.pid)[1:]
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(killed := random_.choice(below), signal.SIGKILL)
            if killed == below[0]:  # the one that forks; the worker ends after it
                place.worker.process.wait(60)
    else:
        place.worker.process.kill()
        place.worker.process.wait()


def run(seed: int, kills: int) -> dict[str, int]:
    """Hurt so many times; how many jobs ended how."""
    random_ = random.Random(seed)
    with office() as place:
        place.worker.start()
        ids: list[str] = []
        for _ in range(kills):
            ids += [submit_one(place, random_) for _ in range(2)]
            time.sleep(random_.uniform(0.0, 1.5))
            hurt(place, random_)
            assert place.worker.process is not None
            if place.worker.process.poll() is not None:
                place.worker.start()
        states: dict[str, int] = {}
        expected = []
        for job_id in ids:
            job = place.ended(job_id, 120)
            states[job["state"]] = states.get(job["state"], 0) + 1
            assert job["state"] in ("succeeded", "failed", "cancelled")
            assert (job["error"] is None) == (job["state"] == "succeeded"), job
            if job["method"] == "steps" and job["version"]:
                expected += [f"tests/{job['version']}/part-{i}" for i in range(job["params"]["steps"])]
            with place.service.server.client() as client:
                kept = client.hget(job_key(job_id), "kept")
            if kept not in (None, b"[]") and job["state"] != "succeeded":
                (left,) = [name.strip('[]"') for name in kept.decode().split(",")]
                expected += [f"{left}/part-{i}" for i in range(job["params"]["steps"])]
        assert place.files() == sorted(expected), "what was not committed was left behind"
        counts = place.http.get("/jobs", params={"limit": 1000}).json()["jobs"]
        assert len(counts) == len(ids)
        with place.service.server.client() as client:
            assert client.keys("*:wrote") == [] or all(
                not any(place.artifacts.rglob(prefix.decode()))
                for key in client.keys("*:wrote")
                for prefix in client.smembers(key)
            )
        return states


def test_jobs_end_whatever_is_killed() -> None:
    states = run(seed=1, kills=4)
    assert sum(states.values()) == 8


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [50])
def test_jobs_end_after_fifty_kills(seed: int) -> None:
    states = run(seed=seed, kills=50)
    assert sum(states.values()) == 100
    print(states)


def teach(client: Client, n: int) -> None:
    instances = [{"features": {f"f{i % 7}": 1.0, f"n{i}": 0.3}, "labels": [f"c{i % 7}"]} for i in range(n)]
    client.learn("default", {"instances": instances, "source": "some"})


def processes_that_work(client: Client) -> list[int]:
    """The workers of a service that run and have a job, the processes that fork for them, and those of jobs."""
    workers = {int(job["worker"].split("-")[-2]) for job in client.jobs(state="running")["jobs"] if job["worker"]}
    return [pid for worker in workers if Path(f"/proc/{worker}").exists() for pid in tree(worker)]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "kills"), [(7, 12)])
def test_rebuilds_end_whatever_is_killed(seed: int, kills: int, tmp_path: Path) -> None:
    """refit and restore under kills, while learning goes on: every job ends, and the index is what the log says."""
    random_ = random.Random(seed)
    ids: list[str] = []
    hits = 0
    with own_service(data_dir=tmp_path / "data", worker=True) as url, Client(url) as client:
        for _ in range(3):
            teach(client, 1000)
        for _ in range(kills):
            here = client.describe("default")["offset"]
            if random_.random() < 0.5:
                asked: dict[str, object] = {"method": "restore", "params": {"to": here, "reason": "to try it"}}
            else:
                asked = {"method": "refit", "params": {"passes": 10, "search": {"margin": [0.0, 0.1, 0.2]}}}
            ids.append(client.submit(asked)["id"])
            newest = ids[-1]
            until(lambda: processes_that_work(client) or client.job(newest)["ended"], 120)  # noqa: B023
            time.sleep(random_.uniform(0.0, 0.4))
            working = processes_that_work(client)
            if working:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random_.choice(working), signal.SIGKILL)
                    hits += 1
            teach(client, 20)
        assert hits > kills / 3
        states: dict[str, int] = {"hits": hits}
        for job_id in ids:
            job = list(client.follow(job_id))[-1]
            states[job["state"]] = states.get(job["state"], 0) + 1
            assert job["state"] == "succeeded" or (job["state"] == "failed" and job["error"]), job
        print(states)
        assert client.classify("default", {"features": {"f3": 1.0}})["labels"][0]["label"] == "c3"
        verified = subprocess.run(
            [sys.executable, "-m", "abound", "verify", "--data-dir", str(tmp_path / "data"), "--json"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert verified.returncode == 0, verified.stdout + verified.stderr
        print(verified.stdout)


FITS: list[dict[str, object]] = [
    {"method": "swnn", "params": {"S": 20}},
    {"method": "ogeec", "params": {"dim": 50, "learners": 3}},
    {"method": "rembrandt", "params": {"k": 5, "epochs": 200}},
    {"method": "unweighted", "params": {"passes": 300, "tolerance": 0}},
    {"method": "ff", "params": {"passes": 20}},
    {"method": "frequency", "params": {}},
]


def folders_of_versions(directory: Path) -> dict[str, bool]:
    """What lies where versions lie, and whether it has a card."""
    found = [path for path in directory.glob("artifacts/*/*/*/versions/*") if path.is_dir()]
    return {path.name: (path / "card.json").exists() for path in found}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("seed", "kills"), [(9, 15)])
def test_fits_end_whatever_is_killed(seed: int, kills: int, tmp_path: Path) -> None:
    """Batch methods under kills, while learning goes on: every job ends, and what it made is whole or not there."""
    random_ = random.Random(seed)
    ids: list[str] = []
    hits = cancels = learned = 0
    data = tmp_path / "data"
    with own_service(data_dir=data, worker=True) as url, Client(url, timeout=300) as client:
        for _ in range(3):
            teach(client, 1000)
        learned += 3000
        while hits < kills and len(ids) < 4 * kills:
            asked = random_.choice(FITS)
            ids.append(client.submit(asked)["id"])
            newest = ids[-1]
            until(lambda: processes_that_work(client) or client.job(newest)["ended"], 300)  # noqa: B023
            time.sleep(random_.uniform(0.0, 0.3))
            if random_.random() < 0.1:
                with contextlib.suppress(Refused):  # it has gone too far
                    client.cancel(newest)
                cancels += 1
            elif working := processes_that_work(client):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random_.choice(working), signal.SIGKILL)
                    hits += 1
            teach(client, 20)
            learned += 20
        assert hits >= kills / 2
        states: dict[str, int] = {"hits": hits, "cancelled by us": cancels}
        versions = set()
        for job_id in ids:
            job = list(client.follow(job_id))[-1]
            states[job["state"]] = states.get(job["state"], 0) + 1
            assert job["state"] in ("succeeded", "failed", "cancelled"), job
            assert (job["error"] is None) == (job["state"] == "succeeded"), job
            assert (job["version"] is not None) == (job["state"] == "succeeded"), job
            versions |= {job["version"]} - {None}
        print(states)
        assert client.stats("default")["learned"] == learned, "the log has all that was acknowledged"
        listed = {card["id"] for card in client.versions("default")["versions"]}
        assert listed <= versions, "a version that no job has made"
        folders = folders_of_versions(data)
        assert set(folders) == listed, "an orphan, or a version without its files"
        for version in listed:
            answer = client.classify("default", {"features": {"f3": 1.0}, "version": version})
            assert answer["version"] == version
