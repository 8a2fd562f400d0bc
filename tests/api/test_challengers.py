"""Contests as their users see them: over HTTP, with a worker of their own, which is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from abound.log.catalog import DEFAULT_MODEL
from abound.processes.lifetime import dies_with_parent
from tests.support.contest_streams import GATE, LABELS, Pair, changed, familiar, wise
from tests.support.job_worker import until
from tests.support.served import NDJSON, Served, lines, ndjson, problem
from tests.support.small_versions import version_of

CHALLENGERS = f"/models/{DEFAULT_MODEL}/challengers"
KNOWN = b'{"version": "aaaaaaaa"}'


HAS_ARTIFACTS = True


@pytest.fixture
def start_worker(service: Served) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a worker that runs no jobs, with a gate that decides soon; the last one is stopped at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")} | {
        "ABOUND_REDIS_URL": service.server.url,
        "ABOUND_ARTIFACTS_URL": service.settings.artifacts_location() or "",
        "ABOUND_WORKER_KINDS": "none",
        "ABOUND_GATE_MIN_EVENTS": str(GATE.min_events),
        "ABOUND_LOG_LEVEL": "warning",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "abound.worker"]
        started.append(subprocess.Popen(words, env=environment, preexec_fn=dies_with_parent()))
        return started[-1]

    yield start
    started[-1].terminate()
    assert started[-1].wait(30) == 0


def teach(service: Served, pairs: list[Pair]) -> None:
    instances = [{"features": {feature: 1}, "labels": [label]} for feature, label in pairs]
    lines(service.http.post("/learn", content=ndjson(*instances), headers=NDJSON))


def contest(service: Served) -> dict[str, Any]:
    """The contest; the statistics are without one while the store is slow."""
    found: dict[str, Any] = until(lambda: service.http.get(f"/models/{DEFAULT_MODEL}/stats").json()["challengers"], 90)
    return found


def until_counted(service: Served, version: str, n: int) -> None:
    """Wait until the contest has counted so many events of a version."""
    until(lambda: {one["version"]: one["n"] for one in contest(service)["versions"]}.get(version, 0) == n, 90)


def contest_serving(service: Served, version: str) -> dict[str, Any]:
    """The contest once this version is served, by the replica, too."""
    until(lambda: service.http.get(f"/models/{DEFAULT_MODEL}").json()["version"] == version, 90)
    found: dict[str, Any] = until(lambda: (one := contest(service))["served"] == version and one, 90)
    return found


@pytest.mark.parametrize(
    ("body", "media", "status", "field"),
    [
        (KNOWN, None, 404, None),
        (KNOWN, "text/plain", 415, None),
        (b'{"version":', None, 400, None),
        (KNOWN + b" " * 2**24, None, 413, None),
        (b"", None, 422, "version"),
        (b'{"version": "A"}', None, 422, "version"),
        (b'{"version": "live"}', None, 422, "version"),
        (KNOWN[:-1] + b', "why": 1}', None, 422, "why"),
    ],
    ids=["unknown", "media type", "cut", "large", "empty", "no id", "live", "field"],
)
def test_what_cannot_be_a_challenger_is_refused(
    service: Served, body: bytes, media: str | None, status: int, field: str | None
) -> None:
    answer = service.http.post(CHALLENGERS, content=body, headers={"content-type": media} if media else {})
    problem(answer, status, field=field)
    problem(service.http.post("/models/nothing/challengers", content=KNOWN), 404, "unknown-model")


def test_promotes_is_killed_goes_on_and_rolls_back(service: Served, start_worker: Any) -> None:
    worker = start_worker()
    client: Any = service.server.client()
    keys = service.app.state.parts.replica.model(DEFAULT_MODEL).keys
    version = version_of(service, DEFAULT_MODEL, wise()).id
    assert service.http.get(CHALLENGERS).json() == {"challengers": [], "contest": None}
    answer = service.http.post(CHALLENGERS, json={"version": version, "reason": "it looks good"})
    assert answer.status_code == 201, answer.text
    assert [(one["version"], one["reason"]) for one in answer.json()["challengers"]] == [(version, "it looks good")]
    until(lambda: client.exists(keys.key("standings")), 90)

    teach(service, familiar(30))
    until_counted(service, version, 30)
    worker.kill()
    worker.wait(30)
    teach(service, familiar(30, 30))
    client.delete(keys.key("challengers-lease"))  # it would expire; nobody has to wait for that here
    start_worker()
    until_counted(service, version, 60)
    found = contest_serving(service, version)
    assert found["promotions"] == 1
    assert [one["outcome"].split()[0] for one in found["decisions"]] == ["done"]

    for first in range(0, 60 * LABELS, 20):
        teach(service, changed(20, first))
    found = contest_serving(service, "live")
    assert (found["promotions"], found["rollbacks"], found["gaps"]) == (1, 1, 0)
    for one in ("live", version):
        until_counted(service, one, service.learned())

    assert service.http.delete(f"{CHALLENGERS}/{version}").status_code == 204
    assert service.http.get(CHALLENGERS).json()["challengers"] == []
    problem(service.http.delete(f"{CHALLENGERS}/{version}"), 404, "unknown-version")
    client.close()
