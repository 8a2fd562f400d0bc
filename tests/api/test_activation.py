"""Versions that answer in the place of the index, over HTTP: activation, late labels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.replica import heartbeat
from abound.store.client import Store
from abound.versions import activation
from abound.versions.card import Card
from abound_core.methods.fitted import FittedMethod
from abound_core.model.live_model import warmup
from tests.support.command_line import Run
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem, served
from tests.support.small_versions import FEATURES, fitted, ranked, write


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    warmup()
    before, heartbeat.TICK_SECONDS = heartbeat.TICK_SECONDS, 0.05
    folder = tmp_path_factory.mktemp("artifacts")
    with served(artifacts_url=str(folder)) as service:
        service.folder = folder  # type: ignore[attr-defined]
        yield service
    heartbeat.TICK_SECONDS = before


def written(service: Served, model: str, made: FittedMethod) -> Card:
    """A version of a model of the service."""

    async def make() -> Card:
        store = Store(service.server.url)
        artifacts = ArtifactStore(str(Path(service.folder)))  # type: ignore[attr-defined]
        await artifacts.join(store)
        keys = service.app.state.parts.replica.model(model).keys
        try:
            return await write(artifacts, keys, made)
        finally:
            await store.close()

    return asyncio.run(make())


class Model:
    """A model that has learned, and two versions of it."""

    def __init__(self, service: Served, **config: Any) -> None:
        self.http = service.http
        self.service = service
        self.name = fresh_model(service, **config)
        self.path = f"/models/{self.name}"
        for i, features in enumerate(FEATURES):
            learned = {"features": features, "labels": [f"live {i % 6}"]}
            assert self.http.post(f"{self.path}/learn", json=learned).status_code == 200
        self.made = [fitted("one"), fitted("two", 7)]
        self.cards = [written(service, self.name, made) for made in self.made]
        self.ids = [card.id for card in self.cards]

    def classify(self, features: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        request = fields if features is None else {"features": features, **fields}
        answer = self.http.post(f"{self.path}/classify", json=request)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def labels(self, features: dict[str, Any], **fields: Any) -> list[tuple[str, float]]:
        return [(one["label"], one["score"]) for one in self.classify(features, **fields)["labels"]]

    def activate(self, version: str, **fields: Any) -> dict[str, Any]:
        answer = self.http.post(f"{self.path}/activate", json={"version": version, **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(self.path).json()
        return found


@pytest.fixture
def model(service: Served) -> Model:
    return Model(service)


def test_a_version_leaves_out_labels_without_instances_on_request(model: Model) -> None:
    model.activate(model.ids[0])
    registered = {"labels": [{"label": "one 0"}, {"label": "one 1"}, {"label": "nobody"}], "learn": False}
    model.http.put(f"{model.path}/labels", json=registered).raise_for_status()
    model.http.post(f"{model.path}/learn", json={"features": FEATURES[1], "labels": ["one 1"]}).raise_for_status()
    for way in (None, model.ids[0]):
        for options in ({}, {"include": ["one 0", "one 1", "one 2"]}, {"exclude": ["one 1"]}):
            every = model.labels(FEATURES[0], version=way, k=1000, **options)
            asked = {"version": way, "k": 1000, "zero_shot": False} | options
            kept = model.labels(FEATURES[0], **asked)
            exclude = [*options.get("exclude", ()), "one 0", "nobody"]
            assert kept == model.labels(FEATURES[0], **(asked | {"zero_shot": True, "exclude": exclude}))
            assert {label for label, _ in every} - {label for label, _ in kept} == {"one 0"}
            batch = model.classify(instances=[{"features": FEATURES[0]}] * 3, **asked)["results"]
            assert [[(one["label"], one["score"]) for one in answer["labels"]] for answer in batch] == [kept] * 3


@pytest.mark.parametrize("remember", [False, True])
def test_a_line_that_a_version_ranks_has_the_warning(model: Model, remember: bool) -> None:
    model.activate(model.ids[0])
    asked = [
        {"features": given, "remember": remember}
        for given in (FEATURES[0], FEATURES[1] | {"debt": -1}, {"a": 1, "debt": -1})
    ]
    answer = model.http.post(f"{model.path}/classify", content=ndjson(*asked), headers=NDJSON)
    assert ["debt;" in one.get("warning", "") for one in lines(answer)] == [False, True, False]
    assert all(("id" in one) is remember for one in lines(answer))


def test_the_active_version_answers_and_others_when_they_are_named(model: Model) -> None:
    features = FEATURES[4]
    by_index = model.labels(features)
    assert model.classify(features)["version"] == "live"
    assert model.labels(features, version=model.ids[1], k=3) == ranked(model.made[1], features, 3)
    before = model.about()["digest"]
    activated = model.activate(model.ids[0], reason="it is better")
    assert activated == {"version": model.ids[0], "offset": activated["offset"], "former": "live"}
    about = model.about()
    assert about["version"] == model.ids[0]
    assert about["digest"] != before
    assert about["serving"] == {
        "version": model.ids[0],
        "digest": model.cards[0].digest,
        "former": "live",
        "at": activated["offset"],
    }
    answer = model.classify(features, k=3)
    assert (answer["version"], answer["offset"]) == (model.ids[0], activated["offset"])
    assert model.labels(features, k=3) == ranked(model.made[0], features, 3)
    for k in (1, 2, 5, 100):
        assert model.labels(features, k=k, version=model.ids[1]) == ranked(model.made[1], features, k)
    assert model.classify(features, version="live")["version"] == "live"
    assert model.labels(features, version="live") == by_index
    assert model.classify(features, version="live", explain=True)["labels"][0]["because"]
    back = model.activate(about["serving"]["former"], reason="rollback")
    assert back["former"] == model.ids[0]
    assert model.labels(features) == by_index
    assert model.about()["memory_parts"]["versions"] >= model.cards[0].n_bytes


def test_batches_and_lines_are_answered_by_versions_too_in_order(model: Model) -> None:
    model.activate(model.ids[0])
    batch = model.classify(instances=[{"features": features} for features in FEATURES], k=2)
    assert batch["version"] == model.ids[0]
    for features, result in zip(FEATURES, batch["results"], strict=True):
        assert result["version"] == model.ids[0]
        assert [(one["label"], one["score"]) for one in result["labels"]] == ranked(model.made[0], features, 2)
    requests: list[dict[str, Any]] = []
    for i, features in enumerate(FEATURES * 3):
        requests.append({"features": features, "k": 1 + i % 3})
        requests[-1] |= [{}, {"version": "live"}, {"version": model.ids[1]}, {"version": "x"}][i % 4]
    answer = model.http.post(
        f"{model.path}/classify", content=ndjson(*requests), headers={"content-type": "application/x-ndjson"}
    )
    for request, line in zip(requests, lines(answer), strict=True):
        if request.get("version") == "x":
            assert line["status"] == 404
            continue
        alone = model.classify(**request)
        assert alone == line
    # what the index answers goes between what versions do
    assert len({line.get("version") for line in lines(answer)}) == 4


def test_what_a_version_answered_can_be_learned_late(model: Model) -> None:
    model.activate(model.ids[0])
    answer = model.classify(FEATURES[0], remember=True)
    assert answer["version"] == model.ids[0]
    learned = model.http.post(f"{model.path}/learn", json={"prediction": answer["id"], "labels": ["late"]})
    assert learned.status_code == 200
    batch = model.classify(instances=[{"features": FEATURES[1]}] * 3, remember=True)
    assert len({result["id"] for result in batch["results"]}) == 3
    requests = [{"features": FEATURES[2], "remember": True}] * 3
    answers = model.http.post(
        f"{model.path}/classify", content=ndjson(*requests), headers={"content-type": "application/x-ndjson"}
    )
    assert len({line["id"] for line in lines(answers)}) == 3
    labels = [one["label"] for one in model.classify(FEATURES[0], version="live")["labels"]]
    assert "late" in labels


def test_what_cannot_be_is_refused(model: Model) -> None:
    http, path = model.http, model.path
    for version in ("nosuchversion", "0123456789abcdef", "", "../x", "LIVE"):
        answer = http.post(f"{path}/classify", json={"features": {"a": 1}, "version": version})
        problem(answer, 404, "unknown-version")
    for version in ("0123456789abcdef", "../x"):
        problem(http.post(f"{path}/activate", json={"version": version}), 404, "unknown-version")
    problem(http.post(f"{path}/activate", json={}), 422, "invalid-field", "version")
    problem(http.post(f"{path}/activate", json={"version": "live", "since": 3}), 422, "invalid-field", "since")
    problem(http.post("/models/nosuch/activate", json={"version": "live"}), 404, "unknown-model")
    model.activate(model.ids[0])
    for version in model.ids:
        answer = http.post(f"{path}/classify", json={"features": {"a": 1}, "explain": True, "version": version})
        assert "version live" in problem(answer, 422, "invalid-field", "explain")["detail"]


def test_who_asks_for_reasons_goes_on_being_answered_when_a_version_becomes_active(model: Model) -> None:
    asked = {"features": FEATURES[0], "explain": True}
    assert all(one["because"] for one in model.http.post(f"{model.path}/classify", json=asked).json()["labels"])
    model.activate(model.ids[0])
    answer = model.http.post(f"{model.path}/classify", json=asked)
    assert answer.status_code == 200
    assert answer.json()["version"] == model.ids[0]
    assert answer.json()["labels"]
    assert all(one.keys() == {"label", "score"} for one in answer.json()["labels"])


def test_a_second_activation_at_the_same_time_is_a_conflict(model: Model, service: Served) -> None:
    keys = service.app.state.parts.replica.model(model.name).keys

    async def meanwhile() -> Any:
        store = Store(service.server.url)
        try:
            async with activation.fence(store, keys):
                return await asyncio.to_thread(
                    model.http.post, f"{model.path}/activate", json={"version": model.ids[0]}
                )
        finally:
            await store.close()

    problem(asyncio.run(meanwhile()), 409, "conflict")
    assert model.about()["version"] == "live"
    model.activate(model.ids[0])
    problem(model.http.delete(f"{model.path}/versions/{model.ids[0]}"), 409, "conflict")


def test_an_activation_is_an_act_of_the_audit_log(model: Model) -> None:
    model.activate(model.ids[0], reason="because")
    model.http.post(f"{model.path}/activate", json={"version": "0123456789abcdef"})
    acts = [one for one in model.http.get("/audit").json()["acts"] if one["action"] == "version.activate"]
    refused, done = [one for one in acts if one["details"]["model"] == model.name]
    assert (refused["outcome"], done["outcome"]) == ("refused", "done")
    assert done["details"]["reason"] == "because"


def test_a_version_is_activated_from_the_command_line(model: Model, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABOUND_URL", model.service.url)
    activate = partial(run, "versions", "activate", "--model", model.name)
    assert f"{model.ids[0]} is active from" in activate(model.ids[0], "--reason", "try it").out
    assert model.about()["version"] == model.ids[0]
    assert '"former"' in activate("live", "--json").out
    assert model.about()["version"] == "live"
    assert activate("0123456789abcdef").code == 1


def test_versions_are_measured_without_any_label_of_a_class(model: Model) -> None:
    model.activate(model.ids[0])
    model.classify(FEATURES[0])
    metrics = model.http.get("/metrics").text
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line[0] != "#"}
    assert found["abound_rank_duration_seconds_count"] >= 1
    assert found[f'abound_model_activated_timestamp_seconds{{model="{model.name}"}}'] > 1e9
    assert found[f'abound_model_loaded_versions{{model="{model.name}"}}'] >= 1
    assert "one 1" not in metrics


def test_the_versions_of_a_model_count_as_its_memory(service: Served) -> None:
    model = Model(service, max_memory=2**20)
    large = written(service, model.name, fitted("large", n_features=100_000))
    answer = model.http.post(f"{model.path}/classify", json={"features": {"a": 1}, "version": large.id})
    problem(answer, 507, "no-room")
    problem(model.http.post(f"{model.path}/activate", json={"version": large.id}), 507, "no-room")
    assert json.loads(model.http.get(model.path).content)["version"] == "live"
