"""The labels of a model over HTTP: lists, searches, and the features that vote for one."""

import asyncio
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from abound.api.routes import labels as routes
from abound.client import Client
from tests.support.replicas import until
from tests.support.served import Served, fresh_model, problem


def learn(service: Served, model: str, *instances: tuple[dict[str, float], str]) -> None:
    body = {"instances": [{"features": features, "labels": [label]} for features, label in instances]}
    service.http.post(f"/models/{model}/learn", json=body).raise_for_status()


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
