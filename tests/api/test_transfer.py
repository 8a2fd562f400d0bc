from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from abound.artifacts.artifact_store import ArtifactStore
from abound.client import Client
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store
from abound.worker import Worker
from tests.state.test_model_file import FILE, LARGE, with_head
from tests.support.command_line import Ran, Run
from tests.support.served import Served, problem, served


class WorkerThread:
    """A worker beside a service, in a thread."""

    def __init__(self, service: Served, artifacts: Path) -> None:
        self._service = service
        self._artifacts = artifacts
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._made = threading.Event()
        self._thread.start()
        assert self._made.wait(60)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        store = Store(self._service.server.url)
        artifacts = ArtifactStore(str(self._artifacts))
        self._worker = Worker(store, SnapshotParams(every_bytes=2**40, every_seconds=1e9), artifacts=artifacts)
        self._made.set()
        await self._worker.run()
        await store.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    with served(artifacts_url=SecretStr(str(folder)), max_import_bytes=2**22) as service:
        worker = WorkerThread(service, folder)
        yield service
        worker.stop()


def taught(service: Served, name: str, n: int = 40, **config: Any) -> dict[str, Any]:
    service.http.put(f"/models/{name}", json={"d_max": 9, **config}).raise_for_status()
    instances = [{"features": {f"a{i % 7}": 1, f"b{i % 5}": 2}, "labels": [f"c{i % 4}"]} for i in range(n)]
    service.http.post(f"/models/{name}/learn", json={"instances": instances}).raise_for_status()
    described: dict[str, Any] = service.http.get(f"/models/{name}").json()
    return described


def test_what_its_scores_are_worth_goes_with_a_model(service: Served) -> None:
    before = taught(service, "calibrated", calibrate=True)
    file = service.http.get("/models/calibrated/export").content
    after = service.http.put("/models/elsewhere/import", content=file).json()
    assert after["digest"] == before["digest"]
    asked = {"features": {"a1": 1, "b1": 1}, "k": 4, "min_probability": 0.01}
    answers = [service.http.post(f"/models/{name}/classify", json=asked).json() for name in ("calibrated", "elsewhere")]
    assert answers[0]["labels"] == answers[1]["labels"] != []
    told = [service.http.get(f"/models/{name}/stats").json()["calibration"] for name in ("calibrated", "elsewhere")]
    assert told[0] == told[1] is not None


def test_what_it_has_learned_of_vectors_goes_with_a_model(service: Served) -> None:
    service.http.put("/models/reranked", json={"update": "sls"}).raise_for_status()
    instances = [{"text": f"a{i % 7}", "vector": [i % 3, i % 4, 1], "labels": [f"c{i % 3}"]} for i in range(40)]
    service.http.post("/models/reranked/learn", json={"instances": instances}).raise_for_status()
    file = service.http.get("/models/reranked/export").content
    after = service.http.put("/models/reranked-elsewhere/import", content=file).json()
    assert after["digest"] == service.http.get("/models/reranked").json()["digest"]
    asked, names = {"text": "a1", "vector": [1, 2, 1]}, ("reranked", "reranked-elsewhere")
    answers = [service.http.post(f"/models/{name}/classify", json=asked).json() for name in names]
    assert answers[0]["labels"] == answers[1]["labels"] != []
    told = [service.http.get(f"/models/{name}/stats").json()["reranking"] for name in names]
    assert told[0] == told[1] is not None


def test_the_names_of_labels_go_with_a_model(service: Served) -> None:
    taught(service, "named", update="sls")
    labels = [
        {"label": "c1", "name": "red wheat", "metadata": {"colour": "red"}},
        {"label": "c7", "description": "crude oil", "parent": "c1"},
    ]
    service.http.put("/models/named/labels", json={"labels": labels}).raise_for_status()
    file = service.http.get("/models/named/export").content
    after = service.http.put("/models/named-elsewhere/import", content=file).json()
    assert after["digest"] == service.http.get("/models/named").json()["digest"]
    service.http.put("/models/named-before", json={}).raise_for_status()
    service.http.put("/models/named-before/labels", json={"labels": labels}).raise_for_status()
    refused = service.http.put("/models/named-before/import", content=file)
    assert "has registered labels" in problem(refused, 409, "conflict")["detail"]
    told = [service.http.get(f"/models/{name}/labels").json() for name in ("named", "named-elsewhere")]
    assert told[0]["details"] == told[1]["details"]
    assert told[1]["details"]["c1"]["metadata"] == {"colour": "red"}
    asked = {"text": "oil", "names": True}
    answers = [
        service.http.post(f"/models/{name}/classify", json=asked).json() for name in ("named", "named-elsewhere")
    ]
    assert answers[0]["labels"] == answers[1]["labels"]
    assert answers[1]["labels"][0]["label"] == "c7"


