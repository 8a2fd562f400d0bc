"""Changes of labels over HTTP: rename, merge, retire, revive, split, dry runs, and their list."""

from typing import Any

import pytest

from abound.client import Client
from tests.support.served import NDJSON, Served, lines, ndjson, problem

HAS_ARTIFACTS = True


@pytest.fixture
def path(service: Served, model: str) -> str:
    for text, label in (("wool socks", "socks"), ("old tv", "tv"), ("television set", "TV"), ("red hat", "hats")):
        service.http.post(f"/models/{model}/learn", json={"text": text, "labels": [label]}).raise_for_status()
    return f"/models/{model}"


def change(service: Served, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    route = "changes" if "changes" in body else "rename"
    return service.http.post(f"{path}/labels/{route}", json=body, headers=headers).raise_for_status().json()


def labels_of(service: Served, path: str, text: str, **options: object) -> list[str]:
    answer = service.http.post(f"{path}/classify", json={"text": text, **options})
    return [one["label"] for one in answer.json()["labels"]]


def test_a_label_lives_on_under_its_new_name(service: Served, path: str) -> None:
    http = service.http
    dry = change(service, path, {"from": "socks", "to": "Socks", "dry_run": True})
    assert dry["changed"] == 1
    assert dry["effects"] == [{"label": "socks", "aliases": [], "learned": 1, "connections": 2, "children": 0}]
    assert labels_of(service, path, "wool") == ["socks"]
    assert change(service, path, {"from": "socks", "to": "Socks"})["changed"] == 1
    assert change(service, path, {"from": "socks", "to": "Socks"}) == {"changed": 0, "offset": None, "durability": None}
    assert labels_of(service, path, "wool") == ["Socks"]
    assert labels_of(service, path, "wool hat", include=["socks"]) == ["Socks"]
    assert labels_of(service, path, "wool hat", exclude=["socks"]) == ["hats"]
    service.post(f"{path}/learn", text="long socks", labels=["socks"], rejected=["hats"])
    http.put(f"{path}/labels", json={"labels": [{"label": "socks", "name": "Warm feet"}]}).raise_for_status()
    one = http.get(f"{path}/label", params={"name": "socks"}).json()
    assert (one["label"], one["learned"], one["aliases"]) == ("Socks", 2, ["socks"])
    assert one["details"]["name"] == "Warm feet"
    assert set(http.get(f"{path}/labels").json()["labels"]) == {"Socks", "tv", "TV", "hats"}
    assert http.get(f"{path}/stats").json()["classes"] == 4


def test_merged_retired_and_split_labels_are_not_suggested(service: Served, path: str) -> None:
    http = service.http
    http.post(f"{path}/labels/merge", json={"from": ["tv"], "into": "TV"}).raise_for_status()
    assert labels_of(service, path, "old television") == ["TV"]
    assert http.delete(f"{path}/labels/hats").json()["changed"] == 1
    assert labels_of(service, path, "red hat") == []
    only = http.post(f"{path}/classify", json={"text": "red hat", "include": ["hats"]}).json()
    assert (only["labels"], only["warning"]) == ([], "include: the label 'hats' is retired")
    said = "the label 'hats' is retired: nothing is learned for it"
    alone = http.post(f"{path}/learn", json={"text": "red hat", "labels": ["hats"]}).json()
    assert (alone["updated"], alone["warning"]) == (False, said)
    rows = [{"text": "red hat", "labels": ["hats", "TV"]}, {"text": "red", "labels": ["TV"]}]
    assert http.post(f"{path}/learn", json={"instances": rows}).json()["warning"] == said
    streamed = lines(http.post(f"{path}/learn", content=ndjson(*rows), headers=NDJSON))
    assert [one.get("warning") for one in streamed] == [said, None]
    assert labels_of(service, path, "red hat") == ["TV"]
    assert http.get(f"{path}/labels").json()["retired"] == ["hats"]
    assert http.post(f"{path}/labels/hats/revive").json()["changed"] == 1
    assert set(labels_of(service, path, "red hat")) == {"TV", "hats"}
    change(service, path, {"changes": [{"kind": "split", "from": "hats", "to": ["caps", "beanies"]}]})
    assert set(labels_of(service, path, "red hat")) == {"TV", "caps", "beanies"}
    assert labels_of(service, path, "red hat", zero_shot=False) == ["TV"]
    listed = http.get(f"{path}/labels/changes").json()["changes"]
    assert [one["kind"] for one in listed] == ["split", "revive", "retire", "merge"]
    assert listed[2]["undo"] == "revive 'hats'"


def test_a_repeated_request_is_applied_once(service: Served, path: str) -> None:
    body: dict[str, Any] = {"changes": [{"kind": "merge", "from": "tv", "to": "TV", "alias": False}]}
    first = change(service, path, body, **{"Idempotency-Key": "one"})
    again = change(service, path, body, **{"Idempotency-Key": "one"})
    assert (first["changed"], again["changed"], again["offset"]) == (1, 0, first["offset"])
    other = {"changes": [{"kind": "retire", "from": "TV"}]}
    answer = service.http.post(f"{path}/labels/changes", json=other, headers={"Idempotency-Key": "one"})
    assert problem(answer, 422)["field"] == "key"


@pytest.mark.parametrize(
    ("method", "route", "body", "status", "field", "said"),
    [
        ("post", "rename", {"from": "sock", "to": "x"}, 404, "from", "did you mean 'socks'?"),
        ("post", "rename", {"from": "tv", "to": "hats"}, 409, None, "merge the two"),
        ("post", "rename", {"from": "tv", "to": "x" * 513}, 422, "to", "512"),
        ("post", "rename", {"from": "tv", "to": "ü" * 300}, 422, "to", "at most 512 bytes"),
        ("post", "merge", {"from": ["tv", "TV"], "into": "TV"}, 422, "into", "merged into itself"),
        ("post", "merge", {"from": ["tv", "vt"], "into": "TV"}, 404, "from[1]", "does not know the label 'vt'"),
        ("post", "merge", {"from": [], "into": "TV"}, 422, "from", "1"),
        ("post", "changes", {"changes": [{"kind": "move", "from": "tv"}]}, 422, "changes[0].kind", "move"),
        ("post", "changes", {"changes": [{"kind": "split", "from": "tv"}]}, 422, "changes[0].to", "1 to 100"),
        ("post", "changes", {"changes": [{"kind": "retire", "from": "tv"}] * 1001}, 422, "changes", "at most 1000"),
        ("delete", "nobody", None, 404, "label", "does not know the label 'nobody'"),
    ],
)
def test_wrong_changes_are_refused(service, path, method, route, body, status, field, said):
    answer = service.http.request(method, f"{path}/labels/{route}", json=body)
    found = problem(answer, status)
    assert found.get("field") == field, found
    assert said in found["detail"]
    assert service.http.get(f"{path}/labels/changes").json() == {"changes": []}


def test_the_client_changes_labels(service: Served, path: str) -> None:
    with Client(service.url) as client:
        labels = client.model(path.removeprefix("/models/")).labels
        assert labels.rename("socks", "Socks", dry_run=True)["effects"][0]["label"] == "socks"
        assert labels.rename("socks", "Socks")["changed"] == 1
        assert labels.merge(["tv"], "TV")["changed"] == 1
        assert labels.split("hats", ["caps"])["changed"] == 1
        assert labels.retire("TV")["changed"] == 1
        assert labels.revive("TV")["changed"] == 1
        assert [one["kind"] for one in labels.changes()["changes"]] == ["revive", "retire", "split", "merge", "rename"]
