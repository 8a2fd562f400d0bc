"""Keys over HTTP: who gets in, who does not, how soon a change counts, and what a cut-off replica goes on with."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from abound.security import key_store
from abound.security.key import CreatedKey, KeyTerms
from abound.store.client import Store
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem, served

INSTANCE = {"features": {"wheat": 1}}
LABELLED = INSTANCE | {"labels": ["grain"]}


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


def on_store(server_url: str, work: Callable[[Store], Any]) -> Any:
    async def run() -> Any:
        store = Store(server_url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def make(service: Served, *scopes: str, **terms: Any) -> CreatedKey:
    """A key that the service has taken up."""
    made: CreatedKey = on_store(service.server.url, lambda store: key_store.create(store, KeyTerms(scopes, **terms)))
    until(lambda: service.http.get("/models").status_code == 401 and ask(service, made).status_code != 401)
    return made


def ask(service: Served, made: CreatedKey) -> httpx.Response:
    return service.http.get("/models", headers=bearer(made))


def bearer(made: CreatedKey) -> dict[str, str]:
    return {"authorization": f"Bearer {made.secret}"}


def until(condition: Callable[[], bool], seconds: float = 60.0) -> float:
    """Wait for something; how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds
        time.sleep(0.01)
    return time.monotonic() - started


@pytest.fixture(scope="module")
def admin(service: Served) -> CreatedKey:
    return make(service, "admin", description="of the tests")


@pytest.fixture
def model(service: Served, admin: CreatedKey) -> str:
    service.http.headers.update(bearer(admin))
    try:
        return fresh_model(service)
    finally:
        del service.http.headers["authorization"]


def test_a_key_for_one_model_does_not_see_the_requests_of_all(service: Served, admin: CreatedKey) -> None:
    limited = make(service, "classify", models=["default"])

    def requests(key: CreatedKey) -> Any:
        return service.http.get("/models/default/stats", headers=bearer(key)).json()["classify"]

    until(lambda: requests(admin) is not None)
    assert requests(limited) is None


def test_with_a_key_every_route_but_health_asks_for_one(service: Served, admin: CreatedKey) -> None:
    open_paths = ["/livez", "/readyz", "/openapi.json", "/docs", "/docs/swagger-ui.css"]
    for path in open_paths:
        assert service.http.get(path).status_code == 200, path
    assert service.http.get("/readyz").json()["keys"]
    document = service.http.get("/openapi.json").json()
    tried = 0
    for path, item in document["paths"].items():
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
        "Bearer",
        "bearer x",
        "Basic YTpi",
        "abk_000000000000_" + "A" * 43,
        "Bearer abk_000000000000_" + "A" * 43,
        "Bearer " + "x" * 10_000,
        "Bearer abk_000000000000_" + "A" * 42,
    ],
)
def test_what_is_no_key_opens_nothing(service: Served, admin: CreatedKey, header: str) -> None:
    answer = service.http.post("/classify", json=INSTANCE, headers={"authorization": header})
    problem(answer, 401, "invalid-key")
    assert answer.headers["www-authenticate"] == 'Bearer realm="abound", error="invalid_token"'


def test_another_secret_under_the_same_id_opens_nothing(service: Served, admin: CreatedKey) -> None:
    last = "A" if admin.secret[-2] != "A" else "B"
    wrong = admin.secret[:-2] + last + admin.secret[-1]
    answer = service.http.get("/models", headers={"authorization": f"Bearer {wrong}"})
    assert problem(answer, 401, "invalid-key")["detail"] == "there is no such key"


