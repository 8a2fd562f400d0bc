"""The labels of a model over HTTP: lists, searches, and the features that vote for one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from abound.api.routes import labels as routes
from abound.client import Client
from tests.support.replicas import until
from tests.support.served import Served, fresh_model, problem, served


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


def learn(service: Served, model: str, *instances: tuple[dict[str, float], str]) -> None:
    body = {"instances": [{"features": features, "labels": [label]} for features, label in instances]}
    service.http.post(f"/models/{model}/learn", json=body).raise_for_status()


def test_labels_in_the_order_seen(service: Served) -> None:
    name = fresh_model(service)
    seen = [f"b{i}" for i in range(20)] + ["a", "äö", "b"]
    learn(service, name, *(({"t": 1}, label) for label in [*seen, "äö", "äö"]))

    def labels(**query: object) -> dict[str, Any]:
        body: dict[str, Any] = service.http.get(f"/models/{name}/labels", params=query).json()  # type: ignore[arg-type]
        return body

    once = [1] * 23
    assert labels() == {"labels": seen, "learned": [*once[:21], 3, 1], "total": 23, "details": {}}
    assert labels(limit=3) == {"labels": seen[:3], "learned": once[:3], "total": 23, "details": {}}
    assert labels(limit=3, offset=21) == {"labels": seen[21:], "learned": [3, 1], "total": 23, "details": {}}
    assert labels(offset=100) == {"labels": [], "learned": [], "total": 23, "details": {}}
    expected = [label for label in seen if label.startswith("b1")]
    assert labels(prefix="b1") == {"labels": expected, "learned": once[:11], "total": 11, "details": {}}
    assert labels(prefix="b1", limit=2, offset=3) == {
        "labels": ["b12", "b13"],
        "learned": [1, 1],
        "total": 11,
        "details": {},
    }
    assert labels(prefix="ä") == {"labels": ["äö"], "learned": [3], "total": 1, "details": {}}
    assert labels(prefix="B") == {"labels": [], "learned": [], "total": 0, "details": {}}
    assert labels(contains="ÖX") == {"labels": [], "learned": [], "total": 0, "details": {}}
    assert labels(contains="Ö") == {"labels": ["äö"], "learned": [3], "total": 1, "details": {}}
    assert labels(contains="1", limit=2, offset=1) == {
        "labels": ["b10", "b11"],
        "learned": [1, 1],
        "total": 11,
        "details": {},
    }
    assert labels(prefix="b1", contains="9") == {"labels": ["b19"], "learned": [1], "total": 1, "details": {}}


def test_features_that_point_to_a_label_are_those_that_explain_it(service: Served) -> None:
    name = fresh_model(service, rating=False)
    learn(
        service, name, ({"wheat": 3, "price": 1}, "grain"), ({"oil": 1, "price": 2}, "crude"), ({"wheat": 1}, "grain")
    )
    about = service.http.get(f"/models/{name}/labels/grain").json()
    assert (about["label"], about["learned"], about["total"]) == ("grain", 2, 2)
    assert [one["feature"] for one in about["features"]] == ["wheat", "price"]
    for one in about["features"]:
        body = {"features": {one["feature"]: 1}, "include": ["grain"]}
        [alone] = service.http.post(f"/models/{name}/classify", json=body).json()["labels"]
        assert one["weight"] == pytest.approx(alone["score"], rel=1e-6)
    few = service.http.get(f"/models/{name}/labels/grain", params={"limit": 1}).json()
    assert (few["features"], few["total"]) == (about["features"][:1], 2)


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
    few = service.http.get(f"/models/{name}/labels/y", params={"limit": 5}).json()
    assert few["features"] == about["features"][:5]


@pytest.mark.parametrize("label", ["a/b", "ü ?#%", "<b>&", "x" * 512])
def test_any_label_can_be_asked_for(service: Served, label: str) -> None:
    name = fresh_model(service)
    learn(service, name, ({"f": 1}, label))
    request = service.http.build_request("GET", service.url)
    request.url = request.url.copy_with(raw_path=f"/models/{name}/labels/{quote(label, safe='')}".encode())
    assert service.http.send(request).json()["label"] == label


@pytest.mark.parametrize("label", ["..", ".", "../x", "%2E%2E", "a/b", "ü ?#%&=+", "x" * 512])
def test_any_label_can_be_asked_for_by_name(service: Served, label: str) -> None:
    name = fresh_model(service)
    learn(service, name, ({"f": 1}, label), ({"f": 1, "g": 1}, "other"))
    about = service.http.get(f"/models/{name}/label", params={"name": label}).json()
    assert about == {"label": label, "learned": 1, "total": 1} | {part: about[part] for part in ("features", "details")}
    assert [one["feature"] for one in about["features"]] == ["f"]
    with Client(service.url) as client:
        assert client.label(name, label, limit=1) == about


def test_what_is_not_there_is_said(service: Served) -> None:
    problem(service.http.get("/models/default/labels/none"), 404, "unknown-label")
    problem(service.http.get("/models/nope/labels/none"), 404, "unknown-model")
    problem(service.http.get("/models/default/labels/none", params={"limit": 0}), 422, "invalid-field", "limit")
    problem(service.http.get("/models/default/label", params={"name": "none"}), 404, "unknown-label")
    problem(service.http.get("/models/default/label"), 422, "invalid-field", "name")


def test_searches_are_bounded(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fresh_model(service)
    learn(service, name, ({"f": 1}, "x"))
    monkeypatch.setattr(routes.searches, "count", routes.searches.most)
    problem(service.http.get(f"/models/{name}/labels/x"), 503, "overloaded")
    monkeypatch.setattr(routes.searches, "count", 0)
    assert service.http.get(f"/models/{name}/labels/x").status_code == 200
    problem(service.http.get(f"/models/{name}/labels/y"), 404)
    assert routes.searches.count == 0


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
