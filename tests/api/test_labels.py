"""The labels of a model over HTTP: lists, searches, the features that vote for one, and changes."""

import asyncio
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from abound.api.routes import labels as routes
from abound.client import Client
from tests.support.replicas import until
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem

HAS_ARTIFACTS = True


def learn(service: Served, model: str, *instances: tuple[dict[str, float], str]) -> None:
    learned = [{"features": features, "labels": [label]} for features, label in instances]
    service.post(f"/models/{model}/learn", instances=learned)


def test_labels_in_the_order_seen(service: Served) -> None:
    name = fresh_model(service)
    seen = [f"b{i}" for i in range(20)] + ["a", "äö", "b"]
    learn(service, name, *(({"t": 1}, label) for label in [*seen, "äö", "äö"]))

    def labels(**query: object) -> tuple[list[str], int]:
        body = service.http.get(f"/models/{name}/labels", params=query).json()  # type: ignore[arg-type]
        assert body["learned"] == [3 if label == "äö" else 1 for label in body["labels"]]
        assert body["details"] == {}
        return body["labels"], body["total"]

    expected = [label for label in seen if label.startswith("b1")]
    assert labels() == (seen, 23)
    assert labels(limit=3) == (seen[:3], 23)
    assert labels(limit=3, offset=21) == (seen[21:], 23)
    assert labels(offset=100) == ([], 23)
    assert labels(prefix="b1") == (expected, 11)
    assert labels(prefix="b1", limit=2, offset=3) == (["b12", "b13"], 11)
    assert labels(prefix="Äo") == labels(contains="Ö", prefix="a") == (["äö"], 1)
    assert labels(prefix="B1", contains="o") == labels(contains="ÖX") == ([], 0)
    assert labels(contains="1", limit=2, offset=1) == (["b10", "b11"], 11)
    assert labels(prefix="b1", contains="9") == (["b19"], 1)


def test_search_and_order(service: Served) -> None:
    name = fresh_model(service)
    named = {"c1": "Café au lait", "c2": "New York", "c3": "éclair", "c4": None, "c5": "Zebra"}
    body = {"labels": [{"label": label, "name": text} for label, text in named.items()]}
    service.http.put(f"/models/{name}/labels", json=body).raise_for_status()

    def labels(**query: object) -> list[str]:
        return service.http.get(f"/models/{name}/labels", params=query).json()["labels"]  # type: ignore[arg-type]

    assert labels(contains="CAFE") == labels(contains="cafe\u0301 A") == labels(prefix="cafe") == ["c1"]
    assert labels(prefix="au") == []
    assert labels(contains="york") == labels(contains="new\u00a0y") == ["c2"]
    assert labels(sort="name") == ["c4", "c1", "c3", "c2", "c5"]
    assert labels(sort="name", limit=2, offset=1, contains="e") == ["c3", "c2"]
    body["labels"] = [{"label": "c2", "name": "Ärlanda"}, {"label": "c6", "name": "cafe noir"}]
    service.http.put(f"/models/{name}/labels", json=body).raise_for_status()
    assert labels(contains="york") == []
    assert labels(contains="cafe") == ["c1", "c6"]
    assert labels(sort="name")[:2] == ["c2", "c4"]
    learn(service, name, *(({"t": 1}, label) for label in ("c5", "c4", "c5", "c4", "c5")))
    assert labels(sort="count") == ["c5", "c4", "c1", "c2", "c3", "c6"]
    for wrong in ({"sort": "size"}, {"sort": "name", "offset": 30_000}):
        problem(service.http.get(f"/models/{name}/labels", params=wrong), 422, "invalid-field", list(wrong)[-1])


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_figures_of_a_label_cover_its_newest_events(service: Served, update: str) -> None:
    """The oracle asks what is ranked first before it teaches."""
    name, first = fresh_model(service, update=update), {"a": [], "b": [], "c": []}  # type: dict[str, list[str | None]]
    for at in range(150):
        label, features = "abc"[at % 7 % 3], {f"f{at % 5}": 1, f"g{at % 3}": 1}
        ranked = service.http.post(f"/models/{name}/classify", json={"features": features}).json()["labels"]
        first[label].append(ranked[0]["label"] if ranked else None)
        learn(service, name, (features, label))
    listed = service.http.get(f"/models/{name}/labels", params={"sort": "R@1"}).json()
    figures = dict(zip(listed["labels"], listed["recent"], strict=True))
    assert list(figures.values()) == sorted(figures.values())
    for label, answers in first.items():
        about = service.http.get(f"/models/{name}/labels/{label}").json()
        newest = answers[-100:]
        wrong = Counter(one for one in newest if one not in (label, None))
        assert about["n_recent"] == len(newest)
        assert about["recent"] == figures[label] == pytest.approx(newest.count(label) / len(newest))
        assert about["confused_with"] == wrong
        assert list(about["confused_with"].values()) == sorted(wrong.values(), reverse=True)
    assert sum(map(len, first.values())) == 150


