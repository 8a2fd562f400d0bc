"""Contests as their users see them: over HTTP, with a worker of their own, which is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.client import AsyncClient, Client, Refused
from abound.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.processes.lifetime import dies_with_parent
from abound.store.client import Store
from tests.support.contest_streams import GATE, LABELS, Pair, changed, familiar, wise
from tests.support.served import Served, ndjson, problem, served
from tests.support.small_versions import write

CHALLENGERS = f"/models/{DEFAULT_MODEL}/challengers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    with served(artifacts_url=str(folder)) as one:
        yield one


class Worker:
    """A worker that runs no jobs, with a gate that decides soon."""

    def __init__(self, variables: dict[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
        self._environment = kept | variables
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "abound.worker"], env=self._environment, preexec_fn=dies_with_parent()
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@pytest.fixture
def worker(service: Served, folder: Path) -> Iterator[Worker]:
    worker = Worker(
        {
            "ABOUND_REDIS_URL": service.server.url,
            "ABOUND_ARTIFACTS_URL": str(folder),
            "ABOUND_WORKER_KINDS": "none",
            "ABOUND_GATE_MIN_EVENTS": str(GATE.min_events),
            "ABOUND_LOG_LEVEL": "warning",
        }
    )
    yield worker
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(30) == 0


def made(service: Served, folder: Path) -> tuple[str, CatalogModel]:
    """A version in the artifact store; its id."""

    async def make() -> tuple[str, CatalogModel]:
        store, artifacts = Store(service.server.url), ArtifactStore(str(folder))
        await artifacts.join(store)
        living = (await read_catalog(store)).get(DEFAULT_MODEL)
        assert living is not None
        card = await write(artifacts, living.keys, wise())
        await store.close()
        return card.id, living

    return asyncio.run(make())


def teach(service: Served, pairs: list[Pair]) -> None:
    instances = [{"features": {feature: 1}, "labels": [label]} for feature, label in pairs]
    answer = service.http.post("/learn", content=ndjson(*instances), headers={"content-type": "application/x-ndjson"})
    assert answer.status_code == 200, answer.text


def stats(service: Served) -> Any:
    answer = service.http.get(f"/models/{DEFAULT_MODEL}/stats")
    assert answer.status_code == 200, answer.text
    return answer.json()


def until(found: Callable[[], Any], seconds: float = 90.0) -> Any:
    """Wait for something that is not false; it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if one := found():
            return one
        time.sleep(0.05)
    raise AssertionError("it did not come")


def counted(service: Served, version: str) -> int:
    contest = stats(service)["challengers"]
    found = [one["n"] for one in contest["versions"] if one["version"] == version] if contest else []
    return found[0] if found else 0


def contest_serving(service: Served, version: str) -> Any:
    """The contest once this version is served; the statistics are without a contest while the store is slow."""
    return until(lambda: (contest := stats(service)["challengers"]) and contest["served"] == version and contest)


def is_served(service: Served, version: str) -> bool:
    """Whether the replica has applied the worker's activation, too."""
    return bool(service.http.get(f"/models/{DEFAULT_MODEL}").json()["version"] == version)


def test_a_body_is_read_as_other_routes_read_theirs(service: Served) -> None:
    known = b'{"version": "aaaaaaaa"}'
    problem(service.http.post(CHALLENGERS, content=known), 404, "unknown-version")  # without a Content-Type, too
    problem(service.http.post(CHALLENGERS, content=known, headers={"content-type": "text/plain"}), 415)
    problem(service.http.post(CHALLENGERS, content=b'{"version":'), 400, "malformed")
    problem(service.http.post(CHALLENGERS, content=known + b" " * 2**24), 413, "too-large")
    for body, field in ((b"", "version"), (b'{"version": "A"}', "version"), (known[:-1] + b', "why": 1}', "why")):
        assert problem(service.http.post(CHALLENGERS, content=body), 422, "invalid-field")["field"] == field


def test_promotes_is_killed_goes_on_and_rolls_back(service: Served, folder: Path, worker: Worker) -> None:
    version, living = made(service, folder)
    client: Any = service.server.client()
    keys = living.keys
    assert service.http.get(CHALLENGERS).json() == {"challengers": [], "contest": None}
    answer = service.http.post(CHALLENGERS, json={"version": version, "reason": "it looks good"})
    assert answer.status_code == 201, answer.text
    assert [one["version"] for one in answer.json()["challengers"]] == [version]
    until(lambda: client.exists(keys.key("standings")))

    teach(service, familiar(30))
    until(lambda: counted(service, version) == 30)
    worker.kill()
    teach(service, familiar(30, 30))
    client.delete(keys.key("challengers-lease"))  # it would expire; nobody has to wait for that here
    worker.start()
    until(lambda: counted(service, version) == 60)
    found = contest_serving(service, version)
    assert found["promotions"] == 1
    assert [one["outcome"].split()[0] for one in found["decisions"]] == ["done"]
    until(lambda: is_served(service, version))

    for first in range(0, 60 * LABELS, 20):
        teach(service, changed(20, first))
    found = contest_serving(service, "live")
    assert (found["promotions"], found["rollbacks"]) == (1, 1)
    total = stats(service)["learned"]
    until(lambda: counted(service, "live") == total)
    until(lambda: counted(service, version) == total)
    assert found["gaps"] == 0
    until(lambda: is_served(service, "live"))

    assert service.http.delete(f"{CHALLENGERS}/{version}").status_code == 204
    problem(service.http.delete(f"{CHALLENGERS}/{version}"), 404, "unknown-version")
    client.close()


def test_refuses_what_cannot_be_a_challenger(service: Served) -> None:
    problem(service.http.post(CHALLENGERS, json={"version": "0123456789abcdef"}), 404, "unknown-version")
    problem(service.http.post(CHALLENGERS, json={"version": "live"}), 422)
    problem(service.http.post(CHALLENGERS, json={"version": "0123456789abcdef", "weight": 1}), 422)
    problem(service.http.post("/models/nothing/challengers", json={"version": "0123456789abcdef"}), 404)


def test_clients_enter_challengers(service: Served, folder: Path) -> None:
    version, _ = made(service, folder)
    with Client(service.url) as client:
        entered = client.enter_challenger(DEFAULT_MODEL, version, "it looks good")
        assert [(one["version"], one["reason"]) for one in entered["challengers"]] == [(version, "it looks good")]
        assert client.challengers(DEFAULT_MODEL)["challengers"] == entered["challengers"]
        client.withdraw_challenger(DEFAULT_MODEL, version)
        assert client.challengers(DEFAULT_MODEL)["challengers"] == []
        with pytest.raises(Refused, match="is no challenger"):
            client.withdraw_challenger(DEFAULT_MODEL, version)

    async def the_same() -> None:
        async with AsyncClient(service.url) as client:
            await client.enter_challenger(DEFAULT_MODEL, version)
            assert [one["version"] for one in (await client.challengers(DEFAULT_MODEL))["challengers"]] == [version]
            await client.withdraw_challenger(DEFAULT_MODEL, version)
            assert (await client.challengers(DEFAULT_MODEL))["challengers"] == []

    asyncio.run(the_same())
