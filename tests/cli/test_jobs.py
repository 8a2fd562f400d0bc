"""``abound jobs`` against a service and a worker that run."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from abound.client import Client
from tests.support.command_line import Ran, Run
from tests.support.job_worker import Office, office


@pytest.fixture(scope="module")
def place() -> Iterator[Office]:
    with office() as place:
        place.worker.start()
        yield place


@pytest.fixture
def run(run: Run, place: Office, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ABOUND_URL", place.service.url)
    return partial(run, "jobs")


def last_json(ran: Ran) -> Any:
    """The result, below what the service (in this process) logs on standard output."""
    return json.loads(ran.out.splitlines()[-1])


def test_a_job_is_asked_for_and_followed(run: Run) -> None:
    ran = run("submit", "steps", "--set", "steps=4", "--reason", "to see", "--follow", "--json")
    job = last_json(ran)
    assert (ran.code, job["state"], job["outcome"], job["reason"]) == (0, "succeeded", {"written": 4}, "to see")
    shown = run("show", job["id"])
    assert shown.code == 0
    for word in ("succeeded", "100%", "to see", job["id"], "written: 4"):
        assert word in shown.out
    listed = run("list", "--json")
    assert last_json(listed)["jobs"][0]["id"] == job["id"]
    table = run("list", "--state", "succeeded")
    assert job["id"] in table.out
    assert last_json(run("follow", job["id"], "--json"))["state"] == "succeeded"


def test_metrics_are_shown_for_people(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = {"params": {"ridge": 1.0, "auto": False}, "bytes": 2147759, "deleted": ["a", "b"]}
    job = {"metrics": {"R@1": 0.9413333333333334, "held_out": 1500}, "outcome": outcome, "progress": 1.0}
    monkeypatch.setattr(Client, "job", lambda self, job_id: job)
    shown = run("show", "x").out
    for line in ("R@1: 0.9413", "held_out: 1,500", "params: ridge 1, auto no", "bytes: 2,147,759", "deleted: a, b"):
        assert line in shown


@pytest.mark.parametrize("columns", ["40", None])
def test_ids_are_listed_whole_however_narrow_the_terminal_is(run, columns, monkeypatch):
    error = "a sentence that is so long that it does not fit into a line of any terminal that somebody has open " * 2
    job = {"id": "0123456789abcdef0123", "state": "running", "progress": 0.25, "method": "one_vs_rest", "stage": None}
    job |= {"model": "a-model-with-a-name", "error": error, "created": 1.7e9}
    monkeypatch.setattr(Client, "jobs", lambda self, **given: {"jobs": [job]})
    if columns is None:
        monkeypatch.delenv("COLUMNS")
    else:
        monkeypatch.setenv("COLUMNS", columns)
    (first, *more) = run("list").out.splitlines()[1:]
    assert first.startswith("0123456789abcdef0123  running 25%  one_vs_rest  ")
    assert (error.strip() in first) == (columns is None)
    assert bool(more) == (columns is not None)


def test_a_followed_job_that_does_not_succeed_ends_the_command_with_1(run: Run) -> None:
    ran = run("submit", "ending", "--set", "how=error", "--follow")
    assert ran.code == 1
    assert "failed: it cannot be done" in ran.err
    assert run("submit", "ending", "--set", "how=error").code == 0  # nobody waits for what comes of it


@pytest.mark.parametrize("typed", ["17", "1,2", "true", "null", '"17"'])
def test_a_parameter_that_is_a_string_keeps_what_was_typed(run: Run, typed: str) -> None:
    assert last_json(run("submit", "ending", "--set", f"how={typed}", "--json"))["params"]["how"] == typed.strip('"')


def test_a_job_is_cancelled(run: Run) -> None:
    job = last_json(run("submit", "steps", "--set", "steps=10000", "--json"))
    ended = last_json(run("cancel", job["id"], "--follow", "--json"))
    assert ended["state"] == "cancelled"
    assert run("follow", job["id"]).code == 1


def test_what_the_door_refuses_is_said(run: Run) -> None:
    ran = run("submit", "steps", "--set", "steps=-1")
    assert ran.code == 1
    assert "steps must be at least 0" in ran.err
    assert "did you mean steps?" in run("submit", "steps", "--set", "step=1").err
    assert "did you mean steps?" in run("submit", "step").err
    assert run("submit", "steps", "--set", "steps").code == 2
    assert run("show", "0" * 20).code == 1
