"""What one request may take in, and what comes again: bounds over a whole request, keys, changed configurations."""

from typing import Any

import pytest

from abound.api.learn import ConfigChanges
from tests.support.served import NDJSON, Served, checked_problem, fresh_model, lines, ndjson, problem

LETTERS = [chr(i) for i in range(0x4E00, 0x4E00 + 1000)]
WIDE = {"features": {"n" * 500: LETTERS}, "labels": ["a"]}
"""An instance whose vector has more than half a megabyte, and whose JSON has 7 kilobytes."""

SETTINGS = {"stop_seconds": 2.0}


def learn(service: Served, model: str, body: Any, **more: Any) -> Any:
    return service.http.post(f"/models/{model}/learn", json=body, **more)


def remembered(service: Served, model: str, n: int = 1, text: str = "tin") -> list[str]:
    body = {"instances": [{"text": text}] * n, "remember": True}
    answer = service.http.post(f"/models/{model}/classify", json=body)
    return [one["id"] for one in answer.json()["results"]]


@pytest.mark.parametrize("what", ["learn", "classify"])
def test_a_batch_whose_vectors_are_too_large_is_refused(service: Served, model: str, what: str) -> None:
    instance = WIDE if what == "learn" else {"features": WIDE["features"]}
    path = f"/models/{model}/{what}"
    problem(service.http.post(path, json={"instances": [instance] * 40}), 413, "too-large")
    assert service.learned(model) == 0
    assert service.http.post(path, json={"instances": [instance] * 20}).status_code == 200


def test_lines_with_large_vectors_are_appended_in_small_entries(service: Served, model: str) -> None:
    answer = service.http.post(f"/models/{model}/learn", content=ndjson(*[WIDE] * 40), headers=NDJSON)
    offsets = [line["offset"] for line in lines(answer)]
    assert len(set(offsets)) == service.learned(model) == 40
    with service.server.client() as client:
        [log] = client.keys(f"abound:*{model}:*:log")
        sizes = [sum(len(part) for part in fields.values()) for _, fields in client.xrange(log)]
    assert len(sizes) >= 5
    assert max(sizes) < 5 * 2**20


@pytest.mark.parametrize("form", ["single", "lines", "batch", "header"])
def test_a_forgotten_prediction_under_a_key_answers_as_the_first_time(service: Served, model: str, form: str) -> None:
    """Also beside new events, and not with other labels."""
    path = f"/models/{model}/learn"
    keyed = [
        {"prediction": id_, "labels": ["metal"]} | ({"key": f"k{at}"} if form != "header" else {})
        for at, id_ in enumerate(remembered(service, model, 1 if form == "single" else 3))
    ]
    changed, fresh = keyed[-1] | {"labels": ["other"]}, {"text": "gold", "labels": ["metal"]}

    def sent(*events: dict[str, Any]) -> list[dict[str, Any]]:
        """The answer to each; a problem stands for all of its request."""
        if form == "lines":
            return lines(service.http.post(path, content=ndjson(*events), headers=NDJSON))
        header = {"Idempotency-Key": "whole"} if form == "header" else {}
        answer = learn(service, model, events[0] if form == "single" else {"instances": events}, headers=header).json()
        return list(answer.get("results", [answer]))

    first = sent(*keyed)
    with service.server.client() as client:
        assert client.delete(*client.keys("*:remembered"))
    assert sent(*keyed) == first
    field = {"batch": "instances[2].key"}.get(form, "key")
    checked_problem(sent(*keyed[:-1], changed)[-1], 422, "invalid-field", field)
    if form in ("lines", "batch"):
        mixed = sent(keyed[0], fresh, keyed[1])
        assert (mixed[0], mixed[2]) == (first[0], first[1])
    elif form == "single":
        problem(learn(service, model, keyed[0] | {"key": "new"}), 404, "unknown-prediction", "prediction")
        body = {"instances": [fresh, {"prediction": "unknown", "labels": ["metal"]}]}
        problem(learn(service, model, body), 404, "unknown-prediction", "instances[1].prediction")
    assert service.learned(model) == len(keyed) + (form in ("lines", "batch"))


@pytest.mark.parametrize(
    "change", [{"boolean": True}, {"analyzer": {"kind": "char"}}, {"negative": "split"}, {"numbers": "raw"}]
)
def test_an_instance_remembered_before_a_change_of_its_reading_is_a_conflict(service, model, change):
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
