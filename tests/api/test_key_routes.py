"""``/keys`` and ``/audit`` over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from abound.security import key_store
from abound.security.key import CreatedKey
from abound.store.client import Store
from tests.api.test_keys import bearer, make, until
from tests.support.served import Served, problem, served

FORWARDED = f"{'1' * 300}, 198.51.100.7"
"""Longer than what is kept: its end, which the nearest proxy wrote."""


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        problem(
            service.http.post("/keys", json={"scopes": ["admin"]}), 409, "conflict"
        )  # the first one: by the command
        assert service.http.get("/keys").json() == {"keys": []}
        yield service


@pytest.fixture(scope="module")
def admin(service: Served) -> CreatedKey:
    return make(service, "admin")


def works(service: Served, secret: str) -> bool:
    return service.http.get("/models", headers={"authorization": f"Bearer {secret}"}).status_code == 200


def test_a_key_is_made_rotated_and_revoked(service: Served, admin: CreatedKey) -> None:
    headers = bearer(admin)
    before = {key["id"]: key["state"] for key in service.http.get("/keys", headers=headers).json()["keys"]}
    terms = {"scopes": ["learn", "classify"], "models": ["default"], "description": "shop", "seconds": 3600}
    answer = service.http.post("/keys", json=terms | {"rate": "5/second", "source_rate": "2/second"}, headers=headers)
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert (made["scopes"], made["models"], made["description"]) == (["classify", "learn"], ["default"], "shop")
    assert made["expires"] - made["created"] == pytest.approx(3600)
    assert (made["rate"], made["source_rate"], made["state"]) == ("5/second", "2/second", "valid")
    until(lambda: works(service, made["key"]))
    answer = service.http.post(f"/keys/{made['id']}/rotate", json={"grace": 0}, headers=headers)
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    rotated = answer.json()
    assert rotated["replaces"] == made["id"]
    until(lambda: works(service, rotated["key"]) and not works(service, made["key"]))
    assert service.http.delete(f"/keys/{rotated['id']}", headers=headers).status_code == 204
    until(lambda: not works(service, rotated["key"]))
    listed = service.http.get("/keys", headers=headers)
    assert before[admin.key.id] == "valid"
    assert {key["id"]: key["state"] for key in listed.json()["keys"]} == before | {
        made["id"]: "expired", rotated["id"]: "revoked",
    }  # fmt: skip
    for secret in (admin.secret, made["key"], rotated["key"]):
        assert secret[-43:] not in listed.text
    for word in ("digest", admin.key.digest):
        assert word not in listed.text
    problem(service.http.delete(f"/keys/{'0' * 12}", headers=headers), 404, "unknown-key")
    problem(service.http.post(f"/keys/{rotated['id']}/rotate", headers=headers), 404, "unknown-key")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes[0]"),
        ({"scopes": "admin"}, "scopes"),
        ({"scopes": ["learn"], "models": []}, "models"),
        ({"scopes": ["learn"], "models": ["a/b"]}, "models"),
        ({"scopes": ["learn"], "seconds": 0}, "seconds"),
        ({"scopes": ["learn"], "seconds": 1e12}, "seconds"),
        ({"scopes": ["learn"], "rate": "fast"}, "rate"),
        ({"scopes": ["learn"], "source_rate": "0/second"}, "source_rate"),
        ({"scopes": ["learn"], "description": "a\nb"}, "description"),
        ({"scopes": ["learn"], "description": "x" * 257}, "description"),
        ({"scopes": ["learn"], "digest": "00"}, "digest"),
    ],
)
def test_a_key_that_cannot_be_is_refused(service: Served, admin: CreatedKey, body: Any, field: str) -> None:
    problem(service.http.post("/keys", json=body, headers=bearer(admin)), 422, "invalid-field", field)


def test_every_act_is_in_the_audit_log_with_who_did_it(service: Served, admin: CreatedKey) -> None:
    headers = bearer(admin) | {"x-request-id": "audited", "x-forwarded-for": FORWARDED}
    service.http.put("/models/audited", json={"margin": 0.1}, headers=headers)
    service.http.put("/models/audited", json={"margin": 0.1}, headers=headers)  # changes nothing, is nothing
    service.http.put("/models/audited", json={"margin": 0.2}, headers=headers)
    service.http.put("/models/audited", json={"margin": -1}, headers=headers)
    service.http.post("/models/audited/learn", json={"features": {"f": 1}, "labels": ["a"]}, headers=headers)
    service.http.put("/models/audited", json={"boolean": True}, headers=headers)
    service.http.delete("/models/audited", headers=headers)
    service.http.delete("/models/audited", headers=headers)  # 404: there was nothing to act on
    answer = service.http.get("/audit", params={"limit": 1000}, headers=headers)
    acts = [act for act in answer.json()["acts"] if act["request_id"] == "audited"]
    assert [(act["action"], act["outcome"], act["details"].get("config")) for act in reversed(acts)] == [
        ("model.create", "done", {"margin": 0.1}),
        ("model.configure", "done", {"margin": 0.2}),
        ("model.configure", "refused", {"boolean": True}),
        ("model.delete", "done", None),
    ]
    for act in acts:
        assert (act["key"], act["address"], act["forwarded"]) == (admin.key.id, "127.0.0.1", FORWARDED[-256:])
    assert acts[0]["details"] == {"model": "audited", "learned": 1}
    assert admin.secret[-43:] not in answer.text
    newest = service.http.get("/audit", params={"limit": 1}, headers=headers).json()["acts"]
    older = service.http.get("/audit", params={"limit": 1, "before": newest[0]["id"]}, headers=headers).json()["acts"]
    assert older[0]["at"] <= newest[0]["at"]
    assert older != newest


def test_keys_made_over_http_are_in_it_too(service: Served, admin: CreatedKey) -> None:
    headers = bearer(admin)
    made = service.http.post("/keys", json={"scopes": ["learn"]}, headers=headers).json()
    service.http.delete(f"/keys/{made['id']}", headers=headers)
    acts = service.http.get("/audit", params={"limit": 2}, headers=headers).json()["acts"]
    assert [(act["action"], act["details"]["key"], act["key"]) for act in acts] == [
        ("key.revoke", made["id"], admin.key.id),
        ("key.create", made["id"], admin.key.id),
    ]
    assert made["key"][-43:] not in json.dumps(acts)


def test_a_change_that_may_be_lost_is_503_and_can_be_repeated(
    service: Served, admin: CreatedKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unconfirmed(store: Store, least: int) -> bool:
        return False

    changes = (
        ("POST", "/keys", {"scopes": ["learn"]}, 201),
        ("POST", f"/keys/{make(service, 'learn').key.id}/rotate", {"grace": 60}, 201),
        ("DELETE", f"/keys/{make(service, 'learn').key.id}", None, 204),
    )
    headers = bearer(admin)
    for method, path, body, status in changes:
        with monkeypatch.context() as patch:
            patch.setattr(key_store, "is_replicated", unconfirmed)
            refused = service.http.request(method, path, json=body, headers=headers)
        assert "a failover could undo it; repeat it" in problem(refused, 503, "store-unavailable")["detail"]
        assert refused.headers["retry-after"] == "1"
        assert service.http.request(method, path, json=body, headers=headers).status_code == status
    acts = service.http.get("/audit", params={"limit": 6}, headers=headers).json()["acts"]
    assert {act["outcome"] for act in acts} == {"done"}


def test_the_store_away_is_503_and_not_less(service: Served) -> None:
    with served() as other:
        made = make(other, "admin")
        other.server.kill()
        for method, path in (("GET", "/keys"), ("GET", "/audit"), ("POST", "/keys"), ("DELETE", f"/keys/{'0' * 12}")):
            body = {"scopes": ["learn"]} if method == "POST" else None
            problem(other.http.request(method, path, json=body, headers=bearer(made)), 503, "store-unavailable")