def test_scopes(service: Served, model: str) -> None:
    classifying, learning = make(service, "classify"), make(service, "learn")
    both = make(service, "classify", "learn")
    for made, may_classify, may_learn in ((classifying, 1, 0), (learning, 0, 1), (both, 1, 1)):
        classified = service.http.post(f"/models/{model}/classify", json=INSTANCE, headers=bearer(made))
        learned = service.http.post(f"/models/{model}/learn", json=LABELLED, headers=bearer(made))
        streamed = service.http.post(f"/models/{model}/learn", content=ndjson(LABELLED), headers=bearer(made) | NDJSON)
        if may_classify:
            assert classified.status_code == 200
        else:
            assert problem(classified, 403, "forbidden")["scope"] == "classify"
            assert 'error="insufficient_scope", scope="classify"' in classified.headers["www-authenticate"]
        if may_learn:
            assert learned.status_code == 200
            assert lines(streamed)[0]["applied"]
        else:
            assert problem(learned, 403, "forbidden")["scope"] == "learn"
            problem(streamed, 403, "forbidden")
        assert service.http.get(f"/models/{model}", headers=bearer(made)).status_code == 200
        for method, path in (("PUT", f"/models/{model}"), ("DELETE", f"/models/{model}"), ("GET", "/keys")):
            refused = problem(service.http.request(method, path, headers=bearer(made)), 403, "forbidden")
            assert refused["scope"] == "admin"


def test_admin_may_everything(service: Served, admin: CreatedKey, model: str) -> None:
    for method, path, body in (
        ("POST", f"/models/{model}/learn", LABELLED),
        ("POST", f"/models/{model}/classify", INSTANCE),
        ("PUT", f"/models/{model}", {"w_min": 0.02}),
        ("GET", "/metrics", None),
        ("DELETE", f"/models/{model}", None),
    ):
        assert service.http.request(method, path, json=body, headers=bearer(admin)).is_success, path


def test_a_key_is_told_what_it_may_do(service: Served, model: str) -> None:
    for made, scopes, all_models in (
        (make(service, "classify"), ["classify"], True),
        (make(service, "learn", "classify", models=[model]), ["classify", "learn"], False),
        (make(service, "admin"), ["classify", "learn", "admin"], True),
    ):
        assert ask(service, made).json()["key"] == {"scopes": scopes, "all_models": all_models}


def test_a_similar_name_is_told_only_to_a_key_for_all_models(service: Served, model: str) -> None:
    missing = f"{model}x"
    hint = f"; did you mean {model}?"
    for made, told in ((make(service, "admin", models=[missing]), ""), (make(service, "admin"), hint)):
        for method, path in (("GET", f"/models/{missing}"), ("POST", f"/models/{missing}/classify")):
            answer = service.http.request(method, path, json=INSTANCE, headers=bearer(made))
            detail = problem(answer, 404, "unknown-model")["detail"]
            assert detail == f"there is no model {missing!r}{told}"


def test_a_key_for_some_models_sees_and_changes_no_other(service: Served, model: str) -> None:
    own = make(service, "admin", models=[model])
    headers = bearer(own)
    assert service.http.post(f"/models/{model}/learn", json=LABELLED, headers=headers).status_code == 200
    assert service.http.put(f"/models/{model}", json={"w_min": 0.03}, headers=headers).status_code == 200
    assert [one["name"] for one in service.http.get("/models", headers=headers).json()["models"]] == [model]
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


def test_a_new_key_counts_and_a_revoked_one_does_not_within_a_second(service: Served, admin: CreatedKey) -> None:
    made: CreatedKey = on_store(service.server.url, lambda store: key_store.create(store, KeyTerms(["classify"])))
    assert until(lambda: ask(service, made).status_code == 200) < 15  # about a second on a machine that is free
    on_store(service.server.url, lambda store: key_store.revoke(store, made.key.id))
    assert until(lambda: ask(service, made).status_code == 401) < 15
    assert "was revoked" in problem(ask(service, made), 401, "invalid-key")["detail"]


def test_a_key_ends_with_its_life(service: Served, admin: CreatedKey) -> None:
    terms = KeyTerms(["classify"], seconds=5)
    made: CreatedKey = on_store(service.server.url, lambda store: key_store.create(store, terms))
    until(lambda: "has expired" in ask(service, made).text)
    problem(ask(service, made), 401, "invalid-key")


