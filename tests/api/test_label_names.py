"""Registration of labels over HTTP: names, descriptions and other details, and what they change."""

from typing import Any

import pytest

from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem

WHEAT = {"name": "Wheat", "description": "flour and bread", "parent": "c0", "metadata": {"colour": "red"}}


def register(service: Served, model: str, *labels: dict[str, Any], **options: object) -> dict[str, Any]:
    return service.http.put(f"/models/{model}/labels", json={"labels": labels, **options}).raise_for_status().json()


def classify(service: Served, model: str, text: str, **options: object) -> list[dict[str, Any]]:
    answer = service.http.post(f"/models/{model}/classify", json={"text": text, **options})
    return answer.json()["labels"]


def test_aliases_are_learned_and_name_the_label(service: Served) -> None:
    name = fresh_model(service, rating=False)
    register(service, name, {"label": "c7", "name": "wheat", "aliases": ["durum", "c8"]}, {"label": "c8"})
    assert [one["label"] for one in classify(service, name, "durum")] == ["c7"]
    service.http.post(f"/models/{name}/learn", json={"text": "flour", "labels": ["durum"]}).raise_for_status()
    found = service.http.get(f"/models/{name}/label", params={"name": "durum"}).json()
    assert (found["label"], found["learned"], found["aliases"]) == ("c7", 1, ["durum"])  # c8 is another label
    [listed] = service.http.get(f"/models/{name}/labels/changes").json()["changes"]
    assert (listed["kind"], listed["undo"]) == ("alias", "rename 'durum' to 'c7', without alias")
    undo = {"from": "durum", "to": "c7", "alias": False}
    service.http.post(f"/models/{name}/labels/rename", json=undo).raise_for_status()
    wrong = {"labels": [{"label": "c7", "aliases": ["\u00fc" * 300]}]}
    assert problem(service.http.put(f"/models/{name}/labels", json=wrong), 422)["field"] == "labels[0].aliases"
    assert service.http.get(f"/models/{name}/label", params={"name": "c7"}).json()["aliases"] == []


