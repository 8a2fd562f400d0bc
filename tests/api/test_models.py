import gc
import threading
import weakref
from typing import Any

import pytest

from abound_core.config import ModelConfig
from abound_core.types import Offset
from tests.support.job_worker import until
from tests.support.served import Served, fresh_model, problem, served


def test_the_model_default_is_there_from_the_start(service: Served) -> None:
    assert "default" in [model["name"] for model in service.http.get("/models").json()["models"]]
    body = service.http.get("/models/default").json()
    assert body["name"] == "default"
    assert body["config"] == ModelConfig().to_dict()
    assert (body["version"], body["learned"]) == ("live", 0)


def test_a_model_is_created_and_described(service: Served) -> None:
    config = {"w_min": 0.05, "d_max": 7, "analyzer": {"kind": "char", "ngrams": [2, 3]}, "negative": "split"}
    answer = service.http.put("/models/fresh-1.2_a", json=config)
    assert answer.status_code == 201
    assert answer.headers["location"] == "/models/fresh-1.2_a"
    body = answer.json()
    assert body["config"] == ModelConfig.from_dict(config).to_dict()
    assert body["offset"] == "0-0.0"
    assert len(body["digest"]) == 32
    assert service.http.get("/models/fresh-1.2_a").json() == body
    listed = next(one for one in service.http.get("/models").json()["models"] if one["name"] == "fresh-1.2_a")
    assert listed == {name: value for name, value in body.items() if name != "digest"}
    assert service.http.delete("/models/fresh-1.2_a").status_code == 204
    problem(service.http.get("/models/fresh-1.2_a"), 404, "unknown-model")
    problem(service.http.delete("/models/fresh-1.2_a"), 404, "unknown-model")


def test_a_change_keeps_what_it_does_not_name(service: Served) -> None:
    name = fresh_model(service, d_max=3, memory=50.0)
    before = service.http.get(f"/models/{name}").json()
    answer = service.http.put(f"/models/{name}", json={"w_min": 0.2, "analyzer": {"lowercase": False}})
    assert answer.status_code == 200
    expected = ModelConfig.from_dict({"d_max": 3, "memory": 50.0, "w_min": 0.2, "analyzer": {"lowercase": False}})
    assert answer.json()["config"] == expected.to_dict()
    assert Offset.parse(answer.json()["offset"]) > Offset.parse(before["offset"])
    assert answer.json()["digest"] != before["digest"]
    again = service.http.put(f"/models/{name}", json={"w_min": 0.2})
    assert again.json() == answer.json()


@pytest.mark.parametrize("change", [{"boolean": True}, {"leak": False}, {"memory": 100.0}, {"negative": "split"}])
def test_what_gives_the_state_its_meaning_cannot_change_once_it_has_learned(service, change):
    name = fresh_model(service)
    assert service.http.put(f"/models/{name}", json=change).status_code == 200
    name = fresh_model(service)
    service.http.post(f"/models/{name}/learn", json={"text": "a", "labels": ["x"]}).raise_for_status()
    before = service.http.get(f"/models/{name}").json()
    refused = problem(service.http.put(f"/models/{name}", json=change), 409, "conflict")
    assert ("job refit" in refused["detail"]) == ("leak" in change or "memory" in change), "what a refit can change"
    assert service.http.get(f"/models/{name}").json() == before
    allowed = {"w_min": 0.3, "d_max": 4, "margin": 0.5, "rating": False, "max_features": 10, "max_classes": 10}
    assert service.http.put(f"/models/{name}", json=allowed).status_code == 200


def test_a_name_that_is_used_again_is_another_model(service: Served) -> None:
    name = fresh_model(service)
    first = service.http.get(f"/models/{name}").json()["incarnation"]
    service.http.post(f"/models/{name}/learn", json={"text": "a", "labels": ["x"]}).raise_for_status()
    service.http.delete(f"/models/{name}").raise_for_status()
    problem(service.http.post(f"/models/{name}/learn", json={"text": "a", "labels": ["x"]}), 404, "unknown-model")
    problem(service.http.post(f"/models/{name}/classify", json={"text": "a"}), 404, "unknown-model")
    again = service.http.put(f"/models/{name}").json()
    assert again["incarnation"] != first
    assert (again["learned"], again["classes"]) == (0, 0)


def test_the_memory_of_a_deleted_model_is_freed(service: Served) -> None:
    name = fresh_model(service)
    service.http.post(f"/models/{name}/learn", json={"text": "a", "labels": ["x"]}).raise_for_status()
    freed = threading.Event()
    gc.freeze()  # as a replica does when it is ready: the cycles of models that exist by then are never collected
    weakref.finalize(service.live(name), freed.set)
    service.http.delete(f"/models/{name}").raise_for_status()
    assert freed.wait(60)
    gc.unfreeze()


def test_stats(service: Served) -> None:
    name = fresh_model(service)
    empty = service.http.get(f"/models/{name}/stats").json()
    assert (empty["learned"], empty["all"]["n"], empty["all"]["MRR"]) == (0, 0, None)
    for i in range(30):
        service.post(f"/models/{name}/learn", features={f"f{i % 4}": 1}, labels=["often"] if i % 3 else [f"seldom {i}"])
    stats = service.http.get(f"/models/{name}/stats").json()
    assert stats["learned"] == 30
    assert 0 < stats["updated"] <= 30
    assert set(stats["window"]) == set(stats["recent"]) == {"n", "R@1", "R@5", "MRR", "groups"}
    assert stats["all"]["n"] == sum(group["n"] for group in stats["all"]["groups"].values()) == 30
    assert 0 < stats["all"]["R@1"] <= stats["all"]["R@5"] <= 1
    assert (stats["features"], stats["classes"]) == (4, 11)
    assert stats["mean_out_degree"] == pytest.approx(stats["connections"] / 4)
    assert stats["memory"] == sum(stats["memory_parts"].values()) > 0


def test_stats_list_the_replicas(service: Served) -> None:
    name = fresh_model(service)
    learned = service.http.post(f"/models/{name}/learn", json={"text": "a", "labels": ["x"]}).json()

    def told() -> Any:
        replicas = service.http.get(f"/models/{name}/stats").json()["replicas"]
        return replicas and replicas[0]["digest"] and replicas[0]["digest_offset"] == learned["offset"] and replicas

    [replica] = until(told)
    assert set(replica) == {"replica", "offset", "digest", "digest_offset", "host", "pid", "ready", "lag", "versions"}
    assert (replica["offset"], replica["ready"], replica["lag"]) == (learned["offset"], True, 0)
    assert replica["digest"] == service.http.get(f"/models/{name}").json()["digest"]


@pytest.mark.parametrize("path", ["", "/stats", "/labels", "/snapshots", "/labels/none", "/export"])
def test_a_model_that_is_not_there(service: Served, path: str) -> None:
    problem(service.http.get(f"/models/none{path}"), 404, "unknown-model")


def test_the_update_rule_of_new_models_is_a_setting() -> None:
    with served(default_update="sls") as service:
        assert service.http.get("/models/default").json()["config"]["update"] == "sls"
        assert service.http.put("/models/fast", json={"update": "fsu"}).json()["config"]["update"] == "fsu"
        service.http.delete("/models/default").raise_for_status()
        assert service.http.get("/models/default").json()["config"]["update"] == "sls"


def test_without_a_worker_no_snapshot_is_made(service: Served) -> None:
    path = f"/models/{fresh_model(service)}/snapshots"
    assert service.http.get(path).json() == {"snapshots": []}
    assert "worker" in problem(service.http.post(path), 503, "not-ready")["detail"]
