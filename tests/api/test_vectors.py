"""Vectors over HTTP: lists and bytes, alone and with text, what is refused, and what is told."""

import base64
from typing import Any

import numpy as np
import pytest

from abound.client import Client, Model
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem

D = 12


def numbers(kind: int, seed: int) -> list[float]:
    """A vector of one of three kinds."""
    made = np.random.default_rng(seed).normal(0, 0.3, D)
    made[kind] += 1
    return [float(one) for one in made.astype(np.float32)]


@pytest.fixture(scope="module")
def model(service: Served) -> str:
    """A model that has learned vectors of three kinds, alone and with text."""
    name = fresh_model(service, update="sls")
    instances: list[dict[str, Any]] = [{"vector": numbers(i % 3, i), "labels": [f"kind {i % 3}"]} for i in range(60)]
    for instance in instances[::2]:
        instance["text"] = "some words"
    service.http.post(f"/models/{name}/learn", json={"instances": instances}).raise_for_status()
    return name


def best(answer: dict[str, Any]) -> str:
    return str(answer["labels"][0]["label"])


def test_every_way_to_ask_gives_the_same_answer(service: Served, model: str) -> None:
    path = f"/models/{model}/classify"
    for kind in range(3):
        asked = {"vector": numbers(kind, 100 + kind)}
        answer = service.http.post(path, json=asked).json()
        assert best(answer) == f"kind {kind}"
        data = base64.b64encode(np.array(asked["vector"], "<f4")).decode()
        assert service.post(path, vector={"base64": data, "dtype": "float32"}) == answer
        assert service.http.post(path, json={"instances": [asked]}).json()["results"][0]["labels"] == answer["labels"]
        [line] = lines(service.http.post(path, content=ndjson(asked), headers=NDJSON))
        assert line == answer
        explained = service.http.post(path, json={**asked, "text": "words", "explain": True}).json()["labels"][0]
        assert "(meaning)" in [one["feature"] for one in explained["because"]]
        assert sum(one["contribution"] for one in explained["because"]) == pytest.approx(explained["score"])


def test_the_client_sends_arrays(service: Served) -> None:
    name = fresh_model(service, update="sls")
    with Client(service.url) as client:
        model = Model(client, name)
        for i in range(9):
            vector = np.array(numbers(i % 3, i))
            given: Any = (vector, vector.astype(np.float32), (vector * 50).astype(np.int8))[i % 3]
            model.learn("words", [f"kind {i % 3}"], vector=given)
        assert model.classify(vector=numbers(1, 50)).labels[0].label == "kind 1"
    assert service.http.get(f"/models/{name}").json()["config"]["codes"] == 4096


@pytest.mark.parametrize(
    ("vector", "field", "detail"),
    [
        ([0.5] * (D + 1), "vector", f"vector has {D + 1} numbers; those of this model have {D}"),
        ([0.0] * D, "vector", "all zeros"),
        ([], "vector", "length >= 1"),
        ([0.5] * 2049, "vector", "length <= 2048"),
        ({"base64": "AAAA"}, "vector.dtype", "missing"),
        ({"base64": "AAAA", "dtype": "float32"}, "vector.base64", "3 bytes"),
        ({"base64": "A?==", "dtype": "int8"}, "vector.base64", "not valid base64"),
        ({"base64": base64.b64encode(np.full(D, np.nan, "<f4")).decode(), "dtype": "float32"}, "vector.base64", "nan"),
    ],
    ids=["length", "zeros", "empty", "long", "no dtype", "bytes", "base64", "nan"],
)
def test_what_is_refused(service: Served, model: str, vector: Any, field: str, detail: str) -> None:
    for path, more in (("classify", {}), ("learn", {"labels": ["a"]})):
        answer = service.http.post(f"/models/{model}/{path}", json={"vector": vector, **more})
        assert detail in problem(answer, 422, field=field)["detail"]
    answer = service.http.post(f"/models/{model}/classify", json={"instances": [{"vector": vector}]})
    problem(answer, 422, field=f"instances[0].{field}")


def test_the_first_vectors_of_a_request_have_one_length(service: Served) -> None:
    name = fresh_model(service, update="sls")
    path = f"/models/{name}/learn"
    made = [{"vector": [1.0, 2.0, n], "labels": ["a"]} for n in range(3)]
    made[1]["vector"] = [1.0, 2.0]
    answer = service.http.post(path, json={"instances": made})
    problem(answer, 422, "invalid-field", "instances[1].vector")
    assert "vector has 2 numbers; the first one of this request has 3" in answer.json()["detail"]
    assert service.learned(name) == 0
    answers = lines(service.http.post(path, content=ndjson(*made), headers=NDJSON))
    assert [answer.get("field") for answer in answers] == [None, "vector", None]
    assert service.learned(name) == 2


def test_fsu_names_the_update_that_takes_vectors(service: Served) -> None:
    name = fresh_model(service)
    for path, more in (("classify", {}), ("learn", {"labels": ["a"]})):
        answer = service.http.post(f"/models/{name}/{path}", json={"vector": [1, 2], **more})
        assert "update: sls" in problem(answer, 422, field="vector")["detail"]


def test_a_remembered_vector_is_learned(service: Served, model: str) -> None:
    path = f"/models/{model}"
    asked = service.http.post(f"{path}/classify", json={"vector": numbers(2, 7), "remember": True}).json()
    learned = service.http.post(f"{path}/learn", json={"prediction": asked["id"], "labels": ["new kind"]})
    assert learned.json()["applied"], learned.text
    answer = service.http.post(f"{path}/classify", json={"vector": numbers(2, 7), "k": 3}).json()
    assert "new kind" in [one["label"] for one in answer["labels"]]


