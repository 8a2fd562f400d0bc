import asyncio
import threading
from typing import Any

import pytest

from abound.api import classify
from abound.api import learn as learn_api
from abound_core.types import Offset
from tests.support.job_worker import until
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem, served

WHEAT: dict[str, Any] = {"features": {"wheat": 0.4, "price": 3}, "labels": ["grain"]}


def test_an_event_is_durable_applied_and_ranked(service: Served, model: str) -> None:
    path = f"/models/{model}/learn"
    first = service.http.post(path, json=WHEAT).raise_for_status()
    told = {"applied": True, "durability": "log", "rank": None, "updated": True}
    assert first.json() == told | {"offset": first.json()["offset"]}
    second = service.http.post(path, json=WHEAT).json()
    assert second["rank"] == 1
    assert Offset.parse(second["offset"]) > Offset.parse(first.json()["offset"])
    other = service.http.post(path, json=WHEAT | {"labels": ["crude", "grain"]}).json()
    assert other["rank"] == 1
    third = service.http.post(path, json=WHEAT | {"labels": ["crude"]}).json()
    assert third["rank"] == 2
    assert service.http.get(f"/models/{model}").json()["offset"] == third["offset"]


def test_the_routes_without_a_model_mean_the_model_default(service: Served) -> None:
    assert service.http.post("/learn", json={"text": "tea", "labels": ["drink"]}).status_code == 200
    by_name = service.http.post("/models/default/classify", json={"text": "tea"}).json()
    assert by_name["labels"][0]["label"] == "drink"
    assert service.http.post("/classify", json={"text": "tea"}).json() == by_name


def test_a_batch_is_one_entry(service: Served, model: str) -> None:
    instances = [WHEAT, {"text": "oil", "labels": ["crude"]}, WHEAT]
    answer = service.http.post(f"/models/{model}/learn", json={"instances": instances}).raise_for_status()
    body = answer.json()
    assert set(body) == {"results", "offset", "applied", "durability"}
    assert [set(result) for result in body["results"]] == [{"offset", "rank", "updated"}] * 3
    offsets = [Offset.parse(result["offset"]) for result in body["results"]]
    assert len({offset.entry for offset in offsets}) == 1
    assert [offset.position for offset in offsets] == [0, 1, 2]
    assert body["offset"] == body["results"][-1]["offset"]
    assert [result["rank"] for result in body["results"]] == [None, None, 1]
    assert (body["applied"], body["durability"]) == (True, "log")


def test_answers_after_the_log_or_after_applying(service: Served, model: str) -> None:
    answer = service.http.post(f"/models/{model}/learn", json=WHEAT | {"wait": "log"})
    body = answer.json()
    assert answer.status_code == 202
    assert body == {"offset": body["offset"], "applied": False, "durability": "log", "rank": None, "updated": None}
    for same in (body["offset"], f"0{body['offset']}"):
        later = service.post(f"/models/{model}/classify", text="wheat", min_offset=same)
        assert (later["labels"][0]["label"], later["offset"]) == ("grain", body["offset"])
    batch = service.http.post(f"/models/{model}/learn", json={"instances": [WHEAT, WHEAT], "wait": "log"})
    assert (batch.status_code, batch.json()["applied"]) == (202, False)


