"""Registration of labels over HTTP: names, parents and other details, what they change, and what is refused."""

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
    service.post(f"/models/{name}/learn", text="bread", labels=["c8"])
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


TREE = {"socks": "apparel", "shirts": "apparel", "apparel": "goods", "mugs": "goods"}
LEAVES = ("socks", "shirts", "mugs")


def register_parents(service: Served, model: str, parents: dict[str, str | None]) -> None:
    register(service, model, *({"label": one, "parent": parent} for one, parent in parents.items()), learn=False)


def shop(service: Served, **config: object) -> str:
    name = fresh_model(service, rating=False, **config)
    register_parents(service, name, TREE)
    instances = [{"text": f"red {label}", "labels": [label]} for label in LEAVES * 3]
    service.http.post(f"/models/{name}/learn", json={"instances": instances}).raise_for_status()
    return name


def ask(service: Served, model: str, **request: object) -> dict[str, Any]:
    """Return the answer, the same for a single request, a batch and a line."""
    path, body = f"/models/{model}/classify", {"text": "red"} | request
    single: dict[str, Any] = service.http.post(path, json=body).json()
    batch = service.http.post(path, json=request | {"instances": [{"text": "red"}] * 2}).json()
    [line] = lines(service.http.post(path, content=ndjson(body), headers=NDJSON))
    assert line == single
    warning = {"warning": batch["warning"]} if "warning" in batch else {}
    assert [one | warning for one in batch["results"]] == [single] * 2
    return single


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"include": ["apparel"]}, {"socks", "shirts"}),
        ({"include": ["goods"]}, set(LEAVES)),
        ({"include": ["goods"], "exclude": ["apparel"]}, {"mugs"}),
        ({"exclude": ["goods"]}, set()),
        ({"include": ["socks", "mugs"]}, {"socks", "mugs"}),
    ],
)
def test_a_label_stands_for_all_below_it(service: Served, request_: dict[str, Any], expected: set[str]) -> None:
    name = shop(service)
    answer = ask(service, name, **request_)
    assert {one["label"] for one in answer["labels"]} == expected
    assert "warning" not in answer
    register_parents(service, name, {"socks": None})
    without = ask(service, name, **request_)
    assert ("socks" in {one["label"] for one in without["labels"]}) == (
        "socks" in request_.get("include", ["socks"]) and "socks" not in request_.get("exclude", [])
    )


def test_a_label_that_is_not_known_gives_a_warning_with_the_nearest_names(service: Served) -> None:
    name = shop(service)
    service.http.put(f"/models/{name}/labels", json={"labels": [{"label": "c9", "name": "Café chairs"}]})
    for field, label, near in (
        ("include", "Aparel", "'apparel'"),
        ("exclude", "SHIRT", "'shirts'"),
        ("include", "cafe chair", "'c9'"),
    ):
        warned = ask(service, name, **{field: [label]})["warning"]
        assert warned == f"{field}: the label {label!r} is not known; did you mean {near}?"
    unknown = ask(service, name, include=["xyzzy", "socks", "plugh"])
    assert unknown["warning"] == "include: the label 'xyzzy' is not known, and 1 others"
    assert [one["label"] for one in unknown["labels"]] == ["socks"]
    asked = ndjson(*[{"text": "red", "include": ["xyzzy"]}] * 3)
    answers = lines(service.http.post(f"/models/{name}/classify", content=asked, headers=NDJSON))
    assert ["warning" in one for one in answers] == [True, False, False]


def test_levels_name_the_deepest_label_that_is_sure(service: Served) -> None:
    name = shop(service, update="sls")
    answer = ask(service, name, levels=True)
    paths = {one["label"]: one["path"] for one in answer["labels"]}
    assert paths["socks"] == ["goods", "apparel", "socks"]
    assert paths["mugs"] == ["goods", "mugs"]
    probable = {one["label"]: one["probability"] for one in answer["labels"]}
    apparel, goods = probable["socks"] + probable["shirts"], min(1.0, sum(probable.values()))
    most = max(probable.values())
    assert most < apparel
    for least, label, probability in (((most + apparel) / 2, "apparel", apparel), (apparel + 1e-9, "goods", goods)):
        unsure = ask(service, name, levels=True, min_probability=least, k=1)
        if probability < least:
            assert (unsure["labels"], "ancestor" in unsure) == ([], False)
            continue
        path = ["goods", "apparel"] if label == "apparel" else ["goods"]
        assert unsure["labels"] == []
        assert unsure["ancestor"] == {"label": label, "probability": pytest.approx(probability), "path": path}
    sure = ask(service, name, levels=True, min_probability=most, k=1)
    assert "ancestor" not in sure
    assert len(sure["labels"]) == 1


@pytest.mark.parametrize(
    ("parents", "at", "cycle"),
    [
        ({"goods": "socks"}, 0, "goods > apparel > socks > goods"),
        ({"a": "a"}, 0, "a > a"),
        ({"x": "y", "y": "z", "z": "x"}, 0, "x > z > y > x"),
        ({"new": "mugs", "goods": "new"}, 0, "new > goods > mugs > new"),
        ({"free": "x", "x": "y", "y": "x"}, 0, "x > y > x > free"),
    ],
    ids=["known", "itself", "batch", "both", "above"],
)
def test_parents_that_close_a_cycle_are_refused(service, parents, at, cycle):
    name = shop(service)
    digest = service.http.get(f"/models/{name}").json()["digest"]
    labels = [{"label": label, "parent": parent} for label, parent in parents.items()]
    answer = service.http.put(f"/models/{name}/labels", json={"labels": labels})
    assert cycle in problem(answer, 422, "invalid-field", f"labels[{at}].parent")["detail"]
    assert service.http.get(f"/models/{name}").json()["digest"] == digest


def test_parents_that_stop_closing_a_cycle_within_a_request_are_accepted(service: Served) -> None:
    name = shop(service)
    register_parents(service, name, {"apparel": None, "goods": "apparel"})
    details = service.http.get(f"/models/{name}/labels").json()["details"]
    assert details["goods"]["parent"] == "apparel"
    assert ask(service, name, include=["apparel"])["labels"] == ask(service, name)["labels"]