def test_features_of_a_label_are_shown_without_codes(service: Served, model: str) -> None:
    told = service.http.get(f"/models/{model}/labels/kind 0").json()
    assert [one["feature"] for one in told["features"]][:2] != []
    assert not any(one["feature"].startswith("\0") for one in told["features"])
    assert told["total"] == len(told["features"]) <= 3


WARNED: dict[str, tuple[dict[str, Any], str | None]] = {
    "an embedding": ({f"x{i}": 0.5 - i % 2 for i in range(65)}, "send an embedding as `vector`"),
    "several": ({"price": 3} | {f"n{i}": -i for i in range(8)}, "n1, n2, n3, n4, n5 and 2 more;"),
    "a long name": ({"price": 3, "x" * 100: -1e-9}, "x" * 64 + "...;"),
    "none": ({"price": 3, "debt": -0.0, "note": "a:-1", "-": 1, "on": True}, None),
}


@pytest.mark.parametrize("case", WARNED)
def test_negative_numbers_that_are_ignored_are_named(service: Served, case: str) -> None:
    features, named = WARNED[case]
    name, split = fresh_model(service), fresh_model(service, negative="split")
    given = {"features": features}
    for path, body in (
        ("learn", given | {"labels": ["a"]}),
        ("learn", {"instances": [{"text": "socks", "labels": ["a"]}, given | {"labels": ["a"]}]}),
        ("classify", given | {"text": "socks"}),
        ("classify", {"instances": [{"text": "socks"}, given]}),
    ):
        answer = service.http.post(f"/models/{name}/{path}", json=body).raise_for_status().json()
        assert (answer.get("warning") is None) is (named is None)
        assert named is None or named in answer["warning"]
        assert "warning" not in service.http.post(f"/models/{split}/{path}", json=body).json()


@pytest.mark.parametrize("options", [{}, {"names": True}, {"explain": True}, {"remember": True}], ids=str)
def test_of_many_lines_the_first_with_ignored_numbers_has_the_warning(service: Served, options: dict[str, Any]) -> None:
    path = f"/models/{fresh_model(service, calibrate=False)}"
    good, bad = {"features": {"price": 3}, "labels": ["a"]}, {"features": {"price": 3, "debt": -2}, "labels": ["a"]}
    refused = bad | {"colour": 1}
    learned = lines(service.http.post(f"{path}/learn", content=ndjson(good, refused, bad, bad), headers=NDJSON))
    asked = [{"features": one["features"]} | options for one in (good, bad, bad)]
    asked.insert(1, asked[1] | {"min_probability": 0.5})
    ranked = lines(service.http.post(f"{path}/classify", content=ndjson(*asked), headers=NDJSON))
    for answers, status in ((learned, 422), (ranked, 422)):
        assert [one.get("status") for one in answers] == [None, status, None, None]
        assert [("debt;" in one.get("warning", "")) for one in answers] == [False, False, True, False]
    assert ("id" in ranked[2]) is ("remember" in options)


def test_a_model_encodes_texts(service: Served) -> None:
    model = fresh_model(service, update="sls", analyzer={"embed": "wordllama"})
    for text, label in (("my card was stolen", "lost"), ("book a flight to Rome", "travel")):
        assert service.http.post(f"/models/{model}/learn", json={"text": text, "labels": [label]}).status_code == 200
    [first, *_] = service.post(f"/models/{model}/classify", text="someone took their wallets", explain=True)["labels"]
    assert first["label"] == "lost"
    assert "(meaning)" in [part["feature"] for part in first["because"]]
    wrong = service.http.post(f"/models/{model}/classify", json={"text": "wallets", "vector": [1, 2]})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "vector")
    assert "those of this model have 256" in wrong.json()["detail"]


def test_a_re_ranked_vector_has_probabilities_and_a_text_alone_has_none(service: Served) -> None:
    name = fresh_model(service, update="sls", rerank=True, calibrate=False)
    made = [{"text": f"w{i % 5}", "vector": numbers(i % 3, i), "labels": [f"kind {i % 3}"]} for i in range(90)]
    service.http.post(f"/models/{name}/learn", json={"instances": made}).raise_for_status()
    path, asked = f"/models/{name}/classify", {"text": "w1", "vector": numbers(1, 500)}
    answer = service.http.post(path, json=asked).json()
    assert best(answer) == "kind 1"
    assert [one["probability"] for one in answer["labels"]] == [one["score"] for one in answer["labels"]]
    assert sum(one["probability"] for one in answer["labels"]) == pytest.approx(1)
    for options, kept in (
        ({"min_probability": answer["labels"][0]["probability"]}, [0]),
        ({"exclude": ["kind 1"]}, [1, 2]),
    ):
        found = service.http.post(path, json=asked | options).json()["labels"]
        assert found == [answer["labels"][place] for place in kept]
    assert all("probability" not in one for one in service.http.post(path, json={"text": "w1"}).json()["labels"])
    problem(service.http.post(path, json={"text": "w1", "min_probability": 0.1}), 422, field="min_probability")
    stats = service.http.get(f"/models/{name}/stats").json()
    told = stats["reranking"]
    assert (told["used"], set(told["weights"]) >= {"score", "similarity to the class", "frequency"}) == (True, True)
    assert 80 < told["n"] < 90
    assert min(told["answers"]["R@1"], told["index"]["MRR"]) > 0.5
    assert stats["memory_parts"]["class_means"] > 0
    plain = fresh_model(service)
    assert service.http.get(f"/models/{plain}/stats").json()["reranking"] is None
