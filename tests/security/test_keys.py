"""Keys over HTTP: who gets in, who does not, how soon a change counts, and what a cut-off replica goes on with."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from abound.security import key_store
from abound.security.key import CreatedKey, KeyTerms
from abound.store.client import Store
from tests.support.job_worker import until
from tests.support.served import NDJSON, Served, bearer, fresh_model, make_key, ndjson, on_store, problem, served

INSTANCE = {"features": {"wheat": 1}}
LABELLED = INSTANCE | {"labels": ["grain"]}
FORWARDED = f"{'1' * 300}, 198.51.100.7"
"""Longer than what is kept: its end, which the nearest proxy wrote."""


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:  # the first key is never made over HTTP
        problem(service.http.post("/keys", json={"scopes": ["admin"]}), 409, "conflict")
        assert service.http.get("/keys").json() == {"keys": []}
        yield service


@pytest.fixture(scope="module")
def admin(service: Served) -> CreatedKey:
    return make_key(service, "admin", description="of the tests")


@pytest.fixture
def model(service: Served, admin: CreatedKey) -> str:
    service.http.headers.update(bearer(admin))
    try:
        return fresh_model(service)
    finally:
        del service.http.headers["authorization"]


def ask(service: Served, made: CreatedKey | str) -> httpx.Response:
    secret = made if isinstance(made, str) else made.secret
    return service.http.get("/models", headers={"authorization": f"Bearer {secret}"})


def created(service: Served, *scopes: str, **terms: Any) -> CreatedKey:
    return on_store(service.server, lambda store: key_store.create(store, KeyTerms(scopes, **terms)))


def test_with_a_key_every_route_but_health_asks_for_one(service: Served, admin: CreatedKey) -> None:
    open_paths = ["/", "/web/0/app.js", "/livez", "/readyz", "/openapi.json", "/docs", "/docs/swagger-ui.css"]
    for path in open_paths:
        assert service.http.get(path).status_code == 200, path
    assert service.http.get("/readyz").json()["keys"]
    tried = 0
    for path, item in service.http.get("/openapi.json").json()["paths"].items():
        if path in open_paths:
            continue
        for method in (*item, "options"):
            answer = service.http.request(method, path.replace("{model}", "default").replace("{", "").replace("}", ""))
            problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == 'Bearer realm="abound"'
            tried += 1
    assert tried > 20
    problem(service.http.get("/nothing"), 401)


@pytest.mark.parametrize(
    "header",
    [
        "bearer x",
        "Basic YTpi",
        "abk_000000000000_" + "A" * 43,
        "Bearer abk_000000000000_" + "A" * 43,
        "Bearer " + "x" * 10_000,
    ],
)
def test_what_is_no_key_opens_nothing(service: Served, admin: CreatedKey, header: str) -> None:
    answer = service.http.post("/classify", json=INSTANCE, headers={"authorization": header})
    problem(answer, 401, "invalid-key")
    assert answer.headers["www-authenticate"] == 'Bearer realm="abound", error="invalid_token"'


def test_another_secret_under_the_same_id_opens_nothing(service: Served, admin: CreatedKey) -> None:
    last = "A" if admin.secret[-2] != "A" else "B"
    answer = ask(service, admin.secret[:-2] + last + admin.secret[-1])
    assert problem(answer, 401, "invalid-key")["detail"] == "there is no such key"


@pytest.mark.parametrize("scopes", [("classify",), ("learn",), ("classify", "learn"), ("admin",)], ids="+".join)
def test_scopes(service: Served, model: str, scopes: tuple[str, ...]) -> None:
    """Each request with the scope that it needs; a key for all models reads whatever it has."""
    headers = bearer(make_key(service, *scopes))
    told = service.http.get("/models", headers=headers).json()["key"]
    assert told["all_models"]
    assert set(told["scopes"]) == ({"classify", "learn", "admin"} if "admin" in scopes else {*scopes})
    for method, path, body, needs in (
        ("POST", f"/models/{model}/classify", INSTANCE, "classify"),
        ("POST", f"/models/{model}/learn", LABELLED, "learn"),
        ("GET", f"/models/{model}", None, None),
        ("GET", "/metrics", None, None),
        ("GET", f"/models/{model}/events", None, "learn"),
        ("GET", "/keys", None, "admin"),
        ("PUT", f"/models/{model}", {"w_min": 0.02}, "admin"),
        ("DELETE", f"/models/{model}", None, "admin"),
    ):
        answer = service.http.request(method, path, json=body, headers=headers)
        if needs in (None, *scopes) or "admin" in scopes:
            assert answer.is_success, (path, answer.text)
        else:
            assert problem(answer, 403, "forbidden")["scope"] == needs
            assert f'error="insufficient_scope", scope="{needs}"' in answer.headers["www-authenticate"]
    if "admin" not in scopes:
        streamed = service.http.post(f"/models/{model}/learn", content=ndjson(LABELLED), headers=headers | NDJSON)
        assert streamed.status_code == (200 if "learn" in scopes else 403)


def test_a_similar_name_is_told_only_to_a_key_for_all_models(service: Served, model: str) -> None:
    missing = f"{model}x"
    hint = f"; did you mean {model}?"
    for made, told in ((make_key(service, "admin", models=[missing]), ""), (make_key(service, "admin"), hint)):
        for method, path in (("GET", f"/models/{missing}"), ("POST", f"/models/{missing}/classify")):
            answer = service.http.request(method, path, json=INSTANCE, headers=bearer(made))
            detail = problem(answer, 404, "unknown-model")["detail"]
            assert detail == f"there is no model {missing!r}{told}"


def test_a_key_for_some_models_sees_and_changes_no_other(service: Served, admin: CreatedKey, model: str) -> None:
    headers = bearer(make_key(service, "admin", models=[model]))
    assert service.http.post(f"/models/{model}/learn", json=LABELLED, headers=headers).status_code == 200
    assert service.http.put(f"/models/{model}", json={"w_min": 0.03}, headers=headers).status_code == 200
    listed = service.http.get("/models", headers=headers).json()
    assert ([one["name"] for one in listed["models"]], listed["key"]["all_models"]) == ([model], False)
    for method, path, body in (
        ("POST", "/classify", INSTANCE),
        ("POST", "/models/default/learn", LABELLED),
        ("GET", "/models/default", None),
        ("GET", "/models/default/labels", None),
        ("GET", "/models/no-such-model", None),
        ("PUT", "/models/new", {}),
        ("DELETE", "/models/default", None),
    ):
        refused = problem(service.http.request(method, path, json=body, headers=headers), 403, "forbidden")
        assert refused["model"] == (path.split("/")[2] if path.startswith("/models") else "default")
    for path in ("/metrics", "/keys", "/audit"):
        problem(service.http.get(path, headers=headers), 403, "forbidden")

    def requests(key: dict[str, str]) -> Any:
        """How many requests were classified, of all models together."""
        return service.http.get(f"/models/{model}/stats", headers=key).json()["classify"]

    until(lambda: requests(bearer(admin)) is not None)
    assert requests(headers) is None


def test_a_new_key_counts_and_a_revoked_one_does_not_within_a_second(service: Served, admin: CreatedKey) -> None:
    made = created(service, "classify")
    until(lambda: ask(service, made).status_code == 200, 15)  # about a second on a machine that is free
    on_store(service.server, lambda store: key_store.revoke(store, made.key.id))
    until(lambda: ask(service, made).status_code == 401, 15)
    assert "was revoked" in problem(ask(service, made), 401, "invalid-key")["detail"]


def test_a_key_ends_with_its_life(service: Served, admin: CreatedKey) -> None:
    made = created(service, "classify", seconds=5)
    until(lambda: "has expired" in ask(service, made).text)
    problem(ask(service, made), 401, "invalid-key")


def test_when_a_key_was_used_is_noted(service: Served, admin: CreatedKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abound.security.key_ring.NOTE_SECONDS", 0.0)
    used, unused = make_key(service, "classify"), created(service, "classify")

    def noted() -> dict[str, float | None]:
        return {one.key.id: one.used for one in on_store(service.server, key_store.all_keys)}

    until(lambda: noted()[used.key.id] is not None)
    assert abs((noted()[used.key.id] or 0) - time.time()) < 60
    assert noted()[unused.key.id] is None


def test_a_body_that_is_not_read_does_not_disturb_the_next_request(service: Served, admin: CreatedKey) -> None:
    body = b'{"text": "' + b"x" * 300_000 + b'"}'
    for _ in range(3):
        problem(service.http.post("/classify", content=body), 401)
        assert ask(service, admin).status_code == 200


def test_a_key_is_made_rotated_and_revoked(service: Served, admin: CreatedKey) -> None:
    headers = bearer(admin)
    before = {key["id"]: key["state"] for key in service.http.get("/keys", headers=headers).json()["keys"]}
    terms = {"scopes": ["learn", "classify"], "models": ["default"], "description": "shop", "seconds": 3600}
    answer = service.http.post("/keys", json=terms | {"rate": "5/second", "source_rate": "2/second"}, headers=headers)
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    made = answer.json()
    assert (made["scopes"], made["models"], made["description"]) == (["classify", "learn"], ["default"], "shop")
    assert made["expires"] - made["created"] == pytest.approx(3600)
    assert (made["rate"], made["source_rate"], made["state"]) == ("5/second", "2/second", "valid")
    until(lambda: ask(service, made["key"]).status_code == 200)
    answer = service.http.post(f"/keys/{made['id']}/rotate", json={"grace": 0}, headers=headers)
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    rotated = answer.json()
    assert rotated["replaces"] == made["id"]
    until(lambda: (ask(service, rotated["key"]).status_code, ask(service, made["key"]).status_code) == (200, 401))
    assert service.http.delete(f"/keys/{rotated['id']}", headers=headers).status_code == 204
    until(lambda: ask(service, rotated["key"]).status_code == 401)
    listed = service.http.get("/keys", headers=headers)
    assert before[admin.key.id] == "valid"
    assert {key["id"]: key["state"] for key in listed.json()["keys"]} == before | {
        made["id"]: "expired", rotated["id"]: "revoked",
    }  # fmt: skip
    for word in (*(secret[-43:] for secret in (admin.secret, made["key"], rotated["key"])), "digest", admin.key.digest):
        assert word not in listed.text
    problem(service.http.delete(f"/keys/{'0' * 12}", headers=headers), 404, "unknown-key")
    problem(service.http.post(f"/keys/{rotated['id']}/rotate", headers=headers), 404, "unknown-key")
    acts = service.http.get("/audit", params={"limit": 5}, headers=headers)
    assert [(act["action"], act["outcome"], act["details"]["key"], act["key"]) for act in acts.json()["acts"][2:]] == [
        ("key.revoke", "done", rotated["id"], admin.key.id),
        ("key.rotate", "done", made["id"], admin.key.id),
        ("key.create", "done", made["id"], admin.key.id),
    ]
    assert made["key"][-43:] not in acts.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scopes"),
        ({"scopes": ["root"]}, "scopes[0]"),
        ({"models": []}, "models"),
        ({"models": ["a/b"]}, "models"),
        ({"seconds": 0}, "seconds"),
        *(({"rate": rate}, "rate") for rate in ("fast", "", "5", "9999999999/second", "9/second;2/minute")),
        ({"source_rate": "0/second"}, "source_rate"),
        ({"description": "a\nb"}, "description"),
        ({"digest": "00"}, "digest"),
    ],
)
def test_a_key_that_cannot_be_is_refused(service: Served, admin: CreatedKey, body: Any, field: str) -> None:
    whole = body if field.startswith("scopes") else {"scopes": ["learn"]} | body
    problem(service.http.post("/keys", json=whole, headers=bearer(admin)), 422, "invalid-field", field)


def test_every_act_is_in_the_audit_log_with_who_did_it(service: Served, admin: CreatedKey) -> None:
    headers = bearer(admin) | {"x-request-id": "audited", "x-forwarded-for": FORWARDED}
    for config in ({"margin": 0.1}, {"margin": 0.1}, {"margin": 0.2}, {"margin": -1}):  # the second changes nothing
        service.http.put("/models/audited", json=config, headers=headers)
    service.http.post("/models/audited/learn", json=LABELLED, headers=headers)
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


def test_a_change_that_may_be_lost_is_503_and_can_be_repeated(service, admin, monkeypatch):
    async def unconfirmed(store: Store, least: int) -> bool:
        return False

    changes = (
        ("POST", "/keys", {"scopes": ["learn"]}, 201),
        ("POST", f"/keys/{make_key(service, 'learn').key.id}/rotate", {"grace": 60}, 201),
        ("DELETE", f"/keys/{make_key(service, 'learn').key.id}", None, 204),
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


def test_a_damaged_key_opens_nothing_and_disturbs_no_other() -> None:
    with served() as service:
        good, bad = make_key(service, "classify"), make_key(service, "classify")
        with service.server.client() as client:
            for name, value in (("x", b"not json"), ("y", b"{}"), (bad.key.id, b"")):
                client.hset(key_store.KEYS_KEY, name, value)
            odd = {"id": "z", "digest": "xyz", "scopes": ["admin"], "rate": "much"}
            client.hset(key_store.KEYS_KEY, "z", json.dumps(odd))
            client.set(key_store.VERSION_KEY, "another")
        until(lambda: ask(service, bad).status_code == 401)
        assert ask(service, good).status_code == 200
        problem(service.http.get("/models"), 401, "unauthorized")


def test_cut_off_it_goes_on_with_the_keys_that_it_knows_and_changes_none() -> None:
    with served() as service:
        made, other, admin = (make_key(service, scope) for scope in ("classify", "learn", "admin"))
        service.server.kill()
        until(lambda: service.http.get("/readyz").json()["log"] == "cut off")
        assert service.http.post("/classify", json=INSTANCE, headers=bearer(made)).status_code == 200
        problem(service.http.post("/classify", json=INSTANCE, headers=bearer(other)), 403)
        problem(service.http.post("/classify", json=INSTANCE), 401)
        problem(service.http.post("/learn", json=LABELLED, headers=bearer(other)), 503)
        for method, path in (("GET", "/keys"), ("GET", "/audit"), ("POST", "/keys"), ("DELETE", f"/keys/{'0' * 12}")):
            body = {"scopes": ["learn"]} if method == "POST" else None
            problem(service.http.request(method, path, json=body, headers=bearer(admin)), 503, "store-unavailable")
        service.server.start()
        until(lambda: service.http.post("/learn", json=LABELLED, headers=bearer(other)).status_code == 200)
        assert ask(service, make_key(service, "classify")).status_code == 200


def test_revoking_the_only_key_does_not_open_the_service_and_clearing_does() -> None:
    with served() as service:
        assert service.http.get("/models").status_code == 200
        made = make_key(service, "admin")
        on_store(service.server, lambda store: key_store.revoke(store, made.key.id))
        until(lambda: ask(service, made).status_code == 401)
        problem(service.http.get("/models"), 401, "unauthorized")
        with service.server.client() as client:  # lost, not cleared
            client.delete(key_store.KEYS_KEY, key_store.VERSION_KEY)
        until(lambda: problem(ask(service, made), 401)["detail"] == "there is no such key")
        problem(service.http.get("/models"), 401, "unauthorized")
        on_store(service.server, key_store.clear)
        until(lambda: service.http.get("/models").status_code == 200)


def test_without_a_key_browsers_are_answered_only_under_names_of_this_machine() -> None:
    with served() as service:
        assert service.http.get("/models", headers={"host": "any.example"}).status_code == 200  # no browser
        service.http.headers["accept-language"] = "fi"
        for host in ("127.0.0.1:80", "localhost", "[::1]:8000", "a.localhost:1", "10.0.0.1"):
            assert service.http.post("/classify", json=INSTANCE, headers={"host": host}).status_code == 200, host
            assert service.http.get("/models", headers={"host": host}).status_code == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "[evil", ""):
            problem(service.http.post("/classify", json=INSTANCE, headers={"host": host}), 403, "forbidden")
            problem(service.http.get("/models", headers={"host": host}), 403, "forbidden")


def test_without_a_key_pages_of_others_are_not_answered() -> None:
    with served() as service:
        own = f"http://127.0.0.1:{service.port}"
        for origin in (own, "http://localhost:3000", "http://127.0.0.1", "https://[::1]:1"):
            headers = {"origin": origin}
            assert service.http.post("/learn", json=LABELLED, headers=headers).status_code == 200, origin
        for origin in ("http://evil.example", "null", "http://10.0.0.9", "http://localhost.evil.example", "file://"):
            headers = {"origin": origin}
            problem(service.http.post("/learn", json=LABELLED, headers=headers), 403, "forbidden")
            problem(service.http.post("/models/default/snapshots", headers=headers), 403, "forbidden")
        headers = bearer(make_key(service, "learn")) | {"origin": "http://evil.example"}
        assert service.http.post("/learn", json=LABELLED, headers=headers).status_code == 200


def test_without_a_key_images_frames_and_links_of_other_pages_reach_nothing_and_start_nothing() -> None:
    with served() as service:
        service.http.post("/learn", json=LABELLED).raise_for_status()
        service.http.headers["accept-language"] = "en"
        asked = ("/models/default/label?name=grain", "/models/default/label?name=none", "/models", "/metrics")
        for site in ("cross-site", "same-site"):
            for path in (*asked, "/models/default/export"):
                problem(service.http.get(path, headers={"sec-fetch-site": site}), 403, "forbidden")
            for path in ("/", "/docs", "/livez"):
                assert service.http.get(path, headers={"sec-fetch-site": site}).status_code == 200, path
        assert [act for act in service.http.get("/audit").json()["acts"] if act["action"] == "model.export"] == []
        for site in ("same-origin", "none"):
            assert service.http.get("/models", headers={"sec-fetch-site": site}).status_code == 200
        headers = {"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}  # a page of this machine
        assert service.http.get("/models", headers=headers).status_code == 200


def test_an_exposed_service_without_a_key_lets_nobody_in_and_an_insecure_one_everybody() -> None:
    with served(listen_on="0.0.0.0") as service:
        problem(service.http.get("/models"), 401, "unauthorized")
        made = make_key(service, "classify")
        assert service.http.post("/classify", json=INSTANCE, headers=bearer(made)).status_code == 200
    with served(listen_on="0.0.0.0", insecure=True) as service:
        assert service.http.get("/models", headers={"host": "any.example"}).status_code == 200