def test_applying_that_takes_longer_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn_api, "APPLY_SECONDS", 3.0)
    monkeypatch.setattr(classify, "MIN_OFFSET_SECONDS", 0.05)
    with served() as slow:
        model = slow.app.state.parts.replica.model("default")
        held, go = threading.Event(), threading.Event()

        async def hold() -> None:
            async with model.paused():
                held.set()
                await asyncio.to_thread(go.wait)

        asyncio.run_coroutine_threadsafe(hold(), slow.loop)
        assert held.wait(60)
        answer = slow.http.post("/learn", json=WHEAT)
        body = answer.json()
        assert answer.status_code == 202
        assert (body["applied"], body["rank"], body["updated"]) == (False, None, None)
        behind = slow.http.post("/classify", json={"text": "wheat", "min_offset": body["offset"]})
        assert "is behind" in problem(behind, 503, "not-ready")["detail"]
        assert int(behind.headers["retry-after"]) >= 1
        assert slow.http.post("/classify", json={"text": "wheat"}).json()["labels"] == []
        keyed = slow.http.post("/learn", json=WHEAT | {"key": "k"})
        assert "Idempotency-Key" in problem(keyed, 504, "outcome-unknown")["detail"]
        go.set()
        until(lambda: slow.learned() == 2)
        late = slow.http.post("/classify", json={"text": "wheat", "min_offset": body["offset"]}).json()
        assert late["labels"][0]["label"] == "grain"
        until(lambda: slow.http.post("/learn", json=WHEAT | {"key": "k"}).status_code == 200)
        assert slow.learned() == 2


@pytest.mark.parametrize("how", ["header", "field"])
def test_a_repeat_under_a_key_answers_as_the_first_time(service: Served, model: str, how: str) -> None:
    path = f"/models/{model}/learn"
    header = {"Idempotency-Key": "order 66"} if how == "header" else {}
    body = WHEAT if how == "header" else WHEAT | {"key": "order 66"}
    service.http.post(path, json=WHEAT)
    first = service.http.post(path, json=body, headers=header).raise_for_status()
    service.http.post(path, json=WHEAT | {"labels": ["other"]})
    for wait in ("applied", "log"):
        assert service.http.post(path, json=body | {"wait": wait}, headers=header).json() == first.json()
    assert service.learned(model) == 3
    changes: list[dict[str, Any]] = [{"features": {"wheat": 4}}, {"labels": ["more"]}, {"labels": [], "none": True}]
    changes += [{"partial": True}, {"rejected": ["b"]}, {"ignored": ["c"]}, {"weight": 3}]
    for change in changes:
        problem(service.http.post(path, json=body | change, headers=header), 422, "invalid-field", "key")
    assert service.learned(model) == 3


def test_header_and_field_are_one_table(service: Served, model: str) -> None:
    path = f"/models/{model}/learn"
    first = service.http.post(path, json=WHEAT, headers={"Idempotency-Key": "a"}).json()
    assert service.http.post(path, json=WHEAT | {"key": "a"}).json() == first
    both = service.http.post(path, json=WHEAT | {"key": "a"}, headers={"Idempotency-Key": "a"})
    assert both.json() == first
    differing = service.http.post(path, json=WHEAT | {"key": "b"}, headers={"Idempotency-Key": "a"})
    problem(differing, 422, "invalid-field", "key")
    assert service.learned(model) == 1
    other = fresh_model(service)  # which has a table of its own
    assert service.http.post(f"/models/{other}/learn", json=WHEAT | {"key": "a", "labels": ["b"]}).status_code == 200


def test_a_key_covers_a_batch_as_a_whole(service: Served, model: str) -> None:
    path = f"/models/{model}/learn"
    header = {"Idempotency-Key": "batch"}
    body = {"instances": [WHEAT, {"text": "oil", "labels": ["crude"]}]}
    first = service.http.post(path, json=body, headers=header).raise_for_status()
    assert service.http.post(path, json=body, headers=header).json() == first.json()
    assert service.learned(model) == 2
    problem(service.http.post(path, json={"instances": [WHEAT]}, headers=header), 422, field="key")
    problem(service.http.post(path, json=WHEAT, headers=header), 422, field="key")
    inner = {"instances": [WHEAT | {"key": "x"}]}
    problem(service.http.post(path, json=inner, headers=header), 422, field="instances[0].key")
    assert service.learned(model) == 2


