import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store
from abound.worker import Worker
from tests.state.test_model_file import FILE, with_head
from tests.support.command_line import Ran, Run
from tests.support.served import Served, problem, served

HAS_ARTIFACTS = True
SETTINGS = {"max_import_bytes": 2**22}


@pytest.fixture(scope="module", autouse=True)
def _worker(service: Served) -> Iterator[None]:
    """A worker beside the service, in its event loop."""

    async def work() -> None:
        store = Store(service.server.url)
        params = SnapshotParams(every_bytes=2**40, every_seconds=1e9)
        try:
            await Worker(store, params, artifacts=ArtifactStore(service.settings.artifacts_location() or "")).run()
        finally:
            await store.close()

    working = asyncio.run_coroutine_threadsafe(work(), service.loop)
    yield
    working.cancel()


def taught(service: Served, name: str, vectors: bool = False, **config: Any) -> dict[str, Any]:
    service.http.put(f"/models/{name}", json=config).raise_for_status()
    instances = [
        {"text": f"a{i % 7} b{i % 5}", "labels": [f"c{i % 4}"]} | ({"vector": [i % 3, i % 4, 1]} if vectors else {})
        for i in range(40)
    ]
    service.http.post(f"/models/{name}/learn", json={"instances": instances}).raise_for_status()
    return service.http.get(f"/models/{name}").json()


LABELS = [
    {"label": "c1", "name": "red wheat", "metadata": {"colour": "red"}},
    {"label": "c7", "description": "crude oil", "parent": "c1"},
]


@pytest.mark.parametrize("config", [{"d_max": 9}, {"update": "sls"}], ids=["fsu", "sls"])
def test_a_model_goes_out_and_comes_in_again_as_it_was(service: Served, config: dict[str, Any]) -> None:
    name = config.get("update", "fsu")
    taught(service, name, name == "sls", **config)
    service.http.put(f"/models/{name}/labels", json={"labels": LABELS}).raise_for_status()
    file = service.http.get(f"/models/{name}/export")
    assert (file.status_code, file.headers["content-type"]) == (200, "application/vnd.abound.model")
    assert len(file.content) == int(file.headers["content-length"])
    answer = service.http.put(f"/models/{name}-2/import", content=file.content)
    assert (answer.status_code, answer.json()["name"]) == (201, f"{name}-2"), answer.text

    def told(path: str, *parts: str, body: Any = None) -> list[list[Any]]:
        method = "POST" if body else "GET"
        paths = (f"/models/{one}{path}" for one in (name, f"{name}-2"))
        answers = [service.http.request(method, one, json=body).json() for one in paths]
        return [[one[part] for part in parts] for one in answers]

    for here, there in (
        told("", "digest", "learned", "config"),
        told("/classify", "labels", body={"text": "a1 b1 oil", "k": 9, "names": True}),
        told("/labels", "labels", "learned", "details"),
        told("/stats", "calibration", "reranking"),
    ):
        assert here == there
    for one in (name, f"{name}-2"):
        service.http.post(f"/models/{one}/learn", json={"text": "a1", "labels": ["new"]}).raise_for_status()
    problem(service.http.put(f"/models/{name}-2/import", content=file.content), 409, "conflict")
    here, there = told("", "digest")
    assert here == there


def test_suspicious_events_stay_suspicious_or_dismissed(service: Served) -> None:
    texts = {"theft": "my card was stolen", "refund": "send the money back"}
    right = [{"text": f"{text} {n}", "labels": [label]} for n in range(30) for label, text in texts.items()]
    wrong = [{"text": f"my card was stolen {word}", "labels": ["refund"]} for word in ("now", "here")]
    service.http.put("/models/doubtful", json={"update": "sls", "calibrate": True}).raise_for_status()
    service.http.post("/models/doubtful/learn", json={"instances": right + wrong}).raise_for_status()
    listed = service.http.get("/models/doubtful/suspicious").json()["events"]
    service.http.delete(f"/models/doubtful/suspicious/{listed[0]['offset']}").raise_for_status()
    file = service.http.get("/models/doubtful/export").content
    service.http.put("/models/doubtful-2/import", content=file).raise_for_status()
    # The file has no events.
    expected = [one | {"features": None} for one in listed[1:]]
    assert service.http.get("/models/doubtful-2/suspicious").json() == {"total": len(listed) - 1, "events": expected}
    assert service.http.get("/models/doubtful-2/events").json() == {"events": []}


