"""Versions that answer in the place of the index, over HTTP: activation, late labels."""

from collections.abc import Iterator
from typing import Any

import pytest

from abound.replica import heartbeat
from abound_core.model.live_model import warmup
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem, served
from tests.support.small_versions import FEATURES, fitted, ranked, version_of


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    warmup()
    before, heartbeat.TICK_SECONDS = heartbeat.TICK_SECONDS, 0.05
    with served(artifacts_url=str(tmp_path_factory.mktemp("artifacts"))) as service:
        yield service
    heartbeat.TICK_SECONDS = before


class Model:
    """A model that has learned, and two versions of it."""

    def __init__(self, service: Served, **config: Any) -> None:
        self.service, self.http = service, service.http
        self.name = fresh_model(service, **config)
        self.path = f"/models/{self.name}"
        for i, features in enumerate(FEATURES):
            self.post("learn", features=features, labels=[f"live {i % 6}"])
        self.made = [fitted("one"), fitted("two", 7)]
        self.cards = [version_of(service, self.name, made) for made in self.made]
        self.ids = [card.id for card in self.cards]

    def post(self, what: str, **body: Any) -> dict[str, Any]:
        return self.service.post(f"{self.path}/{what}", **body)

    def classify(self, features: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        return self.post("classify", **({} if features is None else {"features": features}), **fields)

    def labels(self, features: dict[str, Any], **fields: Any) -> list[tuple[str, float]]:
        return [(one["label"], one["score"]) for one in self.classify(features, **fields)["labels"]]

    def activate(self, version: str, **fields: Any) -> dict[str, Any]:
        return self.post("activate", version=version, **fields)

    def about(self) -> dict[str, Any]:
        return self.http.get(self.path).json()

    def streamed(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return lines(self.http.post(f"{self.path}/classify", content=ndjson(*requests), headers=NDJSON))


@pytest.fixture
def model(service: Served) -> Model:
    return Model(service)


def test_a_version_leaves_out_labels_without_instances_on_request(model: Model) -> None:
    model.activate(model.ids[0])
    registered = {"labels": [{"label": "one 0"}, {"label": "one 1"}, {"label": "nobody"}], "learn": False}
    model.http.put(f"{model.path}/labels", json=registered).raise_for_status()
    model.post("learn", features=FEATURES[1], labels=["one 1"])
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
    given = (FEATURES[0], FEATURES[1] | {"debt": -1}, {"a": 1, "debt": -1})
    answers = model.streamed([{"features": features, "remember": remember} for features in given])
    assert ["debt;" in one.get("warning", "") for one in answers] == [False, True, False]
    assert all(("id" in one) is remember for one in answers)


def test_the_active_version_answers_and_others_when_they_are_named(model: Model) -> None:
    features = FEATURES[4]
    by_index = model.labels(features)
    assert model.classify(features)["version"] == "live"
    assert model.labels(features, version=model.ids[1], k=3) == ranked(model.made[1], features, 3)
    before = model.about()["digest"]
    activated = model.activate(model.ids[0], reason="it is better")
    assert activated == {"version": model.ids[0], "offset": activated["offset"], "former": "live"}
    about = model.about()
    assert (about["version"], about["digest"] != before) == (model.ids[0], True)
    serving = {"version": model.ids[0], "digest": model.cards[0].digest, "former": "live", "at": activated["offset"]}
    assert about["serving"] == serving
    answer = model.classify(features, k=3)
    assert (answer["version"], answer["offset"]) == (model.ids[0], activated["offset"])
    assert model.labels(features, k=3) == ranked(model.made[0], features, 3)
    for k in (1, 2, 5, 100):
        assert model.labels(features, k=k, version=model.ids[1]) == ranked(model.made[1], features, k)
    assert model.labels(features, version="live") == by_index
    assert model.classify(features, version="live", explain=True)["labels"][0]["because"]
    explained = model.classify(features, explain=True)  # who asks for reasons goes on being answered
    assert explained["version"] == model.ids[0]
    assert [one.keys() for one in explained["labels"]] == [{"label", "score"}] * len(explained["labels"]) != []
    metrics = model.http.get("/metrics").text
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line[0] != "#"}
    assert found["abound_rank_duration_seconds_count"] >= 1
    assert found[f'abound_model_activated_timestamp_seconds{{model="{model.name}"}}'] > 1e9
    assert found[f'abound_model_loaded_versions{{model="{model.name}"}}'] >= 1
    assert "one 1" not in metrics
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
    versions: list[dict[str, str]] = [{}, {"version": "live"}, {"version": model.ids[1]}, {"version": "x"}]
    requests = [{"features": one, "k": 1 + i % 3} | versions[i % 4] for i, one in enumerate(FEATURES * 3)]
    answers = model.streamed(requests)
    for request, line in zip(requests, answers, strict=True):
        if request.get("version") == "x":
            assert line["status"] == 404
        else:
            assert model.classify(**request) == line
    # what the index answers goes between what versions do
    assert len({line.get("version") for line in answers}) == 4


def test_what_a_version_answered_can_be_learned_late(model: Model) -> None:
    model.activate(model.ids[0])
    answer = model.classify(FEATURES[0], remember=True)
    assert answer["version"] == model.ids[0]
    model.post("learn", prediction=answer["id"], labels=["late"])
    batch = model.classify(instances=[{"features": FEATURES[1]}] * 3, remember=True)["results"]
    for answers in (batch, model.streamed([{"features": FEATURES[2], "remember": True}] * 3)):
        assert len({one["id"] for one in answers}) == 3
    assert "late" in [one["label"] for one in model.classify(FEATURES[0], version="live")["labels"]]


def test_what_cannot_be_is_refused_and_audited(model: Model) -> None:
    http, path = model.http, model.path
    for version in ("nosuchversion", "0123456789abcdef", "", "../x", "LIVE"):
        answer = http.post(f"{path}/classify", json={"features": {"a": 1}, "version": version})
        problem(answer, 404, "unknown-version")
    for version in ("0123456789abcdef", "../x"):
        problem(http.post(f"{path}/activate", json={"version": version}), 404, "unknown-version")
    problem(http.post(f"{path}/activate", json={}), 422, "invalid-field", "version")
    problem(http.post(f"{path}/activate", json={"version": "live", "since": 3}), 422, "invalid-field", "since")
    problem(http.post("/models/nosuch/activate", json={"version": "live"}), 404, "unknown-model")
    assert model.about()["version"] == "live"
    model.activate(model.ids[0], reason="because")
    problem(http.delete(f"{path}/versions/{model.ids[0]}"), 409, "conflict")
    for version in model.ids:
        answer = http.post(f"{path}/classify", json={"features": {"a": 1}, "explain": True, "version": version})
        assert "version live" in problem(answer, 422, "invalid-field", "explain")["detail"]
    acts = [one for one in http.get("/audit").json()["acts"] if one["details"].get("model") == model.name]
    done, *refused = [one for one in acts if one["action"] == "version.activate"]
    assert (done["outcome"], done["details"]["reason"]) == ("done", "because")
    assert {one["outcome"] for one in refused} == {"refused"}


def test_the_versions_of_a_model_count_as_its_memory(service: Served) -> None:
    model = Model(service, max_memory=2**20)
    large = version_of(service, model.name, fitted("large", n_features=100_000))
    answer = model.http.post(f"{model.path}/classify", json={"features": {"a": 1}, "version": large.id})
    problem(answer, 507, "no-room")
    problem(model.http.post(f"{model.path}/activate", json={"version": large.id}), 507, "no-room")
    assert model.about()["version"] == "live"
