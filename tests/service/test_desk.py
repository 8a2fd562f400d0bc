"""The desk of jobs, where the artifact store does not answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from core.errors import ArtifactsUnavailable
from service import desk as desks
from service.desk import Desk, JobRequest
from service.settings import Settings
from tests.service.conftest import StartReplica
from tests.service.valkey import Server

ASKED = JobRequest(method="frequency")


class Hanging:
    """In the place of a file system's ``exists``: it hangs until it is let go, and counts who asks."""

    def __init__(self) -> None:
        self.asked = 0
        self.goes_on = threading.Event()

    def __call__(self, path: str) -> bool:
        self.asked += 1
        self.goes_on.wait(30)
        return True


async def test_an_artifact_store_that_does_not_answer_is_asked_once_and_not_waited_for_long(
    server: Server, start_replica: StartReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = (await start_replica(server)).model("default")
    monkeypatch.setattr(desks, "CHECK_SECONDS", 0.2)
    settings = Settings.load(data_dir=tmp_path, redis_url=server.url, artifacts_url=f"memory://desk-{tmp_path.name}")
    desk = Desk(settings)
    assert desk._artifacts is not None
    hanging = Hanging()
    monkeypatch.setattr(desk._artifacts._filesystem, "exists", hanging)
    try:
        async with asyncio.timeout(20):
            for _ in range(2):
                refused = await asyncio.gather(
                    *(desk.submit(ASKED, model, None) for _ in range(8)), return_exceptions=True
                )
                assert all(isinstance(one, ArtifactsUnavailable) for one in refused), refused
                assert all("has not answered" in str(one) for one in refused)
        assert hanging.asked == 1
        hanging.goes_on.set()
        monkeypatch.setattr(desks, "CHECK_SECONDS", 20.0)
        assert (await desk.submit(ASKED, model, None)).state == "queued"
    finally:
        hanging.goes_on.set()
        await desk.close()


async def test_a_desk_that_closes_does_not_wait_for_the_artifact_store(
    server: Server, start_replica: StartReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = (await start_replica(server)).model("default")
    monkeypatch.setattr(desks, "CHECK_SECONDS", 0.05)
    desk = Desk(Settings.load(data_dir=tmp_path, redis_url=server.url, artifacts_url=f"memory://desk-{tmp_path.name}"))
    assert desk._artifacts is not None
    hanging = Hanging()
    monkeypatch.setattr(desk._artifacts._filesystem, "exists", hanging)
    try:
        with pytest.raises(ArtifactsUnavailable, match="has not answered"):
            await desk.submit(ASKED, model, None)
        assert desk._check is not None
        async with asyncio.timeout(10):
            await desk.close()
        assert desk._check.cancelled()
    finally:
        hanging.goes_on.set()
