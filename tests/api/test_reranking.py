"""Re-ranking over HTTP: probabilities of vectors, statistics, and a model that moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from abound.core.model.live_model import RERANKED, warmup
from abound.service.client import Client, Model
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem, served

D = 12


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    warmup("reading", "learning", "answering", "sls", "reranked")
    with served() as service:
        yield service


def numbers(kind: int, seed: int) -> list[float]:
    """A vector of one of three kinds."""
    made = np.random.default_rng(seed).normal(0, 0.5, D)
    made[kind] += 1
    return [float(one) for one in made]


@pytest.fixture(scope="module")
def model(service: Served) -> str:
    """A model that has learned texts with vectors of three kinds."""
    name = fresh_model(service, update="sls", rerank=True)
    made = [{"text": f"w{i % 5}", "vector": numbers(i % 3, i), "labels": [f"kind {i % 3}"]} for i in range(90)]
    service.http.post(f"/models/{name}/learn", json={"instances": made}).raise_for_status()
    return name


def classify(service: Served, model: str, **asked: Any) -> list[dict[str, Any]]:
    answer = service.http.post(f"/models/{model}/classify", json=asked)
    assert answer.is_success, answer.text
    labels: list[dict[str, Any]] = answer.json()["labels"]
    return labels


def test_vectors_have_probabilities(service: Served, model: str) -> None:
    labels = classify(service, model, text="w1", vector=numbers(1, 500))
    assert labels[0]["label"] == "kind 1"
    assert [one["probability"] for one in labels] == [one["score"] for one in labels]
    assert sum(one["probability"] for one in labels) == pytest.approx(1)
    asked = {"text": "w1", "vector": numbers(1, 500)}
    body = ndjson(asked, asked)
    answers = lines(service.http.post(f"/models/{model}/classify", content=body, headers=NDJSON))
    assert [one["labels"] for one in answers] == [labels, labels]
    least = labels[0]["probability"]
    assert classify(service, model, **asked, min_probability=least) == labels[:1]
    assert classify(service, model, **asked, exclude=["kind 1"]) == labels[1:]
    [first] = classify(service, model, **asked, k=1, explain=True)
    assert sum(one["contribution"] for one in first["because"]) == pytest.approx(first["score"])
    assert RERANKED in {one["feature"] for one in first["because"]}


def test_texts_alone_are_answered_by_the_index(service: Served, model: str) -> None:
    assert all("probability" not in one for one in classify(service, model, text="w1"))
    refused = service.http.post(f"/models/{model}/classify", json={"text": "w1", "min_probability": 0.1})
    assert refused.status_code == 422
    assert refused.json()["field"] == "min_probability"


def test_statistics_tell_what_it_has_learned(service: Served, model: str) -> None:
    stats = service.http.get(f"/models/{model}/stats").json()
    told = stats["reranking"]
    assert told["used"]
    assert set(told["weights"]) >= {"score", "similarity to the class", "frequency"}
    assert 80 < told["n"] < 90
    assert told["answers"]["R@1"] > 0.5
    assert told["index"]["MRR"] > 0.5
    assert stats["memory_parts"]["class_means"] > 0
    plain = fresh_model(service, update="sls")
    assert service.http.get(f"/models/{plain}/stats").json()["reranking"] is None


def test_it_is_for_sls(service: Served) -> None:
    refused = service.http.put("/models/other", json={"rerank": True})
    assert refused.status_code == 422
    assert refused.json()["field"] == "rerank"


def test_similar_instances_are_named(service: Served) -> None:
    name = fresh_model(service, update="sls", memory_instances=8192)
    path = f"/models/{name}"
    made = [{"vector": numbers(i % 3, i), "labels": [f"kind {i % 3}", "all"]} for i in range(30)]
    learned = service.http.post(f"{path}/learn", json={"instances": made}).json()
    one = {"vector": numbers(0, 77), "labels": ["kind 0"]}
    keyed = service.http.post(f"{path}/learn", json=one, headers={"idempotency-key": "order-77"}).json()
    labels = classify(service, name, vector=numbers(0, 77), explain=True)
    nearest = {label["label"]: label["nearest"] for label in labels}
    first, *others = nearest["kind 0"]
    assert first == {
        "offset": keyed["offset"],
        "key": "order-77",
        "labels": ["kind 0"],
        "similarity": pytest.approx(1, abs=0.01),
    }
    assert len(others) == 2
    assert {tuple(one["labels"]) for one in others} == {("kind 0", "all")}
    assert {one["offset"] for one in others} <= {one["offset"] for one in learned["results"]}
    assert all("key" not in one for one in others)
    assert [one["similarity"] for one in others] == sorted([one["similarity"] for one in others], reverse=True)
    assert all("nearest" not in label for label in classify(service, name, vector=numbers(0, 77)))
    body = ndjson({"vector": numbers(0, 77), "explain": True, "k": 1})
    [line] = lines(service.http.post(f"{path}/classify", content=body, headers=NDJSON))
    assert line["labels"][0]["nearest"][0]["key"] == "order-77"
    with Client(service.url) as client:
        answer = Model(client, name).classify(vector=numbers(0, 77), explain=True)
        assert answer.labels[0].nearest is not None
        assert answer.labels[0].nearest[0].offset == keyed["offset"]
    stats = service.http.get(f"{path}/stats").json()
    assert stats["memory_parts"]["instance_memory"] >= 31 * (D + 96)
    assert "share of similar instances" in stats["reranking"]["weights"]


def test_the_memory_stays_within_max_memory(service: Served) -> None:
    """The last batch that fits is learned; a model without a memory goes on."""
    names = [fresh_model(service, update="sls", max_memory=8 * 2**20, memory_instances=n) for n in (65_536, None)]
    vector = np.random.default_rng(1).normal(0, 1, 256).round(3).tolist()
    for name in names:
        for _ in range(60):
            batch = [{"vector": vector, "labels": ["a"]}] * 500
            answer = service.http.post(f"/models/{name}/learn", json={"instances": batch})
            if answer.status_code != 200:
                assert "max_memory" in problem(answer, 507, "no-room")["detail"]
                break
        described = service.http.get(f"/models/{name}").json()
        assert described["memory"] <= 8 * 2**20
        assert (answer.status_code == 507) == (name == names[0])
        assert ("instance_memory" in described["memory_parts"]) == (name == names[0])


@pytest.mark.parametrize(
    "config",
    [{"memory_instances": 100}, {"update": "sls", "rerank": False, "memory_instances": 100}],
    ids=["fsu", "without re-ranking"],
)
def test_a_memory_needs_re_ranking(service: Served, config: dict[str, Any]) -> None:
    refused = service.http.put("/models/other", json=config)
    assert problem(refused, 422)["field"] == "memory_instances"
    name = fresh_model(service, update="sls", memory_instances=100)
    refused = service.http.put(f"/models/{name}", json={"rerank": False})
    assert "set it to null" in problem(refused, 422)["detail"]
    changed = service.http.put(f"/models/{name}", json={"rerank": False, "memory_instances": None})
    assert changed.json()["config"]["memory_instances"] is None
