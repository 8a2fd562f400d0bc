"""refit, forget, restore and undo, as jobs over HTTP: a service and its worker as ``abound serve`` starts them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from abound.client import Client, Refused
from abound.client.local_service import own_service


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory: Path = tmp_path_factory.mktemp("data")
    with own_service(data_dir=directory, worker=True) as url, Client(url) as client:
        yield client


def teach(client: Client, model: str, n: int, source: str = "good", label: str = "c") -> str:
    """Learn so many events, each of one of five classes; the offset of the last one."""
    instances = [{"features": {f"f{i % 5}": 1.0, f"n{i}": 0.2}, "labels": [f"{label}{i % 5}"]} for i in range(n)]
    answer = client.learn(model, {"instances": instances, "source": source})
    return str(answer["offset"])


def best(client: Client, model: str, feature: str) -> list[str]:
    answer = client.classify(model, {"features": {feature: 1.0}})
    return [item["label"] for item in answer["labels"]]


def done(client: Client, method: str, model: str, **params: Any) -> dict[str, Any]:
    """The job, once it has succeeded."""
    job = client.submit({"method": method, "model": model, "params": params})
    seen = list(client.follow(job["id"]))
    ended = seen[-1]
    assert ended["state"] == "succeeded", ended
    assert ended["progress"] == 1.0
    assert ended["worker"], "nobody held it"
    assert [one["progress"] for one in seen] == sorted(one["progress"] for one in seen), "progress never goes back"
    return ended


def test_a_refit_replaces_the_model_while_learning_goes_on(client: Client) -> None:
    client.configure("refitted", {})
    teach(client, "refitted", 300)
    job = client.submit({"method": "refit", "model": "refitted", "params": {"passes": 2, "search": {"margin": [0.0]}}})
    learned = 300
    while client.job(job["id"])["ended"] is None:
        teach(client, "refitted", 10)
        learned += 10
    job = client.job(job["id"])
    assert job["state"] == "succeeded", job
    assert 0 <= job["metrics"]["MRR"] <= 1
    assert job["outcome"]["replaced_at"] > job["data_range"]["until"]
    assert client.stats("refitted")["learned"] == learned
    assert best(client, "refitted", "f3")[0] == "c3"


def test_what_is_forgotten_is_not_answered_any_more(client: Client) -> None:
    client.configure("forgetful", {})
    teach(client, "forgetful", 50)
    teach(client, "forgetful", 50, source="poison", label="bad")
    assert "bad1" in best(client, "forgetful", "f1")
    with pytest.raises(Refused, match="reason"):
        client.submit({"method": "forget", "model": "forgetful", "params": {"source": "poison"}})
    before = client.describe("forgetful")
    tried = done(client, "forget", "forgetful", source="poison", reason="how many?", dry_run=True)
    assert tried["outcome"]["forgotten"] == {"requests": 1, "instances": 50}
    assert "replaced" not in tried["outcome"]
    assert client.describe("forgetful")["digest"] == before["digest"]
    job = done(client, "forget", "forgetful", source="poison", reason="it was poison")
    assert job["reason"] == "it was poison"
    assert best(client, "forgetful", "f1") == ["c1"]
    assert client.stats("forgetful")["learned"] == 50


def test_a_job_is_cancelled_and_the_model_stays_as_it_was(client: Client) -> None:
    client.configure("kept", {})
    teach(client, "kept", 500)
    before = client.describe("kept")
    params = {"passes": 100, "search": {"margin": [i / 100 for i in range(100)]}}
    job = client.submit({"method": "refit", "model": "kept", "params": params})
    while (now := client.job(job["id"]))["state"] == "queued":
        assert now["ended"] is None
    client.cancel(job["id"])
    ended = list(client.follow(job["id"]))[-1]
    assert ended["state"] == "cancelled", ended
    assert client.describe("kept")["digest"] == before["digest"]
    metrics = httpx.get(f"{client.url}/metrics", timeout=60).text
    assert 'abound_jobs{state="running"}' in metrics


def test_a_model_goes_back_to_where_it_was_and_what_came_since_is_kept_by_an_undo(client: Client) -> None:
    client.configure("restored", {})
    offset = teach(client, "restored", 50)
    teach(client, "restored", 50, label="late")
    job = done(client, "restore", "restored", to=offset, reason="a mistake")
    assert job["outcome"]["to"] == offset
    assert best(client, "restored", "f1") == ["c1"]
    assert client.stats("restored")["learned"] == 50
    teach(client, "restored", 10)
    job = done(client, "undo", "restored")
    assert (job["reason"], job["outcome"]["learned"]) == ("undo", 100)
    assert client.stats("restored")["learned"] == 110
    assert sorted(best(client, "restored", "f1")) == ["c1", "late1"]


@pytest.mark.parametrize(
    ("method", "model", "params", "field"),
    [
        ("restore", "default", {"to": "yesterday", "reason": "x"}, "params.to"),
        ("refit", "default", {"search": {"margin": [0.1] * 101}}, "params.search"),
        ("refit", "default", {"passes": 0}, "params.passes"),
        ("refit", "default", {"held_out": 0.9}, "params.held_out"),
        ("refit", "default", {"search": {"margin": [0.0, 0.1]}, "held_out": 0}, "params.held_out"),
        ("refit", "default", {"settings": {"rerank": True}}, "params"),
        ("refit", "corrects", {"settings": {"memory": 50}}, "params"),
    ],
)
def test_the_parameter_that_is_wrong_for_the_model_is_named(
    client: Client, method: str, model: str, params: dict[str, Any], field: str
) -> None:
    client.configure("corrects", {"update": "sls"})
    with pytest.raises(Refused) as refused:
        client.submit({"method": method, "model": model, "params": params})
    assert refused.value.problem["field"] == field


def test_a_refit_searches_settings_of_the_model(client: Client) -> None:
    client.configure("corrects", {"update": "sls"})
    teach(client, "corrects", 50)
    job = done(client, "refit", "corrects", passes=1, search={"rerank": [None, False]})
    assert job["outcome"]["setting"].keys() == {"rerank"}