def test_instances_of_a_batch_may_have_keys(service: Served, model: str) -> None:
    path = f"/models/{model}/learn"
    oil = {"text": "oil", "labels": ["crude"], "key": "oil"}
    alone = service.http.post(path, json=oil).json()
    batch = {"instances": [WHEAT | {"key": "wheat"}, WHEAT, oil]}
    first = service.http.post(path, json=batch).json()
    assert service.learned(model) == 3
    assert first["results"][2] == {name: alone[name] for name in ("offset", "rank", "updated")}
    assert first["offset"] == first["results"][1]["offset"]  # the largest
    again = service.http.post(path, json=batch).json()
    assert again["results"][::2] == first["results"][::2]
    assert again["results"][1]["rank"] == 1
    assert service.learned(model) == 4
    taken = {"instances": [WHEAT, oil | {"labels": ["other"]}]}
    problem(service.http.post(path, json=taken), 422, field="instances[1].key")
    twice = {"instances": [WHEAT | {"key": "n"}, WHEAT | {"key": "n"}]}
    problem(service.http.post(path, json=twice), 422, field="instances[1].key")
    assert service.learned(model) == 4


def test_classify_outlives_the_store() -> None:
    with served() as service:
        service.http.post("/learn", json=WHEAT).raise_for_status()
        before = service.http.post("/classify", json={"text": "wheat"}).json()
        service.server.kill()
        assert service.http.post("/classify", json={"text": "wheat"}).json() == before
        remembered = service.http.post("/classify", json={"text": "wheat", "remember": True}).raise_for_status()
        assert remembered.json() == before | {"remembered": False}
        answers = service.post("/classify", instances=[{"text": "wheat"}] * 3, remember=True)["results"]
        assert answers == [before | {"remembered": False}] * 3
        refused = service.http.post("/learn", json=WHEAT)
        assert problem(refused, 503, "store-unavailable")["retry_after"] > 0
        assert int(refused.headers["retry-after"]) >= 1
        streamed = lines(service.http.post("/learn", content=ndjson(WHEAT, {}), headers=NDJSON))
        assert [(line["line"], line["status"]) for line in streamed] == [(1, 503), (2, 422)]
        body = {"prediction": "1-0-" + "A" * 22, "labels": ["x"]}
        problem(service.http.post("/learn", json=body), 503, "store-unavailable")
        problem(service.http.put("/models/new"), 503, "store-unavailable")
        behind = service.http.post("/classify", json={"text": "wheat", "min_offset": "9999999999999-0.0"})
        assert "retry-after" in behind.headers
        assert "lag" in problem(behind, 503, "not-ready") or service.learned() == 1
        stats = service.http.get("/models/default/stats").json()
        assert (stats["learned"], stats["replicas"]) == (1, [])
        cut = until(lambda: (said := service.http.get("/readyz").json())["log"] == "cut off" and said)
        assert cut["status"] == "ready"
        assert b"abound_log_connected 0.0" in service.http.get("/metrics").content
        service.server.start()
        until(lambda: service.http.get("/readyz").json()["log"] == "connected")
        until(lambda: service.http.post("/learn", json=WHEAT | {"key": "again"}).status_code == 200)
        assert service.learned() == 2


def test_feedback_in_a_batch_in_lines_and_late(service: Served, model: str) -> None:
    path = f"/models/{model}/learn"
    one = {"text": "tin", "labels": ["metal"], "rejected": ["food"], "ignored": ["toy", "tool"], "weight": 2.5}
    id_ = service.post(f"/models/{model}/classify", text="tin", remember=True)["id"]
    by_prediction = {name: value for name, value in one.items() if name != "text"} | {"prediction": id_}
    assert service.http.post(path, json={"instances": [one, WHEAT, one]}).status_code == 200
    body = ndjson(one, one | {"weight": 0}, by_prediction)
    answers = lines(service.http.post(path, content=body, headers=NDJSON))
    assert [answer.get("field") for answer in answers] == [None, "weight", None]
    assert service.http.post(path, json=by_prediction).status_code == 200
    counts = service.http.get(f"/models/{model}/stats").json()["feedback"]
    assert counts == {"unlabelled": 0, "rejected": 5, "ignored": 10, "weighted": 5}
    assert service.http.get(f"/models/{model}/labels").json()["labels"] == ["metal", "grain"]
