"""The processes of the compose file, behind its own load balancer."""

import socket
import sys
import time
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from abound.client import Client, Model
from benchmarks import composed
from benchmarks.composed import Composed
from tests.support.job_worker import until

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
        asking = partial(http.post, "/classify", json={"text": "a"}, timeout=90)
        answer = until(lambda: (got := asking()).status_code == 503 and got)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["request_id"]
        assert "Nothing was learned" in answer.json()["detail"]
        # The client waits as long as it is asked to, and asks again.
        assert [one.label for one in model.classify(features={"compose-before": 1}).labels] == ["here"]
        assert pauses
        assert set(pauses) == {1.0}
        assert model.learn(labels=["back"], features={"compose-after": 1}).applied


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
