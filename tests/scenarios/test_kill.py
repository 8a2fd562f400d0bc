"""Every process killed at once while it learns: what was acknowledged is there, and answers stay the same bytes."""

import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from abound.processes import lifetime
from abound.processes.embedded_store import EmbeddedStore
from benchmarks.faults.clients import Book, Learner
from benchmarks.faults.ledger import Findings, examine_now
from benchmarks.faults.run import texts
from benchmarks.serving import Serving, free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def ask(url: str) -> list[bytes]:
    """The bodies of the answers to fixed questions, byte for byte."""
    with httpx.Client(base_url=url, timeout=30) as http:
        answers = [http.post("/classify", json={"text": text, "k": 20, "explain": True}) for text, _ in texts()[:100]]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.content for answer in answers]


def kill_while_learning(work: Path, kills: int, config: dict[str, Any]) -> tuple[Book, Findings]:
    """Kill the service so often while clients learn, each time start it again, and at last read its log."""
    port = free_port()
    options = ("--port", str(port), "--processes", "2")
    book = Book(work / "acknowledged.jsonl")
    learners = [
        Learner(f"http://127.0.0.1:{port}", f"event/{form}", form, "log", texts(), book, 0.02)
        for form in ("single", "batch", "lines")
    ]

    def start() -> Serving:
        return Serving(work / "data", *options, output=work / "output")

    serving = start()
    try:
        serving.until_ready()
        httpx.put(f"{serving.url}/models/default", json=config, timeout=60).raise_for_status()
        for learner in learners:
            learner.start()
        for _ in range(kills):
            enough, deadline = len(book.acknowledged) + 100, time.monotonic() + 60
            while len(book.acknowledged) < enough and time.monotonic() < deadline:
                time.sleep(0.005)
            serving.kill()
            serving = start()
            serving.until_ready()
        for learner in learners:
            learner.stop()
        for learner in learners:
            learner.join(60)
        before = ask(serving.url)
        serving.kill()
        serving = start()
        serving.until_ready()
        assert ask(serving.url) == before
        findings = examine_now(
            EmbeddedStore(work / "data").url, book.acknowledged, [], str(work / "data" / "artifacts")
        )
        assert serving.stop() == 0
    finally:
        serving.kill()
        book.close()
    return book, findings


@pytest.mark.parametrize("config", [pytest.param({}, marks=pytest.mark.long), {"decide": {"audit": 0.5}}], ids=str)
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_what_was_acknowledged_outlives_kills(tmp_path: Path, kills: int, config: dict[str, Any]) -> None:
    book, findings = kill_while_learning(tmp_path, kills, config)
    assert book.wrong == []
    assert len(book.acknowledged) >= 100 * kills
    assert (findings.lost, findings.twice, findings.otherwise) == ([], [], [])


def test_nothing_outlives_the_parent(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", "--processes", "2", output=tmp_path / "output") as serving:
        serving.until_ready()
        pids = {pid: lifetime.start_time_of(pid) for pid in serving.pids()}
        assert len(pids) >= 4  # the parent, a store, at least one replica, and another or the worker
        serving.process.kill()
        serving.process.wait()
        with Serving(tmp_path / "data", "--no-worker", output=tmp_path / "output") as again:
            again.until_ready()
            assert [pid for pid, start in pids.items() if lifetime.start_time_of(pid) == start] == []
            assert again.stop() == 0
