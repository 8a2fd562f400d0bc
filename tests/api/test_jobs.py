"""Jobs over HTTP, at the door: what is taken, what is refused, how they are followed. No worker is there."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from abound.api.routes import jobs as route
from abound.jobs.record import job_key
from tests.support.job_worker import Office, forget_jobs, office, until
from tests.support.served import Served, problem


@pytest.fixture(scope="module")
def _place() -> Iterator[Office]:
    with office() as place:
        place.http.post("/learn", json={"features": {"a": 1, "b": 2}, "labels": ["x", "y"]}).raise_for_status()
        yield place


@pytest.fixture
def place(_place: Office) -> Office:
    forget_jobs(_place.service.server)
    return _place


def set_fields(place: Office, job_id: str, **fields: Any) -> None:
    """Change a record behind the service's back, as a worker would."""
    with place.service.server.client() as client:
        client.hset(job_key(job_id), mapping={name: json.dumps(value) for name, value in fields.items()})


def test_methods_are_listed_with_the_schema_of_their_parameters(place: Office) -> None:
    methods = {method["name"]: method for method in place.http.get("/methods").json()["methods"]}
    assert {"steps", "crunch", "ending"} <= methods.keys()
    steps = methods["steps"]
    assert (steps["summary"], steps["kind"]) == ("Write an artifact a step, and commit them all.", "replace")
    assert steps["params"]["properties"]["steps"] == {"default": 3, "title": "Steps", "type": "integer"}
    assert steps["params"]["additionalProperties"] is False


def test_a_job_is_taken_and_waits(place: Office) -> None:
    job_id = place.submit("steps", steps=5, reason="because")
    job = place.job(job_id)
    assert (job["state"], job["progress"], job["attempt"], job["method"]) == ("queued", 0, 0, "steps")
    assert job["params"] == {"steps": 5, "seconds": 0.01, "reason": "because"}
    assert (job["reason"], job["model"], job["data"], job["activate"]) == ("because", "default", "history", "never")
    assert place.http.get("/jobs").json() == {"jobs": [job]}


def test_a_job_that_is_asked_for_again_under_its_key_is_the_same_job(place: Office) -> None:
    body = {"method": "steps", "params": {"steps": 5}}
    headers = {"Idempotency-Key": "a key"}
    first = place.http.post("/jobs", json=body, headers=headers)
    assert first.status_code == 202
    same = {"params": {"steps": 5}, "model": "default", "method": "steps"}
    again = place.http.post("/jobs", json=same, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert again.headers["location"] == first.headers["location"]
    other = place.http.post("/jobs", json={**body, "params": {"steps": 6}}, headers=headers)
    assert problem(other, 422)["field"] == "Idempotency-Key"
    assert problem(place.http.post("/jobs", json=body, headers={"Idempotency-Key": "x" * 256}), 422)
    set_fields(place, first.json()["id"], state="succeeded", outcome={"n": 5})  # it answers as it is by then
    assert place.http.post("/jobs", json=body, headers=headers).json()["outcome"] == {"n": 5}
    another = place.http.post("/jobs", json=body, headers={"Idempotency-Key": "another key"})
    assert another.json()["id"] != first.json()["id"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "method"),
        ({"method": "none"}, "method"),
        ({"method": "steps", "more": 1}, "more"),
        ({"method": "steps", "params": []}, "params"),
        ({"method": "steps", "params": {"steps": "3"}}, "params.steps"),
        ({"method": "steps", "params": {"step": 1}}, "params.step"),
        ({"method": "steps", "data": "somebody's"}, "data"),
        ({"method": "steps", "activate": "always"}, "activate"),
        ({"method": "steps", "model": "*"}, "model"),
        ({"method": "forget", "params": {}}, "params.reason"),
        ({"method": "forget", "params": {"reason": "a", "key": 17}}, "params.key"),
        ({"method": "swnn", "params": {"alfa": 1}}, "params.alfa"),
        ({"method": "swnn", "params": {"held_out": 0.9}}, "params.held_out"),
        ({"method": "ff", "params": {"idf": True}}, "params.idf"),
        ({"method": "frequency", "params": {"auto": True}}, "params.auto"),
        ({"method": "swnn", "params": {"auto": True, "S": 30}}, "params.auto"),
        ({"method": "restore", "params": {"to": "yesterday", "reason": "x"}}, "params.to"),
        ({"method": "refit", "params": {"passes": 0}}, "params.passes"),
        ({"method": "refit", "params": {"settings": {"rerank": True}}}, "params"),
    ],
)
def test_what_is_wrong_with_a_job_is_said_at_the_door(place: Office, body: dict[str, Any], field: str) -> None:
    problem(place.http.post("/jobs", json=body), 422, "invalid-field", field)
    assert place.http.get("/jobs").json() == {"jobs": []}


