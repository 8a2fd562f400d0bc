"""The store misbehaves while a service answers: classify goes on, learn says so, and all is well again by itself."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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

SECONDS = 1.5
"""How long a fault lasts; the service waits half a second for a reply."""


class Scene:
    """A service behind a wire to a store that has a copy."""

    def __init__(self, directory: Path, durability: Level) -> None:
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
    time.sleep(SECONDS)
    scene.pair.start()


def stopped(scene: Scene, seconds: float = SECONDS) -> None:
    scene.pair.primary.signal(signal.SIGSTOP)
    scene.until("cut off")
    time.sleep(seconds)
    scene.pair.primary.signal(signal.SIGCONT)


def stopped_for_long(scene: Scene) -> None:
    stopped(scene, 30.0)


def cut(scene: Scene) -> None:
    for _ in range(5):
        scene.wire.cut()
        time.sleep(SECONDS / 5)


def refused(scene: Scene) -> None:
    scene.wire.cut("refusing")
    scene.until("cut off")
    time.sleep(SECONDS)
    scene.wire.state = "open"


def held(scene: Scene) -> None:
    scene.wire.state = "holding"
    scene.until("cut off")
    time.sleep(SECONDS)
    scene.wire.state = "open"


def slow(scene: Scene) -> None:
    scene.wire.delay = 0.05
    time.sleep(2 * SECONDS)
    scene.until("connected")
    scene.wire.delay = 0.0


def failed_over(scene: Scene) -> None:
    scene.wire.cut("refusing")
    scene.until("cut off")
    scene.pair.promote()
    scene.wire.target, scene.wire.state = scene.pair.primary.socket, "open"
    scene.pair.start()


FAULTS: dict[str, tuple[Callable[[Scene], None], Level]] = {
    "restart": (restarted, "log"),
    "stop": (stopped, "log"),
    "cut": (cut, "fsync"),
    "refuse": (refused, "log"),
    "hold": (held, "log"),
    "slow": (slow, "log"),
    "failover": (failed_over, "replica"),
    "long stop": (stopped_for_long, "log"),
}


@pytest.mark.parametrize(
    ("fault", "scene"),
    [
        pytest.param(name, level, marks=pytest.mark.long if name == "long stop" else (), id=name)
        for name, (_, level) in FAULTS.items()
    ],
    indirect=["scene"],
)
def test_classify_goes_on_and_learning_is_never_told_wrong(scene: Scene, tmp_path: Path, fault: str) -> None:
    hurt, level = FAULTS[fault]
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
    while len(book.acknowledged) < enough:
        assert time.monotonic() < deadline, scene.ready()
        time.sleep(0.01)
    for client in clients:
        client.stop()
    for client in clients:
        client.join(30)
    book.close()
    assert book.wrong == []
    assert book.counts["classify failed"] == 0, book.counts
    assert book.counts["asked"] > 30
    findings = examine_now(scene.pair.primary.url, book.acknowledged, list[LostTail]())
    assert findings.good, findings
    assert scene.service.learned() == findings.learned


@pytest.mark.parametrize("scene", ["replica"], indirect=True)
def test_a_failover_that_loses_a_tail_loses_nothing_that_a_copy_had_and_doubles_nothing(scene: Scene) -> None:
    """Clients send again, under their keys, whatever was not acknowledged as they asked, and what may be gone."""
    safe: list[str] = []
    over = threading.Event()

    def learn(key: str, url: str, level: Level) -> None:
        """Send it under its key until this durability is acknowledged."""
        body = {"text": f"wheat prices rise {key}", "labels": ["grain", key]}
        headers = {"Idempotency-Key": key}
        while True:
            with suppress(httpx.HTTPError):
                answer = httpx.post(f"{url}/learn", json=body, headers=headers, timeout=10)
                if answer.status_code == 200 and answer.json()["durability"] == level:
                    return
            time.sleep(0.02)

    def insist(name: str) -> None:
        for i in itertools.count():
            learn(f"{name} {i}", scene.service.url, "replica")
            safe.append(f"{name} {i}")
            if over.is_set():
                return

    clients = [threading.Thread(target=insist, args=(name,)) for name in ("a", "b")]
    for client in clients:
        client.start()
    while len(safe) < 20:
        time.sleep(0.01)
    with scene.pair.copy.client() as copy:
        copy.replicaof("127.0.0.1", 1)  # it hears of nothing more
    tail = [f"tail {i}" for i in range(10)]
    plain = Served(SimpleNamespace(url=scene.wire.url))  # type: ignore[arg-type]
    plain.start()
    for key in tail:
        learn(key, plain.url, "log")
    had = plain.learned()
    plain.stop()
    scene.wire.cut("refusing")
    scene.until("cut off")
    scene.pair.promote()
    with scene.pair.primary.client() as client:
        assert had - sum(client.xlen(name) for name in client.keys("*:log")) >= len(tail)
    scene.wire.target, scene.wire.state = scene.pair.primary.socket, "open"
    scene.pair.start()
    scene.pair.until_in_step()
    scene.until("connected")
    enough = len(safe) + 10
    deadline = time.monotonic() + 60
    while len(safe) < enough:
        assert time.monotonic() < deadline, scene.ready()
        time.sleep(0.01)
    over.set()
    for client in clients:
        client.join(30)
    assert scene.service.learned() == len(safe)  # the tail is gone here too
    for key in (*safe, *tail, *tail):
        learn(key, scene.service.url, "replica")
    assert scene.service.learned() == len(safe) + len(tail)
    findings = examine_now(scene.pair.primary.url, {}, list[LostTail]())
    assert findings.good, findings
    assert findings.learned == len(safe) + len(tail)


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
