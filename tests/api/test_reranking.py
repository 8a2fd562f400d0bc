"""Re-ranking over HTTP: probabilities of vectors, statistics, and a model that moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from abound_core.model.live_model import RERANKED
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson

D = 12


def numbers(kind: int, seed: int) -> list[float]:
    """A vector of one of three kinds."""
    made = np.random.default_rng(seed).normal(0, 0.5, D)
    made[kind] += 1
    return [float(one) for one in made]


@pytest.fixture(scope="module")
def model(service: Served) -> str:
    """A model that has learned texts with vectors of three kinds."""
    name = fresh_model(service, update="sls", rerank=True, calibrate=False)
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