def test_a_model_goes_out_and_comes_in_again_as_it_was(service: Served) -> None:
    before = taught(service, "out")
    file = service.http.get("/models/out/export")
    assert file.status_code == 200
    assert file.headers["content-type"] == "application/vnd.abound.model"
    assert len(file.content) == int(file.headers["content-length"])
    answer = service.http.put("/models/in/import", content=file.content)
    assert answer.status_code == 201, answer.text
    after = answer.json()
    assert (after["name"], after["digest"], after["learned"]) == ("in", before["digest"], 40)
    assert after["config"] == before["config"]
    asked = {"features": {"a1": 1, "b1": 1}, "k": 4}
    answers = [service.http.post(f"/models/{name}/classify", json=asked).json()["labels"] for name in ("out", "in")]
    assert answers[0] == answers[1] != []
    one = {"features": {"a1": 1}, "labels": ["new"]}
    for name in ("out", "in"):
        service.http.post(f"/models/{name}/learn", json=one).raise_for_status()
    assert service.http.get("/models/in").json()["digest"] == service.http.get("/models/out").json()["digest"]
    problem(service.http.put("/models/in/import", content=file.content), 409, "conflict")


def test_an_empty_model_that_is_there_takes_a_file_over(service: Served) -> None:
    before = taught(service, "source")
    file = service.http.get("/models/source/export").content
    service.http.put("/models/empty", json={"d_max": 3}).raise_for_status()
    answer = service.http.put("/models/empty/import", content=iter([file[:100], file[100:5000], file[5000:]]))
    assert answer.status_code == 201, answer.text
    assert answer.json()["digest"] == before["digest"]
    assert answer.json()["config"]["d_max"] == 9


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "malformed"),
        (b"anything", 400, "malformed"),
        (FILE[:-1], 400, "malformed"),
        (FILE + b"x", 400, "malformed"),
        (FILE[:-9] + b"x" + FILE[-8:], 400, "malformed"),
        (with_head({"format": 9}), 422, "invalid-field"),
        (with_head({"parts": [{"size": 2**23, "checksum": ""}]}), 413, "too-large"),
    ],
)
def test_what_is_no_model_is_refused_and_leaves_nothing(
    service: Served, folder: Path, body: bytes, status: int, kind: str
) -> None:
    files = sorted(folder.rglob("index/*/*"))
    problem(service.http.put("/models/never/import", content=body), status, kind)
    problem(service.http.get("/models/never"), 404, "unknown-model")
    assert sorted(folder.rglob("index/*/*")) == files
    streamed = service.http.put("/models/never/import", content=iter([body[:10], body[10:]]))
    problem(streamed, status, kind)
    assert service.http.get("/readyz").status_code == 200


def test_a_file_over_the_limit_is_refused_before_it_is_read(service: Served) -> None:
    problem(service.http.put("/models/never/import", content=bytes(2**22 + 1)), 413, "too-large")


def test_names_are_checked(service: Served) -> None:
    problem(service.http.get("/models/none/export"), 404, "unknown-model")
    problem(service.http.put("/models/*/import", content=FILE), 422, "invalid-field")


def test_the_client_writes_a_file_and_reads_it(service: Served, tmp_path: Path) -> None:
    before = taught(service, "clients")
    with Client(service.url) as client:
        file = tmp_path / "model.abound"
        file.write_bytes(b"".join(client.export("clients")))
        with file.open("rb") as data:
            answer = client.import_("clients-2", iter(lambda: data.read(1000), b""))
    assert answer["digest"] == before["digest"]


def test_without_an_artifact_store_there_is_no_import() -> None:
    with served() as service:
        problem(service.http.put("/models/new/import", content=FILE), 503)


def test_a_model_that_there_is_no_memory_for_is_refused(tmp_path: Path) -> None:
    with served(artifacts_url=SecretStr(str(tmp_path)), max_memory=2**20) as service:
        refusal = problem(service.http.put("/models/large/import", content=LARGE), 507, "no-room")
        assert "of at most 1048576 (ABOUND_MAX_MEMORY)" in refusal["detail"]
        problem(service.http.get("/models/large"), 404, "unknown-model")
        assert service.http.put("/models/small/import", content=FILE).status_code == 201
        learned = service.http.post("/models/small/learn", json={"features": {"a": 1}, "labels": ["b"]})
        assert learned.status_code == 200, learned.text


def last(told: Ran) -> dict[str, Any]:
    """What a command said, among what the service and the worker of this process logged."""
    [line] = [line for line in told.out.splitlines() if line.startswith("{")]
    said: dict[str, Any] = json.loads(line)
    return said


def test_the_command_line_writes_a_file_and_reads_it(
    service: Served,
    tmp_path: Path,
    run: Run,
) -> None:
    before = taught(service, "typed")
    file = tmp_path / "typed.abound"
    told = run("models", "export", "typed", file, "--url", service.url, "--json")
    assert (told.code, last(told)["bytes"]) == (0, file.stat().st_size)
    told = run("models", "import", "typed-2", file, "--url", service.url, "--json")
    assert (told.code, last(told)["digest"]) == (0, before["digest"])
    assert run("models", "import", "typed-2", file, "--url", service.url).code == 1  # it has learned
    assert run("models", "import", "typed-3", tmp_path / "none", "--url", service.url).code == 1
    assert run("models", "export", "none", tmp_path / "other", "--url", service.url).code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["typed.abound"]
