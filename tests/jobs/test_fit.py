"""Batch methods as jobs over HTTP: what they fit, how they are judged, and how they are refused and stopped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.client import Client
from abound.client.local_service import own_service
from abound.store.key_names import ModelKeys
from abound.versions import versions as versions
from abound.versions.versions import LoadedVersion
from abound_core.config import ModelConfig
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.methods import fitted as fitting
from abound_core.methods import registry
from abound_core.methods.training.gather import gather
from tests.core.methods.toy import RAW, fit

N = 240
QUICK = ("exmlds1", "frequency", "ogeec", "rembrandt", "swnn", "xr_linear")
METHODS = [pytest.param(one, marks=() if one in QUICK else pytest.mark.long) for one in sorted(registry.METHODS)]


class Place:
    """A service with a worker, and its artifact store."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client = client
        self.directory = directory

    @property
    def artifacts(self) -> ArtifactStore:
        artifacts = ArtifactStore(str(self.directory / "artifacts"))
        (folder,) = (self.directory / "artifacts").iterdir()
        artifacts.id = folder.name
        return artifacts

    def keys(self, model: str) -> ModelKeys:
        (incarnation,) = (Path(str(self.artifacts.path(model)))).iterdir()
        return ModelKeys(model, incarnation.name)

    def done(self, method: str, model: str = "default", **params: Any) -> dict[str, Any]:
        job = self.client.submit({"method": method, "model": model, "params": params})
        seen = list(self.client.follow(job["id"]))
        assert [one["progress"] for one in seen] == sorted(one["progress"] for one in seen), "progress never goes back"
        return seen[-1]

    def files(self, model: str = "default") -> list[str]:
        names = [str(path) for path in self.directory.rglob(f"{model}/*/versions/*/*") if path.is_file()]
        return sorted(name.split("/versions/")[1] for name in names)

    async def load(self, job: dict[str, Any], model: str = "default") -> LoadedVersion:
        assert job["state"] == "succeeded", job["error"]
        return await versions.load(self.artifacts, self.keys(model), job["version"])


