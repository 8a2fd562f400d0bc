"""Decisions over HTTP: what an answer says, what teaches that no label fits, and what is refused."""

import json
import random
from typing import Any

import pytest

from tests.support.served import NDJSON, Served, fresh_model, problem
from tests.support.small_versions import FEATURES, fitted, version_of

HAS_ARTIFACTS = True

KINDS = ("tea", "coffee", "cocoa")
DECIDE = {"agreement": 0.8, "audit": 0.5}


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


def ask(service: Served, model: str, **fields: Any) -> dict[str, Any]:
    answer = service.http.post(f"/models/{model}/classify", json=fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


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
    assert ask(service, model, instances=[{"text": "tea 1"}])["results"][0] == {
        key: value for key, value in plain.items() if key not in ("offset", "version")
    } | {key: plain[key] for key in ("offset", "version")}
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


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": "a", "labels": ["x"], "none": True}, "none"),
        ({"text": "a", "rejected": ["x"], "none": True}, "none"),
        ({"text": "a", "labels": [], "none": False}, "labels"),
        ({"text": "a", "none": "yes"}, "none"),
        ({"instances": [{"text": "a", "labels": ["x"]}], "none": True}, "none"),
        ({"instances": [{"text": "a", "labels": ["x"], "none": True}]}, "instances[0].none"),
    ],
    ids=["labels", "rejected", "false", "string", "batch", "in a batch"],
)
def test_none_without_labels_only(service: Served, model: str, body: dict[str, Any], field: str) -> None:
    problem(service.http.post(f"/models/{model}/learn", json=body), 422, "invalid-field", field)


def test_one_key_means_one_body(service: Served, model: str) -> None:
    path, body = f"/models/{model}/learn", {"text": "other", "key": "none-1", "labels": []}
    first = service.http.post(path, json=body | {"none": True})
    assert service.http.post(path, json=body | {"none": True}).json()["offset"] == first.json()["offset"]
    again = service.http.post(path, json={"text": "other", "key": "none-1", "labels": ["tea"]})
    problem(again, 422, "invalid-field", "key")


def test_versions_do_not_decide(service: Served) -> None:
    name = taught(service, 30)
    version = version_of(service, name, fitted("one")).id
    by_version = ask(service, name, features=FEATURES[4], version=version)
    assert "decision" not in by_version
    path = f"/models/{name}/classify"
    refused = service.http.post(path, json={"features": FEATURES[4], "version": version, "decide": {}})
    assert "version live" in problem(refused, 422, "invalid-field", "decide")["detail"]
