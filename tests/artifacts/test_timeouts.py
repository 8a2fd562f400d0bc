"""An artifact store that accepts what it is asked and never answers: nothing but what needs it is held up."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from abound.artifacts.artifact_store import ArtifactStore
from abound.state import schedule
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store
from abound.worker import Worker
from tests.support import job_worker
from tests.support.replicas import until
from tests.support.served import served
from tests.support.streams import drafts
from tests.support.valkey import Server
from tests.test_worker import newest

NEVER = SnapshotParams(every_bytes=2**40, every_seconds=1e9, wanted_seconds=60.0)
QUICKLY = 0.2

SILENT_WORKER = """
import threading, fsspec, sys
from fsspec.implementations.memory import MemoryFileSystem
class Silent(MemoryFileSystem):
    protocol = "silent"
    def exists(self, *given, **more):
        threading.Event().wait()
    makedirs = exists
fsspec.register_implementation("silent", Silent)
from abound.worker import main
sys.exit(main())
"""


class Silent(MemoryFileSystem):
    """Answers nothing while ``answers`` is not set."""

    protocol = "silent"
    answers = threading.Event()


def _waiting(name: str) -> Any:
    def call(self: Silent, *given: Any, **more: Any) -> Any:
        self.answers.wait(60)
        return getattr(MemoryFileSystem, name)(self, *given, **more)

    return call


for _name in ("exists", "info", "ls", "cat_file", "pipe_file", "makedirs", "rm_file", "rm", "open"):
    setattr(Silent, _name, _waiting(_name))


@pytest.fixture(autouse=True)
def silent() -> Iterator[threading.Event]:
    """Set while the artifact store answers."""
    fsspec.register_implementation("silent", Silent, clobber=True)
    Silent.answers.clear()
    yield Silent.answers
    Silent.answers.set()


@asynccontextmanager
async def working(server: Server, artifacts: ArtifactStore) -> AsyncIterator[None]:
    store = Store(server.url, server.store_params)
    worker = Worker(store, NEVER, artifacts=artifacts)
    running = asyncio.create_task(worker.run())
    yield
    worker.stop()
    await asyncio.wait_for(running, 30)
    await store.close()


@pytest.mark.parametrize("joined", [False, True])
async def test_snapshots_need_no_artifact_store(server, start_replica, tmp_path, silent, monkeypatch, joined):
    monkeypatch.setattr("abound.artifacts.availability.JOIN_SECONDS", QUICKLY)
    monkeypatch.setattr("abound.replica.storage_status.LOOK_SECONDS", 0.1)
    silent.set()
    url = f"silent://{tmp_path.name}-{joined}"
    replica = await start_replica(server, artifacts=ArtifactStore(url, patience=QUICKLY))
    artifacts = ArtifactStore(url, patience=QUICKLY)
    if joined:
        await artifacts.join(replica.store)
    silent.clear()
    await replica.learn("default", drafts(20))
    async with working(server, artifacts):
        await until(lambda: schedule.live_workers(replica.store))
        async with asyncio.timeout(60):
            for _ in range(2):
                await replica.learn("default", drafts(2))
                await replica.request_snapshot("default")
        key = replica.model("default").keys.key("worker-status")
        said = await replica.store.client.hget(key, "history")
        assert b"the artifact store does not answer" in said
        silent.set()
        async with asyncio.timeout(60):
            while await replica.store.client.hget(key, "history"):
                await replica.learn("default", drafts(2))
                await replica.request_snapshot("default")


async def test_a_worker_that_waits_for_the_artifact_store_ends_on_sigterm(server, start_replica):
    replica = await start_replica(server)
    await replica.learn("default", drafts(50))
    environment = os.environ | {
        "ABOUND_REDIS_URL": server.url,
        "ABOUND_ARTIFACTS_URL": "silent://bucket",
        "ABOUND_SNAPSHOTS_EVERY_BYTES": "100",
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SILENT_WORKER, env=environment)
    try:
        await newest(replica, 1, seconds=240)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert await schedule.live_workers(replica.store) == {}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


VERSION = "0123456789abcdef"

ROUTES: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/models/{model}/versions", {}),
    ("GET", "/models/{model}/comparison", {"params": {"id": [VERSION, VERSION]}}),
    ("GET", "/models/{model}/versions/{version}", {}),
    ("DELETE", "/models/{model}/versions/{version}", {}),
    ("GET", "/models/{model}/versions/{version}/export", {}),
    ("POST", "/models/{model}/activate", {"json": {"version": VERSION, "reason": "test"}}),
    ("POST", "/models/{model}/challengers", {"json": {"version": VERSION, "reason": "test"}}),
    ("POST", "/models/{model}/classify", {"json": {"text": "a", "version": VERSION}}),
    ("PUT", "/datasets/{dataset}", {"content": b"1 1 1\n0 0:1\n", "params": {"filename": "a.txt"}}),
    ("PUT", "/models/copy/import", {"content": b"x"}),
    ("POST", "/jobs", {"json": {"method": "frequency"}}),
]
"""All that reads the artifact store; the others of the service ask the store of events alone."""


@pytest.mark.parametrize("before", ["silent from the start", "silent later"])
def test_whoever_needs_the_artifact_store_is_told_that_it_does_not_answer(monkeypatch, silent, tmp_path, before):
    if before == "silent later":
        silent.set()
    for bound in ("api.app.PATIENCE_SECONDS", "artifacts.availability.JOIN_SECONDS"):
        monkeypatch.setattr(f"abound.{bound}", QUICKLY)
    with served(artifacts_url=f"silent://{tmp_path.name}-routes", data_dir=tmp_path) as service:
        silent.clear()
        for method, path, body in ROUTES:
            url = path.format(model="default", version=VERSION, dataset="d")
            began = time.monotonic()
            answer = service.http.request(method, url, **body)
            said = answer.json()
            assert (answer.status_code, said["type"]) == (503, "/problems/artifacts-unavailable"), (method, url, said)
            assert "answer" in said["detail"], said
            assert int(answer.headers["retry-after"]) >= 1
            assert time.monotonic() - began < 30, url
        silent.set()
        job_worker.until(lambda: service.http.get("/models/default/versions").status_code == 200)


async def test_a_slow_call_is_waited_for_while_the_store_answers(store, tmp_path, monkeypatch, silent):
    silent.set()
    artifacts = ArtifactStore(f"silent://{tmp_path.name}-slow", patience=1.5)
    await artifacts.join(store)
    await artifacts.put("a", b"1")
    reading = Silent.cat_file

    def slow(self: Silent, path: str, **more: Any) -> Any:
        time.sleep(2)
        return reading(self, path, **more)

    monkeypatch.setattr(Silent, "cat_file", slow)
    assert await artifacts.get("a") == b"1"
