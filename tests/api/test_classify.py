"""Classification over HTTP: rankings, every way to ask for them, and what is refused."""

import json
import math

import pytest

from abound.replica.predictions import RememberParams, newest_predictions, remember
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from tests.support.served import NDJSON, Served, fresh_model, ndjson, problem


@pytest.fixture
def model(service: Served) -> str:
    name = fresh_model(service)
    for text, labels in [("wheat corn", ["grain"]), ("oil barrel", ["crude"]), ("wheat export", ["grain", "trade"])]:
        service.http.post(f"/models/{name}/learn", json={"text": text, "labels": labels}).raise_for_status()
    return name


def test_labels_come_best_first_with_the_offset_of_their_state(service: Served, model: str) -> None:
    learned = service.http.post(f"/models/{model}/learn", json={"text": "wheat", "labels": ["grain"]}).json()
    answer = service.http.post(f"/models/{model}/classify", json={"features": {"wheat": 2, "export": 1}}).json()
    assert set(answer) == {"labels", "offset", "version"}
    assert answer["offset"] == learned["offset"]
    assert answer["version"] == "live"
    assert [set(scored) for scored in answer["labels"]] == [{"label", "score", "probability"}] * 2
    scores = [scored["score"] for scored in answer["labels"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["labels"][0]["label"] == "grain"


def test_k_bounds_the_labels_and_ties_come_in_the_order_seen(service: Served) -> None:
    name, labels = fresh_model(service), [f"label {i}" for i in range(15, 0, -1)]
    assert service.http.post(f"/models/{name}/learn", json={"text": "f", "labels": labels}).status_code == 200
    for k, n in ((None, 10), (1, 1), (15, 15), (1000, 15)):
        asked = {"text": "f"} | ({"k": k} if k else {})
        found = service.http.post(f"/models/{name}/classify", json=asked).json()["labels"]
        assert [one["label"] for one in found] == labels[:n]


def test_include_and_exclude(service: Served, model: str) -> None:
    path = f"/models/{model}/classify"

    def labels(**options: object) -> list[str]:
        answer = service.http.post(path, json={"text": "wheat export oil", **options}).json()
        return sorted(scored["label"] for scored in answer["labels"])

    assert labels() == ["crude", "grain", "trade"]
    nulls = ("features", "version", "threshold", "include", "exclude", "min_offset")
    assert labels(**dict.fromkeys(nulls)) == labels(version="live") == labels()
    assert labels(include=["grain", "crude", "never seen"]) == ["crude", "grain"]
    assert labels(exclude=["grain", "never seen"]) == ["crude", "trade"]
    assert labels(include=["grain", "crude"], exclude=["crude"]) == ["grain"]
    assert labels(include=[]) == []
    assert labels(exclude=[]) == ["crude", "grain", "trade"]
    assert labels(levels=True, threshold=1e9) == []
    assert labels(levels=True, threshold=0.0) == labels()


def test_known_labels_rank_the_others(service: Served) -> None:
    name = fresh_model(service, update="sls")
    path = f"/models/{name}/classify"
    events = [{"text": "red", "labels": [("shirt", "silk"), ("hat", "felt")][i % 2]} for i in range(80)]
    service.http.post(f"/models/{name}/learn", json={"instances": events}).raise_for_status()
    asked = {"text": "red", "known": ["shirt"], "k": 2}
    answer = service.http.post(path, json=asked).json()
    assert answer["labels"][0]["label"] == "silk"
    assert "warning" not in answer
    assert "shirt" not in {one["label"] for one in answer["labels"]}
    assert service.http.post(path, json={**asked, "known": ["hat"]}).json()["labels"][0]["label"] == "felt"
    batch = {"instances": [{"text": "red"}, {"text": "red"}], "known": ["shirt"], "k": 2}
    assert service.http.post(path, json=batch).json()["results"] == [answer, answer]
    lines = ndjson(asked, {**asked, "known": ["hat"]})
    found = [json.loads(line) for line in service.http.post(path, content=lines, headers=NDJSON).text.splitlines()]
    assert [one["labels"][0]["label"] for one in found] == ["silk", "felt"]
    explained = service.http.post(path, json={**asked, "explain": True, "levels": True, "threshold": 0.0}).json()
    for one in explained["labels"]:
        assert sum(part["contribution"] for part in one["because"]) == pytest.approx(one["score"])
    assert "(known)" in {part["feature"] for part in explained["labels"][0]["because"]}
    warned = service.http.post(path, json={**asked, "known": ["shirt", "silks"]}).json()
    assert warned["warning"] == "known: the label 'silks' is not known; did you mean 'silk'?"
    assert warned["labels"] == answer["labels"]
    problem(service.http.post(path, json={**asked, "min_probability": 0.5}), 422, field="min_probability")


def test_rare_labels_come_higher(service: Served) -> None:
    name = fresh_model(service, update="sls", calibrate=True)
    path = f"/models/{name}/classify"
    events = [{"text": "red shoe", "labels": ["often" if i % 8 else "seldom"]} for i in range(200)]
    service.http.post(f"/models/{name}/learn", json={"instances": events}).raise_for_status()
    usual = service.http.post(path, json={"text": "red"}).json()["labels"]
    assert [one["label"] for one in usual] == ["often", "seldom"]
    counts, n = {"often": 175, "seldom": 25}, len(events)
    inverse = {label: 1 + (math.log(n) - 1) * 2.5**0.55 * (count + 1.5) ** -0.55 for label, count in counts.items()}
    order = sorted(usual, key=lambda one: -(max(one["score"], 0) + 0.02) * inverse[one["label"]] ** 0.25)
    assert service.http.post(path, json={"text": "red", "rare": True}).json()["labels"] == order
    best = service.http.post(path, json={"text": "red", "rare": True, "k": 1, "known": ["often"]}).json()["labels"]
    assert [one["label"] for one in best] == ["seldom"]
    service.http.put(f"/models/{name}", json={"decide": {}}).raise_for_status()
    problem(service.http.post(path, json={"text": "red", "rare": True}), 422, field="rare")
    assert service.http.post(path, json={"text": "red", "rare": True, "decide": False}).json()["labels"] == order


def test_a_batch_answers_each_in_order(service: Served, model: str) -> None:
    path = f"/models/{model}/classify"
    instances = [{"text": "wheat"}, {"features": {"oil": 1}}, {"text": "nothing known"}]
    batch = service.http.post(path, json={"instances": instances, "k": 1}).json()
    assert set(batch) == {"results", "offset", "version"}
    singles = [service.http.post(path, json={**instance, "k": 1}).json() for instance in instances]
    assert batch["results"] == singles
    assert batch["offset"] == singles[-1]["offset"]
    assert batch["version"] == "live"


def test_an_answer_that_would_be_too_large_is_refused(service: Served) -> None:
    name = fresh_model(service, d_max=1000, w_min=0.0)
    for start in range(3):
        body = {"features": {"f": 1}, "labels": [f"{start}{i:03d}" + "x" * 500 for i in range(100)]}
        assert service.http.post(f"/models/{name}/learn", json=body).status_code == 200
    batch = {"instances": [{"features": {"f": 1}}] * 1000, "k": 1000}
    problem(service.http.post(f"/models/{name}/classify", json=batch), 413, "too-large")


def test_an_offset_beyond_the_end_of_the_log_is_refused_at_once(service: Served, model: str) -> None:
    offset = service.http.post(f"/models/{model}/learn", json={"text": "tin", "labels": ["metal"]}).json()["offset"]
    milliseconds, sequence, position = (int(part) for part in offset.replace(".", "-").split("-"))
    beyond = [
        f"{milliseconds}-{sequence}.{position + 1}",
        f"{milliseconds}-{sequence + 1}.0",
        f"{milliseconds + 1}-0.0",
        f"{2**63}-0.0",
    ]
    for one in beyond:
        body = {"text": "wheat", "min_offset": one}
        problem(service.http.post(f"/models/{model}/classify", json=body), 422, "invalid-field", "min_offset")


def test_remembered_instances_can_be_labelled_later(service: Served) -> None:
    name = fresh_model(service)
    instance = {"features": {"steel": 3, "country": "FI"}, "text": "rolled plates"}
    answer = service.http.post(f"/models/{name}/classify", json={**instance, "remember": True}).json()
    assert set(answer) == {"labels", "offset", "version", "id"}
    service.post(f"/models/{name}/learn", prediction=answer["id"], labels=["metal"])
    other = fresh_model(service)
    service.http.post(f"/models/{other}/learn", json={**instance, "labels": ["metal"]}).raise_for_status()
    for asked in ({"text": "rolled"}, {"features": {"steel": 1}}):
        late = service.http.post(f"/models/{name}/classify", json=asked).json()["labels"]
        assert late == service.http.post(f"/models/{other}/classify", json=asked).json()["labels"] != []


def test_the_least_certain_of_the_remembered_instances_come_first(service: Served) -> None:
    address = "/models/asked"
    service.http.put(address, json={"calibrate": True}).raise_for_status()
    named = [{"label": "grain", "name": "Cereals"}]
    service.http.put(f"{address}/labels", json={"labels": named}).raise_for_status()
    learned = [{"text": text, "labels": [label]} for text, label in (("wheat", "grain"), ("oil", "crude"))] * 5
    service.http.post(f"{address}/learn", json={"instances": learned}).raise_for_status()
    lines = [{"text": "Wheat, wheat & oil"}, {"text": {"body": "Oil, WHEAT"}}, {"features": {"nothing": 1, "known": 1}}]
    service.http.post(f"{address}/classify", json={"text": "Wheat!", "remember": True}).raise_for_status()
    service.post(f"{address}/classify", instances=lines[:1], remember=True)
    stream = ndjson(*[one | {"remember": True} for one in lines[1:]], {"text": "not remembered"})
    service.http.post(f"{address}/classify", content=stream, headers=NDJSON).raise_for_status()
    answer = service.http.get(f"{address}/uncertain").json()
    found = answer["instances"]
    assert answer["waiting"] == 4
    margins = [one["margin"] for one in found]
    assert margins == sorted(margins)
    assert [one["text"] for one in found[2:]] == ["Wheat, wheat & oil", "Wheat!"]
    assert sorted([one["text"] for one in found[:2]], key=str) == [None, {"body": "Oil, WHEAT"}]
    assert sorted(next(one["features"] for one in found if one["text"] is None)) == ["known", "nothing"]
    best = found[3]["labels"][0]
    assert (best["label"], best["name"], found[3]["decision"]) == ("grain", "Cereals", None)
    assert 0 < best["probability"] <= 1
    assert margins[3] == pytest.approx(best["score"])
    assert len(service.http.get(f"{address}/uncertain?limit=2").json()["instances"]) == 2
    body = {"prediction": found[3]["id"], "labels": ["cereal"]}
    assert service.http.post(f"{address}/learn", json=body).json()["rank"] is None
    problem(service.http.get(f"{address}/uncertain?limit=0"), 422, "invalid-field")


def test_the_first_instances_to_ask_about_differ(service: Served) -> None:
    address = f"/models/{fresh_model(service)}"
    learned = [{"text": f"word{at}", "labels": [f"label {at}"]} for at in range(20)]
    service.http.post(f"{address}/learn", json={"instances": learned}).raise_for_status()
    alike = [f"nobody knows what these strange terms mean {at}" for at in range(10)]
    others = [f"word{at}" for at in range(12)]
    service.post(f"{address}/classify", instances=[{"text": text} for text in alike + others], remember=True)
    listed = [one["text"] for one in service.http.get(f"{address}/uncertain?limit=22").json()["instances"]]
    assert sorted(listed) == sorted(alike + others)
    assert listed[0] in alike
    assert set(listed[1:13]) == {*others}
    few = [one["text"] for one in service.http.get(f"{address}/uncertain?limit=10").json()["instances"]]
    assert few == listed[:10]


def test_what_was_learned_is_uncertain_no_more_and_may_be_corrected(service: Served) -> None:
    address = f"/models/{fresh_model(service)}"
    body = {"instances": [{"text": f"word{at}"} for at in range(7)], "remember": True}
    ids = [one["id"] for one in service.http.post(f"{address}/classify", json=body).json()["results"]]

    def listed() -> set[str]:
        return {one["id"] for one in service.http.get(f"{address}/uncertain?limit=100").json()["instances"]}

    assert listed() == set(ids)
    problem(service.http.post(f"{address}/learn", json={"prediction": ids[0], "labels": 5}), 422, "invalid-field")
    late = [{"prediction": id_, "labels": ["a"]} for id_ in ids]
    for learning in (late[1], {"instances": [*late[2:4], {"text": "word", "labels": ["a"]}]}):
        service.http.post(f"{address}/learn", json=learning).raise_for_status()
    service.http.post(f"{address}/learn", content=ndjson(late[4], late[5]), headers=NDJSON).raise_for_status()
    assert listed() == {ids[0], ids[6]}
    assert service.http.post(f"{address}/learn", json=late[1] | {"labels": ["b"]}).json()["updated"]
    assert listed() == {ids[0], ids[6]}


async def test_remembered_instances_are_listed_within_bounds(store: Store) -> None:
    keys, params = ModelKeys("m", "1"), RememberParams(seconds=3600)
    ids = [await remember(store, keys, bytes([at]) * 100, params, b"ours") for at in range(120)]
    await remember(store, keys, b"theirs", params, b"other")
    found = await newest_predictions(store, keys, params, b"ours", 1000, 10**6)
    assert [one.id for one in found] == ids[::-1]
    assert await newest_predictions(store, keys, params, b"ours", 7, 10**6) == found[:7]
    few = await newest_predictions(store, keys, params, b"ours", 1000, 1000)
    assert few == found[: len(few)]
    assert len(few) < 60
    assert await newest_predictions(store, ModelKeys("n", "1"), params, b"ours", 7, 10**6) == []