def instances(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Of one to three of six classes: words that tell a class, and words that tell nothing."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        classes = rng.choice(6, size=1 + i % 3, replace=False)
        features = {f"c{c}w{w}": 1.0 + float(rng.random()) for c in classes for w in rng.choice(5, 3, replace=False)}
        features |= {f"noise{w}": float(rng.random()) for w in rng.choice(30, 5, replace=False)}
        found.append({"features": features, "labels": [f"class {c}" for c in classes]})
    return found


def in_process(method: str, rows: list[dict[str, Any]]) -> fitting.FittedMethod:
    """The same method, fitted here on the same instances."""
    vectorizer = Vectorizer(ModelConfig(), DATASET_LIMITS)
    read = [DatasetInstance(features=msgspec.json.encode(row["features"]), labels=tuple(row["labels"])) for row in rows]
    data = gather(read, vectorizer, DATASET_LIMITS, (1, 2))
    return fit(method, data, seed=7, use_idf=registry.METHODS[method].idf, **RAW.get(method, {}))


def same(left: fitting.FittedMethod, right: fitting.FittedMethod) -> None:
    first, second = left.to_arrays(), right.to_arrays()
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("data")
    with own_service(data_dir=directory, worker=True) as url, Client(url) as client:
        for first in range(0, N, 60):
            client.learn("default", {"instances": instances(N)[first : first + 60]})
        yield Place(client, directory)


@pytest.mark.parametrize("method", METHODS)
async def test_a_version_is_what_fitting_in_process_gives(place: Place, method: str) -> None:
    job = place.done(method, seed=7, **RAW.get(method, {}))
    loaded = await place.load(job)
    same(loaded.fitted, in_process(method, instances(N)))
    card = loaded.card
    assert (card.method, card.seed, card.data, card.job) == (method, 7, "history", job["id"])
    assert card.sizes["instances"] == N
    assert card.data_range == job["data_range"]
    assert card.data_range == {"after": None, "until": card.offset}
    assert card.metrics == job["metrics"]
    assert card.metrics["held_out"] == N // 10
    assert 0 <= card.metrics["P@1"] <= 1
    if method in ("swnn", "rembrandt", "ogeec", "one_vs_rest"):
        assert card.metrics["R@1"] > 0.5
    assert job["outcome"]["bytes"] == card.n_bytes
    assert job["outcome"]["seconds"]["refit"] >= 0


async def test_it_is_judged_on_the_newest_by_a_fit_without_them(place: Place) -> None:
    rows = instances(N)
    rng = np.random.default_rng(3)
    odd = [{"features": row["features"], "labels": [f"late {rng.integers(3)}"]} for row in instances(40, seed=5)]
    place.client.configure("odd", {})
    place.client.learn("odd", {"instances": rows})
    place.client.learn("odd", {"instances": odd})
    job = place.done("swnn", "odd", held_out=40 / (N + 40) + 1e-9, seed=7)
    assert job["metrics"]["held_out"] == 40
    assert job["metrics"]["R@1"] == 0.0, "nobody could know the late classes"
    loaded = await place.load(job, "odd")
    assert any(label.startswith("late") for label in loaded.fitted.labels), "the version has learned them all the same"
    same(loaded.fitted, in_process("swnn", rows + odd))
    only = place.done("swnn", "odd", held_out=40 / (N + 40) + 1e-9, refit=False)
    older = (await place.load(only, "odd")).fitted
    answer = older.rank_vectors([Vectorizer(ModelConfig(), DATASET_LIMITS).vectorize(b'{"c1w1": 1}', None)], 3)
    assert not any(older.labels[i].startswith("late") for i in answer.ids)


async def test_what_does_not_count_any_more_is_not_learned(place: Place) -> None:
    """A repeat, what was forgotten, and what a restore took back."""
    client = place.client
    client.configure("past", {})
    rows = instances(60)
    for _ in range(2):
        client.learn("past", {"instances": [{**row, "key": f"k{i}"} for i, row in enumerate(rows[:20])]})
    client.learn("past", {"instances": [{"features": {"x": 1}, "labels": ["poison"]}], "source": "bad"})
    here = client.learn("past", {"instances": rows[20:40]})["offset"]
    client.learn("past", {"instances": [{"features": {"y": 1}, "labels": ["mistake"]}]})
    assert place.done("restore", "past", to=here, reason="a mistake")["state"] == "succeeded"
    client.learn("past", {"instances": rows[40:]})
    assert place.done("forget", "past", source="bad", reason="poison")["state"] == "succeeded"
    loaded = await place.load(place.done("ogeec", "past", seed=7, **RAW["ogeec"]), "past")
    assert loaded.card.sizes["instances"] == 60
    same(loaded.fitted, in_process("ogeec", rows))


def test_the_offset_of_a_version_is_that_of_the_last_event_it_learned(place: Place) -> None:
    """Its position as well: who restores to it loses nothing of the entry that many requests share."""
    client = place.client
    client.configure("shared", {})
    body = b"\n".join(msgspec.json.encode(row) for row in instances(60))
    headers = {"content-type": "application/x-ndjson"}
    answer = httpx.post(f"{client.url}/models/shared/learn", content=body, headers=headers, timeout=60)
    last = msgspec.json.decode(answer.text.splitlines()[-1])["offset"]
    assert not last.endswith(".0"), "they share an entry"
    job = place.done("swnn", "shared", S=20)
    assert job["outcome"]["sizes"]["instances"] == 60
    assert job["data_range"] == {"after": None, "until": last}
    assert client.version("shared", job["version"])["offset"] == last
    restored = place.done("restore", "shared", to=last, reason="as the version saw it")
    assert restored["outcome"]["learned"] == 60
    assert place.done("swnn", "shared", S=20)["outcome"]["sizes"]["instances"] == 60


def test_parameters_are_searched_for(place: Place) -> None:
    job = place.done("ind", auto=False)
    found = place.done("swnn", auto=True)
    assert job["state"] == found["state"] == "succeeded", (job, found)
    assert found["outcome"]["params"].keys() == {"S", "alpha", "beta", "prune"}
    assert found["metrics"]["R@1"] > 0.5


def test_a_model_without_events_has_nothing_to_fit_on(place: Place) -> None:
    place.client.configure("empty", {})
    job = place.done("swnn", "empty")
    assert (job["state"], job["error"]) == ("failed", "the model empty has learned nothing")
    assert place.files("empty") == []
    place.client.learn("empty", {"features": {"a": 1}, "labels": ["b"]})
    place.client.import_("imported", place.client.export("empty"))
    job = place.done("ind", "imported")
    assert job["state"] == "failed"
    assert job["error"].startswith("the model imported has learned nothing that history still contains as events")
