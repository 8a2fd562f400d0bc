"""Replicas behind a load balancer come and go: nobody who classifies notices."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks import balancer
from benchmarks.faults.clients import Book, Learner, Reader
from benchmarks.faults.fleet import FIRST_SECONDS, Fleet, Program
from benchmarks.faults.run import texts

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
    pytest.mark.skipif(balancer.program() is None, reason="nginx is not installed"),
    pytest.mark.timeout(300),
]

WARM_SECONDS = 0.25
"""Longer than the first answer of a warm replica takes, and far shorter than loading or compiling a kernel."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start()
        fleet.calm(FIRST_SECONDS)
        yield fleet
    finally:
        fleet.close()


def restart(program: Program) -> None:
    """End a program as an operator would, start it again and wait until it is ready."""
    assert program.process is not None
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(30) == 0
    program.start()
    deadline = time.monotonic() + 60
    while not program.ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_replicas_restarted_one_by_one_under_load_fail_no_classify(fleet: Fleet, tmp_path: Path) -> None:
    book, real = Book(tmp_path / "acknowledged.jsonl"), texts()
    learners = [Learner(fleet.balancer.url, f"event/{i}", "single", "replica", real, book, 0.05) for i in range(2)]
    readers = [Reader(fleet.balancer.url, f"reader {i}", real, book, 0.02) for i in range(4)]
    clients: list[Learner | Reader] = [*learners, *readers]
    for client in clients:
        client.start()
    for program in fleet.serves:
        restart(program)
    for client in clients:
        client.stop()
    for client in clients:
        client.join(30)
    book.close()
    assert book.wrong == []
    assert book.counts["classify failed"] == 0, book.counts
    assert book.counts["asked"] + book.counts["asked to have read its writes"] > 200
    assert len(book.acknowledged) > 20


def test_what_one_replica_acknowledged_another_has_by_min_offset(fleet: Fleet) -> None:
    fleet.calm()
    urls = [f"http://127.0.0.1:{program.port}" for program in fleet.serves]
    with httpx.Client(timeout=20) as http:
        for n in range(30):
            here, there = urls[n % 3], urls[(n + 1) % 3]
            label = f"read {n}"
            learned = http.post(f"{here}/learn", json={"features": {label: 1}, "labels": [label]})
            assert learned.status_code == 200, learned.text
            ask = {"features": {label: 1}, "min_offset": learned.json()["offset"], "k": 1}
            answer = http.post(f"{there}/classify", json=ask)
            assert answer.status_code == 200, answer.text
            assert [one["label"] for one in answer.json()["labels"]] == [label]


def test_a_replica_is_warm_when_it_says_that_it_is_ready(fleet: Fleet) -> None:
    program = fleet.serves[0]
    learned = httpx.post(
        f"http://127.0.0.1:{program.port}/learn", json={"text": "wheat prices rise", "labels": ["grain"]}, timeout=20
    )
    assert learned.status_code == 200, learned.text
    assert program.process is not None
    program.process.send_signal(signal.SIGTERM)
    program.process.wait(30)
    program.start()
    while not program.ready():
        time.sleep(0.002)
    took = []
    for path, body in (
        ("/classify", {"text": "wheat", "explain": True}),
        ("/learn", {"text": "wheat prices rise", "labels": ["grain"]}),
    ):
        began = time.perf_counter()
        answer = httpx.post(f"http://127.0.0.1:{program.port}{path}", json=body, timeout=20)
        took.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text
    assert max(took) < WARM_SECONDS, took
