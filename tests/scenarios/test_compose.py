"""The processes of the compose file, behind its own load balancer."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from abound.client import Client, Model
from benchmarks import composed, rolling
from benchmarks.composed import Composed
from benchmarks.faults.ledger import examine_now

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
    pytest.mark.skipif(composed.program() is None, reason="haproxy is not installed"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    running = Composed(tmp_path_factory.mktemp("composed"))
    try:
        running.start()
        yield running
    finally:
        running.close()


def test_replicas_are_restarted_killed_and_suspended_under_load(running: Composed, tmp_path: Path) -> None:
    book = rolling.OneStore(tmp_path / "acknowledged.jsonl")

    def restarted(running: Composed, seconds: float) -> None:
        assert running.replicas[0].stop() == 0
        running.replicas[0].start()
        running.replicas[0].until_ready()

    counts = rolling.under_load(running, book, restarted, 0, pause=0.02)
    assert (counts.classify_failed, counts.client_failed) == (0, 0), book.counts
    assert counts.classified > 200
    assert counts.acknowledged > 100

    def killed(running: Composed, seconds: float) -> None:
        running.replicas[1].kill()
        time.sleep(1)

    counts = rolling.under_load(running, book, killed, 0, pause=0.02)
    # A kept connection may end without an answer, which our client takes for a reason to ask again.
    assert counts.client_failed == 0
    assert counts.classify_failed <= 5, book.counts
    running.replicas[1].start()
    running.replicas[1].until_ready()
    counts = rolling.under_load(running, book, rolling.one_stopped, 0, pause=0.02)
    assert counts.client_failed == 0
    assert counts.classify_failed <= 5, book.counts
    assert max(counts.slowest_classify, counts.slowest_learn) < rolling.STOPPED_SECONDS, "they waited for its return"
    findings = examine_now(running.store_url, book.acknowledged, [], running.artifacts)
    book.close()
    assert findings.good, findings
    assert findings.learned >= len(book.acknowledged)
    assert book.wrong == []


def test_the_balancer_says_in_our_words_that_nobody_is_there_and_goes_on_when_they_are_back(running: Composed) -> None:
    for replica in running.replicas:
        replica.until_ready()
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        running.show()
        time.sleep(seconds)

    with Client(running.url, pause=pause) as client, httpx.Client(base_url=running.url, timeout=60) as http:
        model = Model(client, "default")
        model.learn(labels=["here"], features={"compose-before": 1})
        running.hide()
        answer = until_status(http, 503)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["request_id"]
        assert "Nothing was learned" in answer.json()["detail"]
        # The client waits as long as it is asked to, and asks again.
        assert [one.label for one in model.classify(features={"compose-before": 1}).labels] == ["here"]
        assert pauses
        assert set(pauses) == {1.0}
        assert model.learn(labels=["back"], features={"compose-after": 1}).applied


def until_status(http: httpx.Client, status: int) -> httpx.Response:
    deadline = time.monotonic() + 60
    while (answer := http.post("/classify", json={"text": "a"}, timeout=90)).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def test_a_web_page_of_others_neither_reads_nor_changes_anything(running: Composed) -> None:
    """The replicas ask for no key here: one may have its own name stand for this machine, or just send requests."""
    own = running.url.removeprefix("http://")
    with httpx.Client(base_url=running.url, timeout=60) as http:
        assert http.put("/models/victim", json={}).status_code in (200, 201)
        for name, headers in (
            ("rebinding", {"Host": "evil.example:8000", "Origin": "http://evil.example:8000", "Accept-Language": "en"}),
            ("rebinding, reading", {"Host": "127.0.0.1.evil.example", "Accept-Language": "en"}),
            ("another site", {"Host": own, "Origin": "http://evil.example"}),
            ("a frame of nowhere", {"Host": own, "Origin": "null"}),
            ("a show of a key", {"Host": "evil.example", "Accept-Language": "en", "Authorization": "Bearer abk_1_1"}),
        ):
            for method, path in (("POST", "/learn"), ("GET", "/models"), ("GET", "/"), ("DELETE", "/models/victim")):
                answer = http.request(method, path, headers=headers, json={"text": "a", "labels": ["pwned"]})
                assert answer.status_code == 403, (name, method, path)
                assert answer.json()["type"] == "/problems/forbidden"
        image = {"Host": own, "Accept-Language": "en", "Sec-Fetch-Site": "cross-site"}
        assert http.get("/models/victim/export", headers=image).status_code == 403
        assert http.get("/", headers=image).status_code == 200
        for headers in (
            {"Accept-Language": "en"},
            {"Accept-Language": "en", "Origin": f"http://{own}"},
            {"Accept-Language": "en", "Host": "localhost:8000", "Origin": "http://localhost:8000"},
            {"Accept-Language": "en", "Host": "[::1]:8000", "Origin": "http://localhost:3000"},
            {"Accept-Language": "en", "Host": "10.0.0.9:8000", "Origin": "http://10.0.0.9:8000"},
            {"Host": "any.example"},  # no browser
        ):
            assert http.get("/models", headers=headers).status_code == 200, headers
            assert http.post("/learn", json={"text": "a", "labels": ["b"]}, headers=headers).status_code == 200
        assert http.delete("/models/victim").status_code == 204


@pytest.mark.parametrize(
    "address",
    [
        "/metrics",
        "/metrics?x=1",
        "/%6detrics",
        "/%6D%65%74%72%69%63%73",
        "/metrics%3Fx",
        "/metrics#x",
        "/%6detrics%23/classify",
        "http://elsewhere/%6detrics",
    ],
)
def test_measures_are_not_for_the_public_however_they_are_written(running: Composed, address: str) -> None:
    answer = said(running, f"GET {address} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"abound_" not in answer
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), answer
    if not answer.startswith(b"HTTP/1.1 400 "):
        assert b"This is not for the public." in answer


@pytest.mark.parametrize(
    ("line", "length", "refused"),
    [
        ("POST /learn", 2**26 + 1, True),
        ("POST /learn", 2**32 + 1, True),
        ("POST /datasets/some", 2**26 + 1, True),
        ("PUT /models/some", 2**26 + 1, True),
        ("PUT /models/some/import/classify", 2**26 + 1, True),
        ("PUT /datasets/no%20name", 2**26 + 1, False),
        ("PUT /%64atasets/no%20name", 2**26 + 1, False),
        ("PUT /models/no%20model/import", 2**26 + 1, False),
        ("PUT /models/no%20model/import", 3 * 2**30, False),
        ("PUT /models/no%20model/import", 2**32, False),
        ("POST /models/no%20model/versions", 2**26 + 1, False),
        ("POST /models/some/versions/one/export", 2**26 + 1, True),
        ("POST /models/some/versions", 2**32 + 1, True),
        ("PUT /datasets/some", 2**32 + 1, True),
        ("PUT /models/some/import", 2**32 + 1, True),
    ],
)
def test_bodies_have_a_bound_and_files_their_own(running: Composed, line: str, length: int, refused: bool) -> None:
    """What the balancer lets through a replica refuses for its name, without waiting for the body."""
    answer = said(running, f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 " if refused else b"HTTP/1.1 422 "), answer
    assert (b"A body has at most 64 MiB" in answer) is refused


def said(running: Composed, request: str) -> bytes:
    """The first of the answer to a request as it stands."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as wire:
        wire.sendall(request.encode())
        answer = b""
        while (piece := wire.recv(4096)) and b"}" not in answer:
            answer += piece
            if b"\r\n\r\n{" in answer and answer.rstrip().endswith(b"}"):
                break
    return answer