@pytest.mark.parametrize("config", [{}, {"update": "sls"}], ids=["fsu", "sls"])
def test_labels_without_instances_are_left_out_on_request(service: Served, config: dict[str, Any]) -> None:
    name = fresh_model(service, rating=False, **config)
    register(service, name, {"label": "c7", "name": "red wheat"}, {"label": "c8", "name": "red oil"})
    path = f"/models/{name}"
    service.http.post(f"{path}/learn", json={"text": "red", "labels": ["c9"]}).raise_for_status()
    without = {"text": "red", "zero_shot": False}
    options: tuple[tuple[dict[str, Any], set[str], set[str]], ...] = (
        ({}, {"c7", "c8", "c9"}, {"c9"}),
        ({"include": ["c7", "c9"]}, {"c7", "c9"}, {"c9"}),
        ({"exclude": ["c8", "c9"]}, {"c7"}, set()),
        ({"names": True, "explain": True}, {"c7", "c8", "c9"}, {"c9"}),
    )
    for more, every, learned in options:
        for given, expected in (
            ({"text": "red"}, every),
            ({"text": "red", "zero_shot": True}, every),
            (without, learned),
        ):
            single = classify(service, name, **given, **more)
            assert {one["label"] for one in single} == expected
            batch = {**given, **more, "text": None, "instances": [{"text": "red"}, {"text": "red"}]}
            results = service.http.post(f"{path}/classify", json=batch).json()["results"]
            streamed = lines(service.http.post(f"{path}/classify", content=ndjson(given | more), headers=NDJSON))
            assert [one["labels"] for one in [*results, *streamed]] == [single] * 3
    service.http.post(f"{path}/learn", json={"text": "red", "labels": ["c7"]}).raise_for_status()
    assert {one["label"] for one in classify(service, name, **without)} == {"c7", "c9"}


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_a_label_without_instances_is_suggested_by_its_name(service: Served, update: str) -> None:
    name = fresh_model(service, rating=False, update=update)
    answer = register(service, name, {"label": "c7"} | WHEAT, {"label": "c8"}, {"label": "crude_oil"})
    assert answer == {"offset": answer["offset"], "applied": True, "durability": "log"}
    body = {"text": "bread", "labels": ["c8"]}
    service.http.post(f"/models/{name}/learn", json=body).raise_for_status()
    for text, label in (("the price of wheat", "c7"), ("flour", "c7"), ("oil", "crude_oil")):
        assert [one["label"] for one in classify(service, name, text)] == [label]
    [plain] = classify(service, name, "wheat")
    assert set(plain) == {"label", "score", "probability"}
    [named] = classify(service, name, "wheat", names=True, explain=True)
    assert (named["name"], named["zero_shot"], named["because"][0]["feature"]) == ("Wheat", True, "wheat")
    found = {one["label"]: one for one in classify(service, name, "bread oil", names=True)}
    assert "name" not in found["c8"]
    assert "zero_shot" not in found["c8"]
    stats = service.http.get(f"/models/{name}/stats").json()
    assert (stats["learned"], stats["all"]["n"], stats["classes"]) == (1, 1, 4)
    listed = service.http.get(f"/models/{name}/labels").json()
    every = ["c7", "c0", "c8", "crude_oil"]
    recent = [None, None, 0.0, None]
    assert listed == {"labels": every, "learned": [0, 0, 1, 0], "recent": recent, "total": 4, "details": {"c7": WHEAT}}
    by_name = service.http.get(f"/models/{name}/labels", params={"contains": "WHEA"}).json()
    assert by_name["labels"] == ["c7"]
    assert service.http.get(f"/models/{name}/labels/c7").json()["details"] == WHEAT
    nothing = dict.fromkeys(WHEAT)
    assert service.http.get(f"/models/{name}/label", params={"name": "c8"}).json()["details"] == nothing


def test_details_are_replaced_and_names_may_be_left_unlearned(service: Served) -> None:
    name = fresh_model(service, rating=False)
    register(service, name, {"label": "c7", "name": "wheat"}, learn=False)
    assert classify(service, name, "wheat") == []
    register(service, name, {"label": "c7", "name": "wheat"})
    once = service.http.get(f"/models/{name}").json()["digest"]
    register(service, name, {"label": "c7", "name": "wheat"})
    assert service.http.get(f"/models/{name}").json()["digest"] == once
    register(service, name, {"label": "c7", "description": "corn"})
    assert service.http.get(f"/models/{name}/labels").json()["details"]["c7"]["name"] is None
    register(service, name, {"label": "c7"})
    assert service.http.get(f"/models/{name}/labels").json()["details"] == {}


def test_the_bounds_of_a_model_hold(service: Served) -> None:
    name = fresh_model(service, rating=False, max_classes=2)
    labels = [{"label": label} for label in "abc"]
    problem(service.http.put(f"/models/{name}/labels", json={"labels": labels}), 409, "conflict")
    register(service, name, *labels[:2])
    problem(service.http.put("/models/nothing/labels", json={"labels": labels}), 404, "unknown-model")
    register(service, name, *labels[:1])


@pytest.mark.parametrize(
    "config", [{}, {"update": "sls"}, {"analyzer": {"stem": "en"}}], ids=["default", "sls", "stem"]
)
def test_plural_names_match_singular_texts(service: Served, config: dict[str, Any]) -> None:
    name = fresh_model(service, **config)
    register(service, name, *({"label": one} for one in ("Coats & Jackets", "Pillows", "Batteries", "Dishes", "Glass")))
    for text in ("winter jacket", "pillow", "battery", "dish", "glasses"):
        assert classify(service, name, text)[0]["label"].lower()[:4] in ("coat", text[:4])
    assert [one["label"] for one in classify(service, name, "winter jacket")] == ["Coats & Jackets"]