def test_an_empty_model_that_is_there_takes_a_file_over_but_not_one_with_labels(service: Served) -> None:
    before = taught(service, "source", d_max=9)
    file = service.http.get("/models/source/export").content
    for name in ("empty", "with-labels"):
        service.http.put(f"/models/{name}", json={"d_max": 3}).raise_for_status()
    answer = service.http.put("/models/empty/import", content=iter([file[:100], file[100:5000], file[5000:]]))
    assert answer.status_code == 201, answer.text
    assert (answer.json()["digest"], answer.json()["config"]["d_max"]) == (before["digest"], 9)
    service.http.put("/models/with-labels/labels", json={"labels": LABELS}).raise_for_status()
    refused = service.http.put("/models/with-labels/import", content=file)
    assert "has registered labels" in problem(refused, 409, "conflict")["detail"]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        *((one, 400, "malformed") for one in (b"", b"anything", FILE[:-1], FILE + b"x", FILE[:-9] + b"x" + FILE[-8:])),
        (with_head({"format": 9}), 422, "invalid-field"),
        (with_head({"parts": [{"size": 2**23, "checksum": ""}]}), 413, "too-large"),
    ],
)
def test_what_is_no_model_is_refused_and_leaves_nothing(service: Served, body: bytes, status: int, kind: str) -> None:
    folder = Path(service.settings.artifacts_location() or "")
    files = sorted(folder.rglob("index/*/*"))
    problem(service.http.put("/models/never/import", content=body), status, kind)
    problem(service.http.get("/models/never"), 404, "unknown-model")
    assert sorted(folder.rglob("index/*/*")) == files
    streamed = service.http.put("/models/never/import", content=iter([body[:10], body[10:]]))
    problem(streamed, status, kind)
    assert service.http.get("/readyz").status_code == 200


def test_without_scikit_learn_stop_words_are_refused_and_nothing_is_lost(service: Served, monkeypatch) -> None:
    before = taught(service, "stopping", analyzer={"stop_words": "english"})
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    replica = Served(service.server, artifacts_url=service.settings.artifacts_url)
    replica.start()
    try:
        for answer in (
            service.http.put("/models/new", json={"analyzer": before["config"]["analyzer"]}),
            service.http.put("/models/new/import", content=service.http.get("/models/stopping/export").content),
            replica.http.post("/models/stopping/learn", json={"text": "the wheat", "labels": ["c1"]}),
        ):
            assert "pip install 'abound[sklearn]'" in problem(answer, 422, field="analyzer.stop_words")["detail"]
        problem(service.http.get("/models/new"), 404)
        assert replica.http.get("/models/stopping").json()["digest"] == before["digest"]
    finally:
        replica.stop()


def test_a_file_over_the_limit_is_refused_before_it_is_read(service: Served) -> None:
    problem(service.http.put("/models/never/import", content=bytes(2**22 + 1)), 413, "too-large")


def test_without_an_artifact_store_there_is_no_import() -> None:
    with served() as service:
        problem(service.http.put("/models/new/import", content=FILE), 503)


def last(told: Ran) -> dict[str, Any]:
    """What a command said, among what the service and the worker of this process logged."""
    [line] = [line for line in told.out.splitlines() if line.startswith("{")]
    return json.loads(line)


def test_the_command_line_writes_a_file_and_reads_it(service: Served, tmp_path: Path, run: Run) -> None:
    before = taught(service, "typed")
    file = tmp_path / "typed.abound"
    told = run("models", "export", "typed", file, "--url", service.url, "--json")
    assert (told.code, last(told)["bytes"]) == (0, file.stat().st_size)
    told = run("models", "import", "typed-2", file, "--url", service.url, "--json")
    assert (told.code, last(told)["digest"]) == (0, before["digest"])
    assert run("models", "import", "typed-3", tmp_path / "none", "--url", service.url).code == 1
    assert run("models", "export", "none", tmp_path / "other", "--url", service.url).code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["typed.abound"]
