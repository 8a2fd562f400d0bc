"""Probabilities and decisions over HTTP: where an answer has them, where it does not, and what they are worth."""

import json
import random
from typing import Any

import pytest

from tests.support.served import NDJSON, Served, fresh_model, problem
from tests.support.small_versions import FEATURES, fitted, version_of

HAS_ARTIFACTS = True

KINDS = ("tea", "coffee", "cocoa")
DECIDE = {"agreement": 0.8, "audit": 0.5}


def ask(service: Served, model: str, **fields: Any) -> dict[str, Any]:
    return service.post(f"/models/{model}/classify", **fields)


def calibrating(service: Served, n: int = 120, **config: Any) -> str:
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


TEXT = "k1w0 k2w1 n3"


@pytest.fixture(scope="module")
def calibrated(service: Served) -> str:
    return calibrating(service, update="sls")


def test_each_label_has_a_probability(service: Served, calibrated: str) -> None:
    labels = ask(service, calibrated, text=TEXT)["labels"]
    assert [set(one) for one in labels] == [{"label", "score", "probability"}] * 4
    by_label = {one["label"]: one["probability"] for one in labels}
    assert all(0 < probability < 1 for probability in by_label.values())
    assert len(set(by_label.values())) == 4
    assert by_label["label 1"] > by_label["label 3"]
    explained = ask(service, calibrated, text=TEXT, explain=True)["labels"]
    assert [{key: value for key, value in one.items() if key != "because"} for one in explained] == labels
    assert all(one["because"] for one in explained)
    assert ask(service, calibrated, text=TEXT, remember=True)["labels"] == labels
    assert ask(service, calibrated, instances=[{"text": TEXT}] * 2)["results"][1]["labels"] == labels
    assert ask(service, calibrated, text=TEXT, k=1)["labels"] == labels[:1]
    assert ask(service, calibrated, text=TEXT, include=[labels[2]["label"]])["labels"] == labels[2:3]
    assert ask(service, calibrated, text=TEXT, exclude=[labels[0]["label"]])["labels"] == labels[1:]


def test_what_is_not_probable_enough_is_left_out(service: Served, calibrated: str) -> None:
    labels = ask(service, calibrated, text=TEXT)["labels"]
    least = sorted(one["probability"] for one in labels)[2]
    expected = [one for one in labels if one["probability"] >= least]
    assert len(expected) == 2
    assert ask(service, calibrated, text=TEXT, min_probability=least)["labels"] == expected
    both = ask(service, calibrated, text=TEXT, min_probability=least, threshold=labels[0]["score"])["labels"]
    assert both == expected[:1]
    assert ask(service, calibrated, text=TEXT, min_probability=1)["labels"] == []
    assert ask(service, calibrated, text=TEXT, min_probability=0)["labels"] == labels


def test_a_model_that_does_not_calibrate_says_so(service: Served) -> None:
    plain = calibrating(service, update="sls", calibrate=False)
    assert [set(one) for one in ask(service, plain, text=TEXT)["labels"]] == [{"label", "score"}] * 4
    path = f"/models/{plain}/classify"
    for fields in ({"text": TEXT}, {"instances": [{"text": TEXT}]}):
        refused = service.http.post(path, json={**fields, "min_probability": 0.5})
        assert "calibrate" in problem(refused, 422, "invalid-field", "min_probability")["detail"]
    line = service.http.post(path, content=json.dumps({"text": TEXT, "min_probability": 0.5}), headers=NDJSON)
    assert json.loads(line.text)["field"] == "min_probability"
    assert service.http.get(f"/models/{plain}/stats").json()["calibration"] is None
    assert service.http.get(f"/models/{plain}").json()["config"]["calibrate"] is False


def taught(service: Served, n: int = 400, **config: Any) -> str:
    name, rng = fresh_model(service, **{"update": "sls", "decide": DECIDE} | config), random.Random(4)
    lines = []
    for i in range(n):
        kind = rng.choice(KINDS)
        words = f"{kind} {rng.randrange(9)}" if i % 12 else f"other {i}"
        lines.append({"text": words, "none": True} if i % 12 == 0 else {"text": words, "labels": [kind]})
    body = "\n".join(map(json.dumps, lines))
    service.http.post(f"/models/{name}/learn", content=body, headers=NDJSON).raise_for_status()
    assert service.learned(name) == n
    return name


@pytest.fixture(scope="module")
def model(service: Served) -> str:
    return taught(service)


