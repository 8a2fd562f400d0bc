"""What the load balancer of the compose file sends again to another replica, when one of two is bad."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import composed
from benchmarks.serving import free_port

ROOT = Path(__file__).parents[2]
ASKED = 24
"""Requests of a case; each goes to the bad one of two first, or does not."""
NO_ANSWER = 0
"""How a balancer ends a kept connection when the replica broke off."""


class Replica(ThreadingHTTPServer):
    """A server that answers, or closes without an answer, or is full."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.how = "well"
        self.asked = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The balancer has gone away: nothing to tell."""


class Handler(BaseHTTPRequestHandler):
    """Of one connection."""

    protocol_version = "HTTP/1.1"
    server: Replica

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """It is ready, whatever it does with requests."""
        self._answer(200)

    def do_POST(self) -> None:
        """As the case wants it."""
        if "content-length" in self.headers:
            self.rfile.read(int(self.headers["content-length"]))
        else:
            assert [self.rfile.readline() for _ in range(2)] == [b"3\r\n", b"one\r\n"]
            self.close_connection = True
        self.server.asked += 1
        if self.server.how == "closes":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._answer(503 if self.server.how == "is full" else 200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture(scope="module")
def replicas() -> Iterator[tuple[Replica, Replica]]:
    """A good one and a bad one."""
    with Replica() as good, Replica() as bad:
        threads = [threading.Thread(target=one.serve_forever) for one in (good, bad)]
        for thread in threads:
            thread.start()
        yield good, bad
        for one, thread in zip((good, bad), threads, strict=True):
            one.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def url(replicas: tuple[Replica, Replica], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The balancer with the shipped configuration, of which only the addresses are changed."""
    program = composed.program()
    if program is None:
        pytest.skip("haproxy is not installed")
    text, port = (ROOT / "docker" / "haproxy.cfg").read_text(), free_port()
    servers = "\n    ".join(
        f"server {name} 127.0.0.1:{one.server_port}" for name, one in zip(("good", "bad"), replicas, strict=True)
    )
    for there, here, times in (
        ("bind :8000", f"bind 127.0.0.1:{port}", 1),
        ("server-template replica 1-16 replica:8000", servers, 2),
        (" init-addr none resolvers names", "", 2),
    ):
        assert text.count(there) == times, there
        text = text.replace(there, here)
    configuration = tmp_path_factory.mktemp("balancer") / "haproxy.cfg"
    configuration.write_text(text)
    process = subprocess.Popen([program, "-db", "-q", "-f", str(configuration)], stdout=subprocess.DEVNULL)
    try:
        until_it_listens(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def until_it_listens(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        time.sleep(0.02)
    raise RuntimeError("haproxy does not start")


def statuses(url: str, path: str, characters: int, headers: dict[str, str] | None = None) -> Counter[int]:
    """How requests end whose client, httpx, writes the headers and then the body."""
    body = {"text": "a" * characters}

    def status(client: httpx.Client) -> int:
        try:
            return client.post(path, json=body, headers=headers).status_code
        except httpx.RemoteProtocolError:
            return NO_ANSWER

    with httpx.Client(base_url=url, timeout=60) as client:
        return Counter(status(client) for _ in range(ASKED))


@pytest.mark.parametrize("characters", [1, 50_000])
@pytest.mark.parametrize(
    ("path", "how"), [("/classify", "closes"), ("/models/some/classify", "is full"), ("/learn", "is full")]
)
def test_another_one_answers(url: str, replicas: tuple[Replica, Replica], path: str, how: str, characters: int) -> None:
    _, bad = replicas
    bad.how, before = how, bad.asked
    assert statuses(url, path, characters) == {200: ASKED}
    assert bad.asked > before, "the bad one was never asked, so nothing was sent again"


def test_a_learn_of_which_nobody_knows_what_became_is_not_sent_again(
    url: str, replicas: tuple[Replica, Replica]
) -> None:
    good, bad = replicas
    bad.how, before = "closes", good.asked + bad.asked
    ended = statuses(url, "/learn", 1)
    assert ended.keys() <= {200, 502, NO_ANSWER}
    assert ended[200] < ASKED
    assert good.asked + bad.asked == before + ASKED


def test_an_act_that_may_have_been_done_is_not_sent_again(url: str, replicas: tuple[Replica, Replica]) -> None:
    """A 503 may be of a store that went away meanwhile: a second job, or a second key, is nothing to make."""
    good, bad = replicas
    bad.how, before = "is full", good.asked + bad.asked
    ended = statuses(url, "/jobs", 1)
    assert ended.keys() == {200, 503}
    assert good.asked + bad.asked == before + ASKED
    assert statuses(url, "/jobs", 1, {"Idempotency-Key": "one"}) == {200: ASKED}


def test_what_the_balancer_cannot_hold_whole_goes_through_as_it_comes(
    url: str, replicas: tuple[Replica, Replica]
) -> None:
    _, bad = replicas
    bad.how = "is full"
    assert statuses(url, "/classify", 100_000).keys() == {200, 503}


def test_a_body_in_chunks_is_not_waited_for(url: str, replicas: tuple[Replica, Replica]) -> None:
    """A stream is answered while it is sent: its first piece gets to a replica, and the answer back, before its end."""
    _, bad = replicas
    bad.how = "well"
    host, port = url.removeprefix("http://").split(":")
    head = "POST /classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as wire:
        wire.sendall(f"{head}3\r\none\r\n".encode())
        assert wire.recv(4096).startswith(b"HTTP/1.1 200 ")
