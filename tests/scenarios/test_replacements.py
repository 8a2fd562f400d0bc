"""A model that is replaced again and again under load: three replicas, the shipped balancer and fifty clients."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import composed
from benchmarks.faults.clients import Book, Learner, Reader
from benchmarks.faults.fleet import FIRST_SECONDS, Fleet
from benchmarks.faults.ledger import examine_now
from benchmarks.faults.run import texts, verify
from benchmarks.serving import free_port

ROOT = Path(__file__).parents[2]

REPLACEMENTS = 100
LEARNERS, READERS = 35, 15

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
    pytest.mark.skipif(composed.program() is None, reason="haproxy is not installed"),
    pytest.mark.timeout(1800),
]


@contextmanager
def balanced(fleet: Fleet, directory: Path) -> Iterator[str]:
    """The shipped balancer in front of the fleet's replicas; its URL."""
    program, port = composed.program(), free_port()
    assert program is not None
    servers = "\n    ".join(f"server {one.name} 127.0.0.1:{one.port}" for one in fleet.serves)
    text = (ROOT / "docker" / "haproxy.cfg").read_text()
    for there, here in (
        ("bind :8000", f"bind 127.0.0.1:{port}"),
        ("bind :8405", f"bind 127.0.0.1:{free_port()}"),
        ("server-template replica 1-16 replica:8000", servers),
        (" init-addr none resolvers names", ""),
    ):
        text = text.replace(there, here)
    (directory / "haproxy.cfg").write_text(text)
    process = subprocess.Popen([program, "-db", "-q", "-f", str(directory / "haproxy.cfg")])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def fresh(url: str) -> httpx.Client:
    """A client that opens a connection for each request: the balancer closes idle ones."""
    return httpx.Client(base_url=url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


def job(http: httpx.Client, method: str, **params: Any) -> dict[str, Any]:
    submitted = http.post("/jobs", json={"method": method, "params": {"reason": "again"} | params}).raise_for_status()
    while True:
        answer = http.get(f"/jobs/{submitted.json()['id']}")
        if answer.status_code in (502, 503, 504):
            continue
        assert answer.status_code == 200, answer.text
        done: dict[str, Any] = answer.json()
        if done["state"] in ("succeeded", "failed", "cancelled"):
            return done
        time.sleep(0.02)


def test_a_hundred_replacements_lose_nothing(tmp_path: Path) -> None:
    fleet, book, real = Fleet(tmp_path), Book(tmp_path / "acknowledged.jsonl"), texts()
    took: list[tuple[float, float]] = []
    try:
        fleet.start()
        fleet.calm(FIRST_SECONDS)
        with balanced(fleet, tmp_path) as url, fresh(url) as http:
            clients: list[Learner | Reader] = [
                Learner(url, f"event/{i}", ("single", "batch", "lines")[i % 3], "log", real, book, 1.0)  # type: ignore[arg-type]
                for i in range(LEARNERS)
            ]
            clients += [Reader(url, f"reader {i}", real, book, 0.1) for i in range(READERS)]
            for client in clients:
                client.start()
            time.sleep(5)
            for number in range(REPLACEMENTS):
                began = time.time()
                how = number % 3
                if how == 0:
                    done = job(http, "refit", passes=1, search={})
                elif how == 1:
                    done = job(http, "undo")
                else:
                    key = f"gone {number}"
                    http.post("/learn", json={"text": "gone", "labels": ["gone"]}, headers={"Idempotency-Key": key})
                    done = job(http, "forget", key=key)
                assert done["state"] == "succeeded", done
                took.append((began, time.time()))
            for client in clients:
                client.stop()
            for client in clients:
                client.join(200)
        fleet.calm()
        store, artifacts = fleet.stores.primary.url, str(fleet.artifacts)
        verified = verify(store, artifacts)
        findings = examine_now(store, book.acknowledged, [], artifacts)
    finally:
        fleet.close()
        book.close()
    pauses = sorted(
        max(
            (one.at - one.began for one in book.acknowledged.values() if one.began < end and one.at > began),
            default=0.0,
        )
        for began, end in took
    )
    figures = {
        "acknowledged": len(book.acknowledged),
        "lost": len(findings.lost),
        "twice": len(findings.twice),
        "otherwise": len(findings.otherwise),
        "wrong": book.wrong[:3],
        "counts": dict(book.counts),
        "seconds of a job, median and maximum": [
            round(value, 2) for value in (statistics.median(b - a for a, b in took), max(b - a for a, b in took))
        ],
        "longest learn request, median and maximum": [round(statistics.median(pauses), 3), round(pauses[-1], 3)],
    }
    print(json.dumps(figures))
    assert not findings.lost, findings
    assert not findings.twice, findings  # ranks may differ from what was told, without what was forgotten
    assert not book.wrong
    assert verified
    assert book.counts["classify failed"] == 0
