"""What one request may take in, and what comes again: bounds over a whole request, keys, changed configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from abound.api.learn import ConfigChanges
from abound.replica.predictions import vector_fingerprint
from tests.support.served import NDJSON, Served, checked_problem, fresh_model, lines, ndjson, problem, served

LETTERS = [chr(i) for i in range(0x4E00, 0x4E00 + 1000)]
WIDE = {"features": {"n" * 500: LETTERS}, "labels": ["a"]}
"""An instance whose vector has more than half a megabyte, and whose JSON has 7 kilobytes."""


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served(stop_seconds=2.0) as service:
        yield service


@pytest.fixture
def model(service: Served) -> str:
    return fresh_model(service)


def learn(service: Served, model: str, body: Any, **more: Any) -> Any:
    return service.http.post(f"/models/{model}/learn", json=body, **more)


def remembered(service: Served, model: str, n: int = 1, text: str = "tin") -> list[str]:
    body = {"instances": [{"text": text}] * n, "remember": True}
    answer = service.http.post(f"/models/{model}/classify", json=body)
    return [one["id"] for one in answer.json()["results"]]


def forget(service: Served) -> None:
    with service.server.client() as client:
        assert client.delete(*client.keys("*:remembered"))


@pytest.mark.parametrize("what", ["learn", "classify"])
def test_a_batch_whose_vectors_are_too_large_is_refused(service: Served, model: str, what: str) -> None:
    instance = WIDE if what == "learn" else {"features": WIDE["features"]}
    path = f"/models/{model}/{what}"
    problem(service.http.post(path, json={"instances": [instance] * 40}), 413, "too-large")
    assert service.learned(model) == 0
    assert service.http.post(path, json={"instances": [instance] * 20}).status_code == 200


def test_remembered_vectors_count_too(service: Served, model: str) -> None:
    answer = service.http.post(f"/models/{model}/classify", json={"features": WIDE["features"], "remember": True})
    body = {"instances": [{"prediction": answer.json()["id"], "labels": ["a"]}] * 40}
    problem(learn(service, model, body), 413, "too-large")
    assert service.learned(model) == 0


def test_lines_with_large_vectors_are_appended_in_small_entries(service: Served, model: str) -> None:
    answer = service.http.post(f"/models/{model}/learn", content=ndjson(*[WIDE] * 40), headers=NDJSON)
    offsets = [line["offset"] for line in lines(answer)]
    assert len(set(offsets)) == service.learned(model) == 40
    with service.server.client() as client:
        [log] = client.keys(f"abound:*{model}:*:log")
        sizes = [sum(len(part) for part in fields.values()) for _, fields in client.xrange(log)]
    assert len(sizes) >= 5
    assert max(sizes) < 5 * 2**20


def test_lines_with_large_vectors_are_remembered_a_few_at_a_time(service: Served, model: str) -> None:
    body = ndjson(*[{"features": WIDE["features"], "remember": True}] * 20, {"text": "tin"})
    answers = lines(service.http.post(f"/models/{model}/classify", content=body, headers=NDJSON))
    ids = [answer["id"] for answer in answers[:20]]
    assert len(set(ids)) == 20
    assert "id" not in answers[20]
    assert learn(service, model, {"prediction": ids[19], "labels": ["a"]}).status_code == 200


def test_the_offset_of_a_batch_is_the_largest_of_its_results(service: Served, model: str) -> None:
    old = {"text": "tin", "labels": ["metal"], "key": "old"}
    learn(service, model, old)
    new = [{"text": "gold", "labels": ["metal"], "key": f"new{i}"} for i in range(2)]
    answer = learn(service, model, {"instances": [*new, old]}).json()
    assert answer["offset"] == answer["results"][1]["offset"]
    assert service.learned(model) == 3


def test_keyed_lines_with_a_forgotten_prediction_answer_as_the_first_time(service: Served, model: str) -> None:
    path = f"/models/{model}/learn"
    bodies = [
        {"prediction": id_, "labels": ["metal"], "key": f"k{at}"}
        for at, id_ in enumerate(remembered(service, model, 3))
    ]
    first = lines(service.http.post(path, content=ndjson(*bodies), headers=NDJSON))
    forget(service)
    fresh = {"text": "gold", "labels": ["metal"]}
    changed = bodies[2] | {"labels": ["other"]}
    again = lines(service.http.post(path, content=ndjson(bodies[0], fresh, bodies[1], changed), headers=NDJSON))
    assert (again[0], again[2]) == (first[0], first[1])
    assert again[1]["applied"]
    checked_problem(again[3], 422, "invalid-field", "key")
    assert service.learned(model) == 4
    only = lines(service.http.post(path, content=ndjson(*bodies), headers=NDJSON))
    assert only == first


def test_a_batch_under_a_header_key_answers_again_when_forgotten(service: Served, model: str) -> None:
    body = {"instances": [{"prediction": id_, "labels": ["metal"]} for id_ in remembered(service, model, 3)]}
    headers = {"Idempotency-Key": "whole"}
    first = learn(service, model, body, headers=headers).json()
    forget(service)
    assert learn(service, model, body, headers=headers).json() == first
    body["instances"][1]["labels"] = ["other"]
    problem(learn(service, model, body, headers=headers), 422, "invalid-field", "key")
    assert service.learned(model) == 3


def test_a_batch_of_keyed_instances_answers_again_when_forgotten(service: Served, model: str) -> None:
    bodies = [
        {"prediction": id_, "labels": ["metal"], "key": f"k{at}"}
        for at, id_ in enumerate(remembered(service, model, 2))
    ]
    first = learn(service, model, {"instances": bodies}).json()
    forget(service)
    assert learn(service, model, {"instances": bodies}).json() == first
    fresh = [{"text": "gold", "labels": ["metal"], "key": f"f{i}"} for i in range(2)]
    mixed = learn(service, model, {"instances": [bodies[0], *fresh, bodies[1]]}).json()
    assert [mixed["results"][0], mixed["results"][3]] == first["results"]
    assert mixed["offset"] == mixed["results"][2]["offset"]
    plain = learn(service, model, {"instances": [bodies[1], {"text": "gold", "labels": ["metal"]}]}).json()
    assert plain["results"][0] == first["results"][1]
    bodies[1]["labels"] = ["other"]
    problem(learn(service, model, {"instances": bodies}), 422, "invalid-field", "instances[1].key")
    assert service.learned(model) == 5


def test_max_classes_holds_inside_a_batch(service: Served) -> None:
    name = fresh_model(service, max_classes=3)
    body = {"instances": [{"text": "t", "labels": [label]} for label in "abcd"]}
    problem(learn(service, name, body), 409, "conflict")
    assert service.learned(name) == 0
    body["instances"][3]["labels"] = ["a", "b"]
    assert learn(service, name, body).status_code == 200


def test_max_classes_holds_inside_a_stream(service: Served) -> None:
    name = fresh_model(service, max_classes=3)
    body = ndjson(*[{"text": "t", "labels": [label]} for label in "abcdabe"])
    answers = lines(service.http.post(f"/models/{name}/learn", content=body, headers=NDJSON))
    assert [answer.get("status") for answer in answers] == [None, None, None, 409, None, None, 409]
    assert service.http.get(f"/models/{name}").json()["classes"] == 3


@pytest.mark.parametrize(
    "change", [{"boolean": True}, {"analyzer": {"kind": "char"}}, {"negative": "split"}, {"numbers": "raw"}]
)
def test_an_instance_remembered_before_a_change_of_its_reading_is_a_conflict(
    service: Served, model: str, change: dict[str, Any]
) -> None:
    [id_] = remembered(service, model)
    body = {"prediction": id_, "labels": ["metal"]}
    assert service.http.put(f"/models/{model}", json=change).status_code == 200
    problem(learn(service, model, body), 409, "conflict")
    problem(learn(service, model, {"instances": [body]}), 409, "conflict")
    assert service.learned(model) == 0
    [id_] = remembered(service, model)
    assert service.http.put(f"/models/{model}", json={"margin": 0.5}).status_code == 200
    assert learn(service, model, body | {"prediction": id_}).status_code == 200


def test_nothing_is_learned_while_what_it_would_mean_is_being_changed(service: Served, model: str) -> None:
    changing: ConfigChanges = service.app.state.parts.changing
    body = {"text": "tin", "labels": ["metal"]}
    with changing.pending(model, {"boolean": True}):
        answer = learn(service, model, body)
        assert "retry-after" in answer.headers
        problem(answer, 503, "not-ready")
        [line] = lines(service.http.post(f"/models/{model}/learn", content=ndjson(body), headers=NDJSON))
        checked_problem(line, 503, "not-ready")
        assert learn(service, fresh_model(service), body).status_code == 200
    with changing.pending(model, {"margin": 0.1}):
        assert learn(service, model, body).status_code == 200


def test_a_reading_is_of_what_makes_vectors(service: Served, model: str) -> None:
    config = service.live(model).config
    assert vector_fingerprint(config) == vector_fingerprint(config.with_changes({"margin": 1.0, "max_classes": 3}))
    readings = {vector_fingerprint(config.with_changes({"analyzer": {"min_length": n}})) for n in (1, 2, 3)}
    assert len(readings) == 3
