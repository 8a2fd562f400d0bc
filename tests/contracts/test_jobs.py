"""What is said of jobs has the shape that the document gives it. Their methods are those of the tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from abound.jobs.methods import METHODS
from tests.support.job_program import TEST_METHODS
from tests.support.served import Served


@pytest.fixture
def _methods(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    service.http.get("/openapi.json")  # the service keeps it, and other tests compare it: without these methods
    for name, method in TEST_METHODS.items():
        monkeypatch.setitem(METHODS, name, replace(method, kind="of no worker"))


def checked(service: Served, path: str, method: str, answer: Any) -> Any:
    """An answer, once it has the shape that the document says."""
    document = service.http.get("/openapi.json").json()
    responses = document["paths"][path][method]["responses"]
    media = answer.headers["content-type"].partition(";")[0]
    schema = responses[str(answer.status_code)]["content"][media]["schema"]
    jsonschema_rs.validator_for({**schema, "components": document["components"]}).validate(answer.json())
    return answer.json()


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_is_described(name: str) -> None:
    """The page makes its forms from this, and whoever fills one in has nothing else to go by."""
    for parameter, about in METHODS[name].schema["properties"].items():
        described = about.get("description", "")
        assert len(described) >= 10, f"{parameter} of {name}"
        assert not described.startswith("See "), f"{parameter} of {name}"
    for parameter in {"since", "until"} & METHODS[name].schema["properties"].keys():
        assert "seconds since 1970" in METHODS[name].schema["properties"][parameter]["description"]


@pytest.mark.usefixtures("_methods")
def test_jobs_have_the_documented_shape(service: Served) -> None:
    http = service.http
    methods = checked(service, "/methods", "get", http.get("/methods"))["methods"]
    for method in methods:
        jsonschema_rs.meta.validate(method["params"])
    answer = http.post("/jobs", json={"method": "steps", "params": {"steps": 1}})
    job = checked(service, "/jobs", "post", answer)
    assert answer.status_code == 202
    assert checked(service, "/jobs/{id}", "get", http.get(answer.headers["location"])) == job
    assert checked(service, "/jobs", "get", http.get("/jobs"))["jobs"] == [job]
    ended = checked(service, "/jobs/{id}", "delete", http.delete(f"/jobs/{job['id']}"))
    events = http.get(f"/jobs/{job['id']}/events")
    assert events.headers["content-type"].startswith("text/event-stream")
    (line,) = [line for line in events.text.splitlines() if line.startswith("data: ")]
    assert json.loads(line.removeprefix("data: ")) == ended
    for path, method, sent, status in (
        ("/jobs", "post", {"method": "steps", "params": {"steps": -1}}, 422),
        ("/jobs", "post", {"method": "ending", "params": {"needs": 2**60}}, 422),
        ("/jobs", "post", {"method": "steps", "model": "none"}, 404),
    ):
        refused = http.request(method, path, json=sent)
        assert refused.status_code == status
        checked(service, path, method, refused)
    for path, method in (("/jobs/{id}", "get"), ("/jobs/{id}", "delete"), ("/jobs/{id}/events", "get")):
        refused = http.request(method, path.replace("{id}", "0" * 20))
        assert refused.status_code == 404
        checked(service, path, method, refused)
