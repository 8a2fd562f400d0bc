"""Parents of labels over HTTP: subtrees in requests, levels, unknown labels, and registrations that are refused."""

from typing import Any

import pytest

from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem

TREE = {"socks": "apparel", "shirts": "apparel", "apparel": "goods", "mugs": "goods"}
LEAVES = ("socks", "shirts", "mugs")


def register(service: Served, model: str, parents: dict[str, str | None], status: int = 200) -> dict[str, Any]:
    labels = [{"label": label, "parent": parent} for label, parent in parents.items()]
    answer = service.http.put(f"/models/{model}/labels", json={"labels": labels, "learn": False})
    assert answer.status_code == status, answer.text
    return answer.json()


def shop(service: Served, **config: object) -> str:
    name = fresh_model(service, rating=False, **config)
    register(service, name, dict(TREE))
    instances = [{"text": f"red {label}", "labels": [label]} for label in LEAVES * 3]
    service.http.post(f"/models/{name}/learn", json={"instances": instances}).raise_for_status()
    return name


def classify(service: Served, model: str, **request: object) -> dict[str, Any]:
    """Return the answer, the same for a single request, a batch and a line."""
    path, body = f"/models/{model}/classify", {"text": "red"} | request
    single: dict[str, Any] = service.http.post(path, json=body).json()
    batch = service.http.post(path, json=request | {"instances": [{"text": "red"}] * 2}).json()
    [line] = lines(service.http.post(path, content=ndjson(body), headers=NDJSON))
    assert line == single
    assert [one | ({"warning": batch["warning"]} if "warning" in batch else {}) for one in batch["results"]] == [
        single
    ] * 2
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
    answer = classify(service, name, **request_)
    assert {one["label"] for one in answer["labels"]} == expected
    assert "warning" not in answer
    register(service, name, {"socks": None})
    without = classify(service, name, **request_)
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
        assert (
            f"{field}: the label {label!r} is not known; did you mean {near}?"
            == (classify(service, name, **{field: [label]})["warning"])
        )
    unknown = classify(service, name, include=["xyzzy", "socks", "plugh"])
    assert unknown["warning"] == "include: the label 'xyzzy' is not known, and 1 others"
    assert [one["label"] for one in unknown["labels"]] == ["socks"]
    asked = ndjson(*[{"text": "red", "include": ["xyzzy"]}] * 3)
    answers = lines(service.http.post(f"/models/{name}/classify", content=asked, headers=NDJSON))
    assert ["warning" in one for one in answers] == [True, False, False]


def test_levels_name_the_deepest_label_that_is_sure(service: Served) -> None:
    name = shop(service, update="sls")
    answer = classify(service, name, levels=True)
    paths = {one["label"]: one["path"] for one in answer["labels"]}
    assert paths["socks"] == ["goods", "apparel", "socks"]
    assert paths["mugs"] == ["goods", "mugs"]
    probable = {one["label"]: one["probability"] for one in answer["labels"]}
    apparel, goods = probable["socks"] + probable["shirts"], min(1.0, sum(probable.values()))
    most = max(probable.values())
    assert most < apparel
    for least, label, probability in (((most + apparel) / 2, "apparel", apparel), (apparel + 1e-9, "goods", goods)):
        unsure = classify(service, name, levels=True, min_probability=least, k=1)
        if probability < least:
            assert (unsure["labels"], "ancestor" in unsure) == ([], False)
            continue
        path = ["goods", "apparel"] if label == "apparel" else ["goods"]
        assert unsure["labels"] == []
        assert unsure["ancestor"] == {"label": label, "probability": pytest.approx(probability), "path": path}
    sure = classify(service, name, levels=True, min_probability=most, k=1)
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
    answer = service.http.put(
        f"/models/{name}/labels", json={"labels": [{"label": k, "parent": v} for k, v in parents.items()]}
    )
    assert cycle in problem(answer, 422, "invalid-field", f"labels[{at}].parent")["detail"]
    assert service.http.get(f"/models/{name}").json()["digest"] == digest


def test_parents_that_stop_closing_a_cycle_within_a_request_are_accepted(service: Served) -> None:
    name = shop(service)
    register(service, name, {"apparel": None, "goods": "apparel"})
    details = service.http.get(f"/models/{name}/labels").json()["details"]
    assert details["goods"]["parent"] == "apparel"
    assert classify(service, name, include=["apparel"])["labels"] == classify(service, name)["labels"]