def test_more_features_than_are_looked_at_in_one_go(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "SLICE", 16)
    name = fresh_model(service, rating=False)
    learn(service, name, *(({f"f{i}": 1, "all": 0.01 * (i + 1)}, "x" if i % 3 else "y") for i in range(100)))
    about = service.http.get(f"/models/{name}/labels/y", params={"limit": 1000}).json()
    found = {one["feature"] for one in about["features"]}
    assert {f"f{i}" for i in range(0, 100, 3)} <= found
    assert about["total"] == len(found) == len(about["features"])
    weights = [one["weight"] for one in about["features"]]
    assert weights == sorted(weights, reverse=True)
    body = {"features": {about["features"][0]["feature"]: 1}, "include": ["y"]}
    [alone] = service.http.post(f"/models/{name}/classify", json=body).json()["labels"]
    assert weights[0] == pytest.approx(alone["score"], rel=1e-6)
    problem(service.http.get(f"/models/{name}/labels/none"), 404, "unknown-label")
    few = service.http.get(f"/models/{name}/labels/y", params={"limit": 5}).json()
    assert few["features"] == about["features"][:5]


@pytest.mark.parametrize("label", ["..", ".", "../x", "%2E%2E", "a/b", "ü ?#%&=+", "<b>&", "x" * 512])
def test_any_label_can_be_asked_for(service: Served, label: str) -> None:
    name = fresh_model(service)
    learn(service, name, ({"f": 1}, label), ({"f": 1, "g": 1}, "other"))
    about = service.http.get(f"/models/{name}/label", params={"name": label}).json()
    figures = {"recent": 0.0, "n_recent": 1, "confused_with": {}}
    shown = {part: about[part] for part in ("features", "details", "aliases", "retired")}
    assert about == {"label": label, "learned": 1, "total": 1} | figures | shown
    assert [one["feature"] for one in about["features"]] == ["f"]
    with Client(service.url) as client:
        assert client.label(name, label, limit=1) == about
    if not label.startswith((".", "%")):  # what means another path cannot be a part of one
        request = service.http.build_request("GET", service.url)
        path = f"/models/{name}/labels/{quote(label, safe='')}"
        request.url = request.url.copy_with(raw_path=path.encode())
        assert service.http.send(request).json() == about


def test_a_burst_of_searches_is_bounded(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fresh_model(service)
    learn(service, name, ({"f": 1}, "x"))
    begun = 0
    go = asyncio.Event()

    async def search(*given: object) -> tuple[list[Any], int]:
        nonlocal begun
        begun += 1
        await go.wait()
        return [], 0

    async def burst() -> list[int]:
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url=service.url) as client:
            asked = [asyncio.create_task(client.get(f"/models/{name}/labels/x")) for _ in range(32)]
            await until(lambda: sum(one.done() for one in asked) == 28)
            go.set()
            return sorted([(await one).status_code for one in asked])

    monkeypatch.setattr(routes, "_voting_features", search)
    assert asyncio.run_coroutine_threadsafe(burst(), service.loop).result(90) == [200] * 4 + [503] * 28
    assert begun == 4
    monkeypatch.undo()
    assert service.http.get(f"/models/{name}/labels/x").status_code == 200


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
