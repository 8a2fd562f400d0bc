"""A worker, or one of its processes, is killed at random moments while it does jobs.

Whatever happens: every job ends as succeeded, failed with a reason, or cancelled; the artifact store holds what was
committed and nothing else.
"""

import contextlib
import os
import random
import signal
import time

import pytest

from abound.jobs.record import job_key
from benchmarks.serving import tree
from tests.support.job_worker import Office, office


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
                expected += [f"tests/jobs/{job['version']}/part-{i}" for i in range(job["params"]["steps"])]
            with place.service.server.client() as client:
                kept = client.hget(job_key(job_id), "kept")
            if kept not in (None, b"[]") and job["state"] != "succeeded":
                (left,) = [name.strip('[]"') for name in kept.decode().split(",")]
                expected += [f"{left}/part-{i}" for i in range(job["params"]["steps"])]
        assert place.files() == sorted(expected), "what was not committed was left behind"
        return states


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 4), pytest.param(50, 50, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_jobs_end_whatever_is_killed(seed: int, kills: int) -> None:
    assert sum(run(seed, kills).values()) == 2 * kills
