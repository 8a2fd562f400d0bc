"""Memory, models, remembered instances: each has its bound, and the door says so before it is passed."""

from typing import Any

import numpy as np
import pytest

from abound.processes.memory import STORE_SHARES, default_models_memory, total_memory
from abound.replica.memory_budget import MemoryBudget
from abound.replica.predictions import RememberParams, recall, remember
from abound.state.replicated_model import new_secret
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem, served

MIB = 2**20

SETTINGS = {"max_models": 40}


def batch(at: int, n: int = 100) -> dict[str, Any]:
    """Instances with features that are all new."""
    keys = [[f"a fairly long key {at} {i} {j}" for j in range(50)] for i in range(n)]
    return {"instances": [{"features": dict.fromkeys(some, 1), "labels": ["x"]} for some in keys]}


def fill(service: Served, model: str, bound: str = "max_memory", n: int = 100) -> int:
    """Learn until no more is taken; how many batches were."""
    for at in range(200):
        answer = service.http.post(f"/models/{model}/learn", json=batch(at, n))
        if answer.status_code != 200:
            assert bound in problem(answer, 507, "no-room")["detail"]
            assert "retry-after" not in answer.headers
            return at
    raise AssertionError("it is never full")


def test_a_model_stops_learning_before_it_passes_its_memory(service: Served) -> None:
    model = fresh_model(service, max_memory=4 * MIB)
    keyed = {"features": {"f": 1}, "labels": ["x"], "key": "k"}
    first = service.post(f"/models/{model}/learn", **keyed)
    assert fill(service, model) > 3
    assert service.post(f"/models/{model}/learn", **keyed) == first
    described = service.http.get(f"/models/{model}").json()
    assert 2 * MIB < described["memory"] <= 4 * MIB
    learned = described["learned"]
    body = ndjson(keyed | {"key": "new"})
    [line] = lines(service.http.post(f"/models/{model}/learn", content=body, headers=NDJSON))
    assert line["status"] == 507
    assert service.http.post(f"/models/{model}/classify", json={"features": {"f": 1}}).status_code == 200
    assert service.http.post("/learn", json={"features": {"f": 1}, "labels": ["x"]}).status_code == 200
    assert service.learned(model) == learned
    assert service.http.put(f"/models/{model}", json={"max_memory": 64 * MIB}).status_code == 200
    assert service.http.post(f"/models/{model}/learn", json=batch(1000)).status_code == 200


def test_all_models_together_have_the_memory_of_the_process() -> None:
    with served(max_memory=3 * MIB) as service:
        one, other = fresh_model(service), fresh_model(service)
        fill(service, one, "ABOUND_MAX_MEMORY", n=10)
        service.http.get("/metrics").raise_for_status()  # counts the sizes again
        problem(service.http.post(f"/models/{other}/learn", json=batch(0)), 507, "no-room")
        sizes = [model["memory"] for model in service.http.get("/models").json()["models"]]
        assert 2.5 * MIB < sum(sizes) <= 3 * MIB + 2**16  # the last request adds its own features
        service.http.delete(f"/models/{one}").raise_for_status()
        assert service.http.post(f"/models/{other}/learn", json=batch(0)).status_code == 200


def test_the_first_vector_of_a_model_with_many_labels_does_not_stop_other_models() -> None:
    with served(max_memory=16 * MIB) as service:
        many, other = fresh_model(service, update="sls", max_memory=8 * MIB), fresh_model(service)
        for first in range(0, 5000, 1000):
            labelled = [{"features": {"f": 1}, "labels": [f"label {at}"]} for at in range(first, first + 1000)]
            service.http.post(f"/models/{many}/learn", json={"instances": labelled}).raise_for_status()
        vector = {"vector": [1.0] * 2048, "labels": ["label 7"]}
        assert service.http.post(f"/models/{many}/learn", json=vector).status_code == 200
        sizes = {model["name"]: model["memory"] for model in service.http.get("/models").json()["models"]}
        assert sizes[many] <= 8 * MIB
        assert service.http.post(f"/models/{many}/learn", json=vector).status_code == 200
        assert service.http.post(f"/models/{other}/learn", json=batch(0)).status_code == 200


def test_models_are_bounded_in_number(service: Served) -> None:
    created = 0
    for at in range(50):
        answer = service.http.put(f"/models/many{at}")
        if answer.status_code != 201:
            break
        created += 1
    assert "of at most 40" in problem(answer, 409, "conflict")["detail"]
    assert len(service.http.get("/models").json()["models"]) == 40
    assert service.http.put("/models/many0", json={"w_min": 0.02}).status_code == 200
    for at in range(created):
        service.http.delete(f"/models/many{at}").raise_for_status()


def test_without_a_setting_the_machine_sets_the_bound() -> None:
    whole = total_memory()
    assert whole is not None
    assert MemoryBudget.for_machine(None, 2).most == int(0.4 * whole)
    assert MemoryBudget.for_machine(5, 2).most == 5
    assert default_models_memory(5, worker=True, store=True) == int(0.8 * whole / 12)
    assert default_models_memory(1, store=True) == int(0.2 * whole)


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_the_store_has_room_for_three_snapshots_of_a_model_within_its_bound(update: str) -> None:
    rng = np.random.default_rng(3)
    model = LiveModel(ModelConfig(update=update), new_secret())
    for at in range(300):
        features = ",".join(f'"{rng.integers(3000)} {"x" * 400}": 1' for _ in range(20))
        record = model.vectorizer.vectorize(b"{" + features.encode() + b"}", None)
        labels = pack_labels([f"{rng.integers(500)} {'y' * 400}"], model.limits)
        model.begin(record + labels, 1, [Unit(1, f"key {at}", b"body")]).finish()
    snapshot = sum(array.nbytes for array in model.to_arrays().values())
    assert 3 * snapshot <= STORE_SHARES * model.n_bytes
    assert snapshot > 0.5 * model.n_bytes


async def test_remembered_instances_are_bounded_in_bytes(store: Store) -> None:
    keys, params = ModelKeys("m", "1-0"), RememberParams(most_bytes=10_000)
    ids = [await remember(store, keys, bytes([at]) * 900, params, text=b"t" * 100) for at in range(30)]
    assert await recall(store, keys, ids[-10], params) == bytes([20]) * 900
    assert await store.client.xlen(keys.key("remembered")) == 10
    large = await remember(store, keys, b"x" * 9_500, params)
    assert await store.client.xlen(keys.key("remembered")) == 1
    assert len(await recall(store, keys, large, params)) == 9_500
    over = await remember(store, keys, b"y" * 50_000, params)  # one is kept whatever its size: the door bounds that
    assert len(await recall(store, keys, over, params)) == 50_000
    assert await store.client.xlen(keys.key("remembered")) == 1
    for key in await store.client.keys("*remembered*"):
        assert 0 < await store.client.ttl(key) <= params.seconds
