"""The store misbehaves while a service answers: classify goes on, learn says so, and all is well again by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from abound.api import learn as learn_api
from benchmarks.faults.clients import Book, Learner, Level, Reader
from benchmarks.faults.ledger import LostTail, examine_now
from benchmarks.faults.run import texts
from benchmarks.serving import free_port
from benchmarks.stores import Pair
from benchmarks.wire import Wire
from tests.support.served import Served


class Scene:
    """A service behind a wire to a store that has a copy."""

    def __init__(self, directory: Path, durability: Level) -> None:
        self.durability: Level = durability
        self.pair = Pair(directory, (free_port(), free_port()))
        self.pair.start()
        self.pair.until_in_step()
        self.wire = Wire(directory / "w", self.pair.primary.socket)
        self.service = Served(SimpleNamespace(url=self.wire.url), durability=durability)  # type: ignore[arg-type]
        self.service.start()

    def ready(self) -> dict[str, Any]:
        """What the service says of itself; it is always ready."""
        answer = self.service.http.get("/readyz")
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def until(self, log: str, seconds: float = 60.0) -> None:
        """Wait until the service says that of its log."""
        deadline = time.monotonic() + seconds
        while self.ready()["log"] != log:
            assert time.monotonic() < deadline, self.ready()
            time.sleep(0.02)

    def close(self) -> None:
        self.service.stop()
        self.wire.close()
        self.pair.close()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Scene]:
    monkeypatch.setenv("ABOUND_STORE_REPLY_SECONDS", "0.5")
    monkeypatch.setattr(learn_api, "APPLY_SECONDS", 3.0)
    scene = Scene(tmp_path, getattr(request, "param", "log"))
    yield scene
    scene.close()


def restarted(scene: Scene) -> None:
    scene.pair.primary.kill()
    scene.until("cut off")
    scene.pair.start()


def failed_over(scene: Scene) -> None:
    scene.wire.cut("refusing")
    scene.until("cut off")
    scene.pair.promote()
    scene.wire.target, scene.wire.state = scene.pair.primary.socket, "open"
    scene.pair.start()


@pytest.mark.parametrize(
    ("hurt", "scene"), [(restarted, "log"), (failed_over, "replica")], ids=["restart", "failover"], indirect=["scene"]
)
def test_classify_goes_on_and_learning_is_never_told_wrong(
    scene: Scene, tmp_path: Path, hurt: Callable[[Scene], None]
) -> None:
    level = scene.durability
    book = Book(tmp_path / "acknowledged.jsonl")
    url, real = scene.service.url, texts()
    learners = [Learner(url, f"event/{form}", form, level, real, book, 0.02) for form in ("single", "batch", "lines")]
    readers = [Reader(url, f"reader {i}", real, book, 0.02) for i in range(2)]
    clients: list[Learner | Reader] = [*learners, *readers]
    for client in clients:
        client.start()
    while len(book.acknowledged) < 30:
        time.sleep(0.01)
    hurt(scene)
    scene.until("connected")
    enough = len(book.acknowledged) + 30
    deadline = time.monotonic() + 60
    while len(book.acknowledged) < enough or book.counts["asked"] <= 30:
        assert time.monotonic() < deadline, scene.ready()
        time.sleep(0.01)
    for client in clients:
        client.stop()
    for client in clients:
        client.join(30)
    book.close()
    assert book.wrong == []
    assert book.counts["classify failed"] == 0, book.counts
    findings = examine_now(scene.pair.primary.url, book.acknowledged, list[LostTail]())
    assert findings.good, findings
    assert scene.service.learned() == findings.learned


def test_without_a_store_learning_is_refused_in_time_and_says_whether_it_may_have_happened(scene: Scene) -> None:
    body = {"text": "wheat prices rise", "labels": ["grain"]}
    scene.service.http.post("/learn", json=body).raise_for_status()
    scene.pair.primary.signal(signal.SIGSTOP)
    began = time.monotonic()
    first = httpx.post(f"{scene.service.url}/learn", json=body, headers={"Idempotency-Key": "one"}, timeout=30)
    assert time.monotonic() - began < 20
    assert first.status_code == 504
    assert "same Idempotency-Key may be sent again" in first.json()["detail"]
    scene.until("cut off")
    second = scene.service.http.post("/learn", json=body, headers={"Idempotency-Key": "two"})
    assert second.status_code == 503
    assert int(second.headers["retry-after"]) >= 1
    assert scene.service.http.post("/classify", json={"text": "wheat"}).status_code == 200
    assert scene.ready()["since"] > 0
    scene.pair.primary.signal(signal.SIGCONT)
    scene.until("connected")
    again = scene.service.http.post("/learn", json=body, headers={"Idempotency-Key": "one"})
    assert again.status_code == 200
    assert scene.service.learned() == 2
