"""Jobs, done by the processes of a real worker: how they end, and that they leave nothing behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from abound.jobs import fork_server
from abound.jobs.record import job_key
from tests.support.job_worker import Office, office, until


@pytest.fixture(scope="module")
def place() -> Iterator[Office]:
    with office(ABOUND_JOBS_MEMORY_BYTES=str(2**29)) as place:
        place.worker.start()
        yield place


@pytest.fixture(autouse=True)
def _clean(place: Office) -> Iterator[None]:
    yield
    place.clear()


def job_process_of(place: Office, job_id: str) -> int:
    with place.service.server.client() as client:
        return int(str(client.hget(job_key(job_id), "holder")).rstrip("\"'").rpartition(":")[2])


def test_a_job_is_done_and_what_it_committed_stays(place: Office) -> None:
    with place.service.server.client() as client:
        if left := client.keys("*:pins"):  # by tests that killed their job
            client.delete(*left)
    job = place.ended(place.submit("steps", steps=3, reason="to see"))
    assert (job["state"], job["progress"], job["stage"], job["attempt"]) == ("succeeded", 1.0, "done", 1)
    assert (job["metrics"], job["outcome"], job["error"]) == ({"steps": 3}, {"written": 3}, None)
    assert job["version"] == f"{job['id']}-1"
    assert job["data_range"] == {"after": None, "until": "0-0.0"}
    assert job["params"] == {"steps": 3, "seconds": 0.01, "reason": "to see"}
    assert job["reason"] == "to see"
    assert place.files() == [f"tests/jobs/{job['id']}-1/part-{i}" for i in range(3)]
    with place.service.server.client() as client:
        assert client.keys("*:pins") == []


def test_what_is_not_committed_is_deleted_although_the_job_succeeds(place: Office) -> None:
    job = place.ended(place.submit("crunch", steps=2))
    assert (job["state"], job["kind"]) == ("succeeded", "fit")
    assert place.files() == []


MEMORY = "out of memory: the job may allocate 512.0 MiB: set ABOUND_JOBS_MEMORY_BYTES"


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("error", "it cannot be done"),
        ("bug", "internal error: TypeError: a planted error"),
        ("memory", MEMORY),
        ("memory in a thread", MEMORY),
        ("gone", "what it made was taken away"),
    ],
)
def test_a_job_that_fails_says_why_and_is_not_begun_again(place: Office, how: str, error: str) -> None:
    job = place.ended(place.submit("ending", how=how))
    assert (job["state"], job["attempt"]) == ("failed", 1)
    assert job["error"].startswith(error)
    assert place.files() == []


def test_a_fit_gives_way_as_a_process_and_as_a_session(place: Office) -> None:
    job = place.ended(place.submit("crunch", steps=1))
    assert job["outcome"]["niceness"] == min(19, os.nice(0) + fork_server.NICENESS["fit"])
    assert job["outcome"]["leads its session"]
    assert job["outcome"]["session"] in {None, fork_server.SESSION_NICENESS["fit"]}


def test_a_job_that_kills_its_process_each_time_fails(place: Office) -> None:
    job = place.ended(place.submit("ending", how="death"))
    assert (job["state"], job["attempt"]) == ("failed", 3)
    assert job["error"].startswith("out of memory, probably: its process was ended by SIGKILL. Set ABOUND_JOBS_MEMORY")
    assert "started 3 times" in job["error"]
    assert place.files() == []


@pytest.mark.parametrize("method", ["steps", "crunch"])
def test_a_cancelled_job_stops_and_leaves_nothing(place: Office, method: str) -> None:
    job_id = place.submit(method, steps=10_000, seconds=0.02)
    place.at_work(job_id, progress=0.0002)
    answer = place.http.delete(f"/jobs/{job_id}")
    assert answer.status_code == 202
    assert answer.json()["cancelling"]
    job = place.ended(job_id)
    assert (job["state"], job["cancelling"]) == ("cancelled", False)
    assert "cancelled from" in job["error"]
    until(lambda: place.files() == [])
    assert place.http.delete(f"/jobs/{job_id}").status_code == 200


def test_a_job_that_does_not_listen_is_killed_when_it_is_cancelled(place: Office) -> None:
    job_id = place.submit("ending", how="deaf")
    until(place.files)
    place.http.delete(f"/jobs/{job_id}").raise_for_status()
    assert place.ended(job_id)["state"] == "cancelled"
    assert place.files() == []


def test_a_job_that_stands_still_is_taken_over_and_cannot_change_anything_any_more(place: Office) -> None:
    job_id = place.submit("steps", steps=100, seconds=0.05)
    place.at_work(job_id)
    process = job_process_of(place, job_id)
    os.kill(process, signal.SIGSTOP)
    until(lambda: place.job(job_id)["state"] == "queued" or place.job(job_id)["attempt"] == 2)
    os.kill(process, signal.SIGCONT)
    job = place.ended(job_id)
    assert (job["state"], job["attempt"]) == ("succeeded", 2)
    assert place.files() == sorted(f"tests/jobs/{job_id}-2/part-{i}" for i in range(100))


@pytest.mark.parametrize("how", ["child", "child and wait"])
def test_what_a_job_has_started_ends_with_it(place: Office, how: str) -> None:
    job_id = place.submit("ending", how=how)
    if how == "child":
        child = place.ended(job_id)["outcome"]["child"]
    else:
        stage = until(lambda: (stage := place.job(job_id)["stage"] or "").startswith("child ") and stage)
        child = int(stage.removeprefix("child "))
        os.kill(job_process_of(place, job_id), signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{child}"))
    place.http.delete(f"/jobs/{job_id}")
    place.ended(job_id)


@pytest.mark.parametrize("method", ["steps", "crunch"])
def test_a_job_whose_model_is_deleted_while_it_works_stops_and_leaves_nothing(place: Office, method: str) -> None:
    place.http.put("/models/passing").raise_for_status()
    job_id = place.submit(method, "passing", steps=10_000, seconds=0.02)
    place.at_work(job_id, progress=0.0002)
    place.http.delete("/models/passing").raise_for_status()
    job = place.ended(job_id)
    assert (job["state"], job["error"]) == ("failed", "the model passing was deleted")
    assert place.files() == []


def test_jobs_are_done_in_the_order_in_which_they_came_and_a_fit_holds_up_no_rebuild(place: Office) -> None:
    fit = place.submit("crunch", steps=10_000, seconds=0.02)
    place.at_work(fit)
    ids = [place.submit("steps", steps=1) for _ in range(4)]
    began = [place.ended(job_id)["started"] for job_id in ids]
    assert began == sorted(began)
    assert place.job(fit)["state"] == "running"
    place.http.delete(f"/jobs/{fit}").raise_for_status()
    assert place.ended(fit)["state"] == "cancelled"


def test_a_record_names_nothing_that_is_run(place: Office, tmp_path: Path) -> None:
    """Whoever can write to the store can ask for jobs, and for nothing else."""
    first = place.submit("steps", steps=10_000, seconds=0.02)
    place.at_work(first)
    second = place.submit("steps", steps=1)
    with place.service.server.client() as client:
        client.hset(job_key(second), "method", '"os.mkdir"')
        client.hset(job_key(second), "params", f'{{"path": "{tmp_path}/mark"}}')
    place.http.delete(f"/jobs/{first}").raise_for_status()
    job = place.ended(second)
    assert (job["state"], job["error"]) == (
        "failed",
        "this worker does not know the method os.mkdir; run the same release on all hosts",
    )
    assert not (tmp_path / "mark").exists()


def test_a_worker_that_stops_gives_its_job_back(place: Office) -> None:
    job_id = place.submit("steps", steps=1000, seconds=0.02)
    place.at_work(job_id, progress=0.004)
    assert place.worker.stop() == 0
    job = place.job(job_id)
    assert (job["state"], job["attempt"]) == ("queued", 0)
    assert place.files() == []
    assert place.http.delete(f"/jobs/{job_id}").json()["state"] == "cancelled"  # nobody is needed for that
    waiting = place.submit("steps", steps=1)
    place.worker.start()
    assert place.ended(waiting)["attempt"] == 1