def test_a_rotated_key_lives_on_for_its_grace(service: Served, admin: CreatedKey) -> None:
    old = make(service, "classify", models=["default"], description="d", rate="1000/second")
    new: CreatedKey = on_store(service.server.url, lambda store: key_store.rotate(store, old.key.id, 2))
    until(lambda: ask(service, new).status_code == 200)
    assert (new.key.scopes, new.key.models, new.key.description, new.key.rate, new.key.replaces) == (
        ("classify",), ("default",), "d", "1000/second", old.key.id,
    )  # fmt: skip
    until(lambda: ask(service, old).status_code == 401)
    assert ask(service, new).status_code == 200


def test_when_a_key_was_used_is_noted(service: Served, admin: CreatedKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abound.security.key_ring.NOTE_SECONDS", 0.0)
    used, unused = (
        make(service, "classify"),
        on_store(service.server.url, lambda store: key_store.create(store, KeyTerms(["classify"]))),
    )

    def noted() -> dict[str, float | None]:
        return {one.key.id: one.used for one in on_store(service.server.url, key_store.all_keys)}

    until(lambda: noted()[used.key.id] is not None)
    assert abs((noted()[used.key.id] or 0) - time.time()) < 60
    assert noted()[unused.key.id] is None


def test_a_body_that_is_not_read_does_not_disturb_the_next_request(service: Served, admin: CreatedKey) -> None:
    body = b'{"text": "' + b"x" * 300_000 + b'"}'
    for _ in range(3):
        problem(service.http.post("/classify", content=body), 401)
        assert ask(service, admin).status_code == 200


def test_a_damaged_key_opens_nothing_and_disturbs_no_other() -> None:
    with served() as service:
        good, bad = make(service, "classify"), make(service, "classify")
        with service.server.client() as client:
            for name, value in (("x", b"not json"), ("y", b"{}"), (bad.key.id, b"")):
                client.hset(key_store.KEYS_KEY, name, value)
            odd = {"id": "z", "digest": "xyz", "scopes": ["admin"], "rate": "much"}
            client.hset(key_store.KEYS_KEY, "z", json.dumps(odd))
            client.set(key_store.VERSION_KEY, "another")
        until(lambda: ask(service, bad).status_code == 401)
        assert ask(service, good).status_code == 200
        problem(service.http.get("/models"), 401, "unauthorized")


def test_cut_off_it_goes_on_with_the_keys_that_it_knows() -> None:
    with served() as service:
        made, other = make(service, "classify"), make(service, "learn")
        service.server.kill()
        until(lambda: service.http.get("/readyz").json()["log"] == "cut off")
        assert service.http.post("/classify", json=INSTANCE, headers=bearer(made)).status_code == 200
        problem(service.http.post("/classify", json=INSTANCE, headers=bearer(other)), 403)
        problem(service.http.post("/classify", json=INSTANCE), 401)
        problem(service.http.post("/learn", json=LABELLED, headers=bearer(other)), 503)
        service.server.start()
        until(lambda: service.http.post("/learn", json=LABELLED, headers=bearer(other)).status_code == 200)
        late = make(service, "classify")
        assert ask(service, late).status_code == 200


def test_revoking_the_only_key_does_not_open_the_service_and_clearing_does() -> None:
    with served() as service:
        assert service.http.get("/models").status_code == 200
        made = make(service, "admin")
        on_store(service.server.url, lambda store: key_store.revoke(store, made.key.id))
        until(lambda: ask(service, made).status_code == 401)
        problem(service.http.get("/models"), 401, "unauthorized")
        with service.server.client() as client:  # lost, not cleared
            client.delete(key_store.KEYS_KEY, key_store.VERSION_KEY)
        until(lambda: problem(ask(service, made), 401)["detail"] == "there is no such key")
        problem(service.http.get("/models"), 401, "unauthorized")
        on_store(service.server.url, key_store.clear)
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
        made = make(service, "learn")
        headers = bearer(made) | {"origin": "http://evil.example"}  # who has a key may be anywhere
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
        made = make(service, "classify")
        assert service.http.post("/classify", json=INSTANCE, headers=bearer(made)).status_code == 200
    with served(listen_on="0.0.0.0", insecure=True) as service:
        assert service.http.get("/models", headers={"host": "any.example"}).status_code == 200