def test_each_answer_has_a_decision(service: Served, model: str) -> None:
    found = [ask(service, model, text=f"{kind} {i}") for kind in KINDS for i in range(9)]
    assert {one["decision"] for one in found} == {"answer"}
    assert all(len(one["labels"]) == 1 and one["labels"][0]["probability"] > 0.5 for one in found)
    assert 0 < sum("audit" in one for one in found) < len(found)
    assert ask(service, model, text="whisky")["decision"] == "none"
    unsure = ask(service, model, text="tea coffee cocoa", decide={"agreement": 0.999})
    assert unsure["decision"] == "defer"
    assert set(unsure["candidates"]) <= set(KINDS)
    assert "audit" not in unsure


def test_every_way_to_ask_decides_alike(service: Served, model: str) -> None:
    plain = ask(service, model, text="tea 1")
    assert ask(service, model, instances=[{"text": "tea 1"}])["results"] == [plain]
    line = service.http.post(f"/models/{model}/classify", content='{"text": "tea 1"}', headers=NDJSON)
    assert json.loads(line.text) == plain
    explained = ask(service, model, text="tea 1", explain=True)
    assert (explained["decision"], explained["labels"][0]["label"]) == ("answer", "tea")
    late = ask(service, model, text="tea 1", remember=True)
    assert late["decision"] == "answer"
    learned = service.http.post(f"/models/{model}/learn", json={"prediction": late["id"], "labels": [], "none": True})
    assert learned.json()["rank"] is None


def test_what_is_deferred_is_asked_first_then_what_is_audited(service: Served) -> None:
    model = taught(service, decide=DECIDE | {"agreement": 0.9})
    both = [{"text": f"tea coffee {i % 9}", "labels": [KINDS[i % 2]]} for i in range(60)]
    service.http.post(f"/models/{model}/learn", json={"instances": both}).raise_for_status()
    texts = [f"{words} {i}" for words in (*KINDS, "tea coffee", "whisky") for i in range(9)]
    said = ask(service, model, instances=[{"text": text} for text in texts], remember=True)["results"]
    decisions = {one["id"]: (one["decision"], one.get("audit", False)) for one in said}
    queue = service.http.get(f"/models/{model}/uncertain?limit=100").json()["instances"]
    assert {one["id"]: (one["decision"], one["audit"]) for one in queue} == decisions
    groups = [0 if one["decision"] == "defer" else 1 if one["audit"] else 2 for one in queue]
    assert groups == sorted(groups)
    assert {*groups} == {0, 1, 2}


def test_a_request_can_leave_the_decision_out_or_ask_for_more(service: Served, model: str) -> None:
    ranked = ask(service, model, text="tea 1", decide=False)
    assert "decision" not in ranked
    assert len(ranked["labels"]) == 3
    deferred = ask(service, model, text="tea 1", decide={"agreement": 0.999}, k=2)
    assert (deferred["decision"], len(deferred["labels"])) == ("defer", 2)
    assert ask(service, model, text="tea 1", include=["coffee"])["labels"][0]["label"] == "coffee"
    path = f"/models/{model}/classify"
    refused = service.http.post(path, json={"text": "tea", "decide": {"agreement": 0.7}})
    problem(refused, 422, "invalid-field", "decide.agreement")
    plain = fresh_model(service)
    refused = service.http.post(f"/models/{plain}/classify", json={"text": "tea", "decide": {}})
    assert "configure it" in problem(refused, 422, "invalid-field", "decide")["detail"]


def test_stats_say_what_the_decisions_are_worth(service: Served, model: str) -> None:
    told = service.http.get(f"/models/{model}/stats").json()["decisions"]
    assert told["agreement"] == 0.8
    assert 0 <= told["threshold"] < 1
    assert 0.8 < told["newest"]["low"] < told["newest"]["agreement"] <= 1
    assert sum(told["all"]["shares"].values()) == pytest.approx(1)
    assert told["all"]["audited"] <= told["all"]["n"] <= 400
    assert told["none_below"] > 0
    shares = [point["share"] for point in told["curve"]]
    assert shares == sorted(shares, reverse=True)
    assert service.http.get(f"/models/{fresh_model(service)}/stats").json()["decisions"] is None


@pytest.mark.parametrize(("make", "option"), [(calibrating, {"min_probability": 0.5}), (taught, {"decide": {}})])
def test_versions_have_no_probability_and_do_not_decide(service: Served, make: Any, option: dict[str, Any]) -> None:
    name = make(service, 60)
    path, version = f"/models/{name}", version_of(service, name, fitted("one")).id
    service.post(f"{path}/activate", version=version)
    for named in ({}, {"version": version}):
        asked = {"features": FEATURES[4]} | named
        answer = ask(service, name, **asked)
        assert "decision" not in answer
        assert {key for one in answer["labels"] for key in one} == {"label", "score"}
        refused = service.http.post(f"{path}/classify", json=asked | option)
        assert "version live" in problem(refused, 422, "invalid-field", *option)["detail"]
    assert "labels" in ask(service, name, text="tea k1w0", version="live", **option)
