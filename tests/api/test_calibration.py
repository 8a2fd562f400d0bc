"""Probabilities over HTTP: where they are, where they are not, and what is told of how far they are right."""

import json
import random
from typing import Any

import pytest

from tests.support.served import NDJSON, Served, fresh_model, problem
from tests.support.small_versions import FEATURES, fitted, version_of

HAS_ARTIFACTS = True


def taught(service: Served, n: int = 120, **config: Any) -> str:
    """A model that has learned words that tell a label, some of them badly."""
    name = fresh_model(service, **config)
    rng = random.Random(3)
    instances = []
    for _ in range(n):
        kind = rng.randrange(4)
        words = [f"k{kind}w{rng.randrange(3)}", f"k{rng.randrange(4)}w{rng.randrange(3)}", f"n{rng.randrange(5)}"]
        instances.append({"text": " ".join(words), "labels": [f"label {kind}"]})
    service.http.post(f"/models/{name}/learn", json={"instances": instances}).raise_for_status()
    return name


def ask(service: Served, model: str, **fields: Any) -> dict[str, Any]:
    answer = service.http.post(f"/models/{model}/classify", json=fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


TEXT = "k1w0 k2w1 n3"


@pytest.fixture(scope="module")
def model(service: Served) -> str:
    return taught(service, update="sls")


def test_each_label_has_a_probability(service: Served, model: str) -> None:
    labels = ask(service, model, text=TEXT)["labels"]
    assert [set(one) for one in labels] == [{"label", "score", "probability"}] * 4
    by_label = {one["label"]: one["probability"] for one in labels}
    assert all(0 < probability < 1 for probability in by_label.values())
    assert len(set(by_label.values())) == 4
    assert by_label["label 1"] > by_label["label 3"]
    explained = ask(service, model, text=TEXT, explain=True)["labels"]
    assert [{key: value for key, value in one.items() if key != "because"} for one in explained] == labels
    assert all(one["because"] for one in explained)
    assert ask(service, model, text=TEXT, remember=True)["labels"] == labels
    assert ask(service, model, instances=[{"text": TEXT}] * 2)["results"][1]["labels"] == labels
    assert ask(service, model, text=TEXT, k=1)["labels"] == labels[:1]
    assert ask(service, model, text=TEXT, include=[labels[2]["label"]])["labels"] == labels[2:3]
    assert ask(service, model, text=TEXT, exclude=[labels[0]["label"]])["labels"] == labels[1:]


def test_what_is_not_probable_enough_is_left_out(service: Served, model: str) -> None:
    labels = ask(service, model, text=TEXT)["labels"]
    least = sorted(one["probability"] for one in labels)[2]
    expected = [one for one in labels if one["probability"] >= least]
    assert len(expected) == 2
    assert ask(service, model, text=TEXT, min_probability=least)["labels"] == expected
    both = ask(service, model, text=TEXT, min_probability=least, threshold=labels[0]["score"])["labels"]
    assert both == expected[:1]
    assert ask(service, model, text=TEXT, min_probability=1)["labels"] == []
    assert ask(service, model, text=TEXT, min_probability=0)["labels"] == labels


def test_a_model_that_does_not_calibrate_says_so(service: Served) -> None:
    plain = taught(service, update="sls", calibrate=False)
    assert [set(one) for one in ask(service, plain, text=TEXT)["labels"]] == [{"label", "score"}] * 4
    path = f"/models/{plain}/classify"
    for fields in ({"text": TEXT}, {"instances": [{"text": TEXT}]}):
        refused = problem(
            service.http.post(path, json={**fields, "min_probability": 0.5}), 422, "invalid-field", "min_probability"
        )
        assert "calibrate" in refused["detail"]
    line = service.http.post(path, content=json.dumps({"text": TEXT, "min_probability": 0.5}), headers=NDJSON)
    assert json.loads(line.text)["field"] == "min_probability"
    assert service.http.get(f"/models/{plain}/stats").json()["calibration"] is None
    assert service.http.get(f"/models/{plain}").json()["config"]["calibrate"] is False


def test_versions_have_no_probability(service: Served) -> None:
    name = taught(service)
    version, path = version_of(service, name, fitted("one")).id, f"/models/{name}/classify"
    by_version = ask(service, name, features=FEATURES[4], version=version)
    assert {key for one in by_version["labels"] for key in one} == {"label", "score"}
    service.http.post(f"/models/{name}/activate", json={"version": version}).raise_for_status()
    for fields in ({}, {"version": version}):
        answer = ask(service, name, features=FEATURES[4], **fields)
        assert {key for one in answer["labels"] for key in one} == {"label", "score"}
        refused = service.http.post(path, json={"features": FEATURES[4], "min_probability": 0.5, **fields})
        assert "version live" in problem(refused, 422, "invalid-field", "min_probability")["detail"]
    assert ask(service, name, text=TEXT, version="live", min_probability=0)["labels"][0]["probability"] > 0