def test_what_is_no_job_at_all_is_refused(place: Office) -> None:
    problem(place.http.post("/jobs", content=b"{"), 400, "malformed")
    problem(place.http.post("/jobs", content=b"[]", headers={"content-type": "application/json"}), 422)
    problem(place.http.post("/jobs", content=b"x", headers={"content-type": "text/plain"}), 415)
    problem(place.http.post("/jobs", json={"method": "steps", "model": "none"}), 404, "unknown-model")
    for more, meant in (({"models": "default"}, "model"), ({"params": {"step": 1}}, "steps")):
        said = problem(place.http.post("/jobs", json={"method": "steps"} | more), 422, "invalid-field")
        assert said["detail"].endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("job_id", ["0" * 20, "nosuch", "A" * 2000, "%00", "%F0%9F%A6%89"])
def test_a_job_that_there_is_not_is_said_to_be_none(place: Office, job_id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        problem(place.http.request(method, f"/jobs/{job_id}{path}"), 404, "unknown-job")


def test_jobs_are_listed_by_state_and_model(place: Office) -> None:
    place.http.put("/models/other").raise_for_status()
    first, second = place.submit("steps"), place.submit("steps", "other")
    place.http.delete(f"/jobs/{first}")

    def listed(**query: Any) -> list[str]:
        return [job["id"] for job in place.http.get("/jobs", params=query).json()["jobs"]]

    assert listed() == [second, first]
    assert listed(state="queued") == [second]
    assert listed(model="default") == [first]
    assert listed(limit=1) == [second]
    problem(place.http.get("/jobs", params={"state": "done"}), 422, field="state")
    problem(place.http.get("/jobs", params={"limit": 0}), 422, field="limit")


def events_of(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a stream, as a browser reads them."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_job_is_followed_to_its_end(place: Office) -> None:
    job_id = place.submit("steps")
    with place.http.stream("GET", f"/jobs/{job_id}/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.iter_lines())
        assert next(events) == ("progress", place.job(job_id))
        set_fields(place, job_id, progress=0.5, stage="half")
        name, job = next(events)
        assert (name, job["progress"], job["stage"]) == ("progress", 0.5, "half")
        set_fields(place, job_id, heartbeat=1.0)  # of which nothing is said
        place.http.delete(f"/jobs/{job_id}").raise_for_status()
        name, job = next(events)
        assert (name, job["state"]) == ("ended", "cancelled")
        assert list(events) == []
    answer = place.http.get(f"/jobs/{job_id}/events")
    assert [name for name, _ in events_of(iter(answer.text.splitlines()))] == ["ended"]
    until(lambda: route.followers.count == 0)


def test_who_follows_and_goes_is_forgotten(place: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route.followers, "most", 2)
    job_id = place.submit("steps")
    with (
        httpx.Client(base_url=place.service.url, timeout=60) as one,
        httpx.Client(base_url=place.service.url, timeout=60) as two,
    ):
        path = f"/jobs/{job_id}/events"
        with one.stream("GET", path) as first, two.stream("GET", path) as second:
            reading = [first.iter_lines(), second.iter_lines()]  # to let go of one is to hang up
            assert all(next(lines) for lines in reading)
            with place.http.stream("GET", path) as third:
                assert third.status_code == 503
                third.read()
            problem(third, 503, "overloaded")
    until(lambda: route.followers.count == 0)


def test_a_waiting_job_is_cancelled_at_once_audited_and_counted(place: Office) -> None:
    job_id = place.submit("steps", reason="for the record")
    answer = place.http.delete(f"/jobs/{job_id}")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert "cancelled from 127.0.0.1" in answer.json()["error"]
    place.http.post("/jobs", json={"method": "steps", "params": {"steps": -1}})
    acts = place.http.get("/audit", params={"limit": 3}).json()["acts"][::-1]
    assert [(act["action"], act["outcome"]) for act in acts] == [
        ("job.submit", "done"), ("job.cancel", "done"), ("job.submit", "refused"),
    ]  # fmt: skip
    assert (acts[0]["details"]["job"], acts[0]["details"]["params"]["reason"]) == (job_id, "for the record")
    assert place.http.delete(f"/jobs/{job_id}").json() == place.job(job_id)
    place.submit("steps")
    measures = (
        'abound_jobs{state="queued"} 1.0',
        'abound_jobs{state="cancelled"} 1.0',
        'abound_jobs_ended{method="steps",state="cancelled"} 1.0',
        'abound_jobs_workers{kind="replace"} 0.0',
    )
    until(lambda: all(one in place.http.get("/metrics").text for one in measures))


def test_without_an_artifact_store_jobs_are_refused_and_others_are_told_of(place: Office) -> None:
    before = place.submit("steps")
    none = Served(place.service.server)
    none.start()
    try:
        said = problem(none.http.post("/jobs", json={"method": "steps"}), 503, "artifacts-unavailable")
        assert "ABOUND_ARTIFACTS_URL" in said["detail"]
        assert none.http.get(f"/jobs/{before}").status_code == 200
    finally:
        none.stop()


def test_who_follows_does_not_hold_up_the_end_of_the_service(place: Office) -> None:
    """A job may run for hours; a service that stops does not wait for it."""
    other = Served(place.service.server, stop_seconds=60.0)
    other.start()
    job_id = place.submit("steps")
    with (
        httpx.Client(base_url=other.url, timeout=60) as client,
        client.stream("GET", f"/jobs/{job_id}/events") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines)
        began = time.monotonic()
        stopping = threading.Thread(target=other.stop)
        stopping.start()
        assert [line for line in lines if line.startswith("event")] == []
        assert time.monotonic() - began < other.settings.stop_seconds / 2
    stopping.join(60)
    assert not stopping.is_alive()


def test_an_event_is_undone_by_its_offset(place: Office) -> None:
    learn = "/models/default/learn"
    offset = place.http.post(learn, json={"text": "a", "labels": ["x"]}).json()["offset"]
    many = {"instances": [{"text": "a", "labels": ["x"]}] * 101}
    large = place.http.post(learn, json=many).json()["results"][50]["offset"]
    address, mine = f"/models/default/events/{offset}", {"Idempotency-Key": "mine"}
    for at, status, said in (
        ("yesterday", 422, "not an offset"),
        ("1-0.0", 404, "no event was learned at"),
        (large, 409, "101 events, and 100 at most are undone"),
    ):
        assert said in problem(place.http.delete(f"/models/default/events/{at}"), status)["detail"]
    job = place.http.delete(address, headers=mine)
    assert job.status_code == 202
    assert (job.json()["method"], job.json()["params"]["offset"]) == ("forget", offset)
    assert place.http.delete(address, headers=mine).json()["id"] == job.json()["id"]
    assert "another undo waits" in problem(place.http.delete(address), 503)["detail"]
    set_fields(place, job.json()["id"], state="succeeded")
    assert place.http.delete(address, headers=mine).status_code == 200
    acts = [act for act in place.http.get("/audit").json()["acts"] if act["action"] == "event.undo"]
    assert [(act["details"]["offset"], act["details"]["job"]) for act in acts] == [(offset, job.json()["id"])]
