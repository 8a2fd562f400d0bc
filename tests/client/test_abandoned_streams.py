"""A stream that is left while it waits for a service that says nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from abound.service.client import Client, ClientError, stream_threads
from tests.support import interrupts

LEAVES = """
import sys
from abound.service.client import Client

with Client(sys.argv[1]) as client:
    for answer in client.classify_stream("m", [b'{"text": "a"}'] * 5000, in_flight=3):
        print(answer)
"""


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """The URL of a service that takes requests and says nothing, and the connections to it."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        taking = threading.Thread(target=take)
        taking.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        server.shutdown(socket.SHUT_RDWR)
        taking.join()
    for one in taken:
        one.close()


class Enough(BaseException):
    """Of whoever reads the stream, like an interrupt."""


class Echo(BaseHTTPRequestHandler):
    """Answers each line with an empty document."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = b"{}\n" * self.rfile.read(int(self.headers.get("Content-Length", 0))).count(b"\n") or b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, format: str, *said: object) -> None:
        pass


@contextmanager
def answering() -> Iterator[tuple[str, list[object]]]:
    """The URL of a service that answers, and where the connections to it come from."""
    accepted: list[object] = []

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            accepted.append(client_address)
            super().process_request(request, client_address)

    with Server(("127.0.0.1", 0), Echo) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", accepted
        finally:
            server.shutdown()
            serving.join()


def until(taken: list[socket.socket], n: int) -> None:
    deadline = time.monotonic() + 30
    while len(taken) < n:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_source_raises_is_not_kept_by_a_silent_service_once_the_stream_is_left(
    silent: tuple[str, list[socket.socket]],
) -> None:
    url, taken = silent

    def lines() -> Iterator[bytes]:
        yield from [b'{"text": "a"}'] * 1500
        until(taken, 1)
        raise Enough

    with Client(url, timeout=20) as client:
        since = time.monotonic()
        with pytest.raises(Enough):
            list(client.classify_stream("m", lines(), in_flight=3))
        assert time.monotonic() - since < 10
    for one in taken:
        one.close()
    for thread in threading.enumerate():
        if thread.name == "abound-client":
            thread.join(30)
            assert not thread.is_alive()
    assert len(taken) == 1, "nothing is sent once more"


def test_a_program_that_is_interrupted_ends(silent: tuple[str, list[socket.socket]], tmp_path: Path) -> None:
    url, taken = silent
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVES, url],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interrupts.heard,
    )
    try:
        until(taken, 3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert said.strip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in said


def left_behind() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "abound-client"]


def test_whoever_leaves_a_stream_hangs_up_and_keeps_the_client(silent: tuple[str, list[socket.socket]]) -> None:
    url, taken = silent

    def lines() -> Iterator[bytes]:
        yield from [b"1"] * 104_000
        until(taken, 104)
        raise Enough

    with Client(url, timeout=20) as client:

        def ask() -> None:
            with pytest.raises(ClientError):
                client.ready()

        with pytest.raises(Enough):
            list(client.classify_stream("m", lines(), in_flight=110))
        assert left_behind() == []
        for one in taken:
            one.settimeout(5)
            while one.recv(65536):  # until it is hung up on
                pass
        asking = threading.Thread(target=ask)
        asking.start()
        until(taken, 105)
        taken[104].close()
        asking.join()


def test_what_is_still_connecting_when_its_stream_is_left_is_not_sent(
    silent: tuple[str, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, taken = silent
    connecting, connect = threading.Semaphore(0), threading.Event()
    made = socket.create_connection

    def wait_and_connect(*where: Any, **how: Any) -> socket.socket:
        connecting.release()
        assert connect.wait(30)
        return made(*where, **how)

    def lines() -> Iterator[bytes]:
        yield from [b"1"] * 2000
        assert connecting.acquire(timeout=30)
        assert connecting.acquire(timeout=30)
        raise Enough

    monkeypatch.setattr(socket, "create_connection", wait_and_connect)
    monkeypatch.setattr(stream_threads, "LEAVING_SECONDS", 0.1)
    with Client(url, timeout=20) as client, pytest.raises(Enough):
        list(client.learn_stream("m", lines(), in_flight=3))
    waiting = left_behind()
    assert len(waiting) == 2
    connect.set()
    until(taken, 2)
    for thread in waiting:
        thread.join(1)
    for one in taken:
        one.settimeout(0.5)
        assert one.recv(65536) == b""


def test_a_stream_that_was_read_to_its_end_leaves_its_connections_to_the_next() -> None:
    with answering() as (url, accepted), Client(url) as client:
        for _ in range(5):
            assert len(list(client.classify_stream("m", [b"1"] * 3000, in_flight=3))) == 3000
        client.ready()
        assert 1 < len(accepted) <= 4


def test_a_stream_of_a_closed_client_says_so() -> None:
    with answering() as (url, _):
        with Client(url) as client:
            answers = client.classify_stream("m", [b"1"] * 9000, in_flight=2)
            next(answers)
        with pytest.raises(RuntimeError, match="closed"):
            list(answers)
        with pytest.raises(RuntimeError, match="closed"):
            list(client.classify_stream("m", [b"1"], in_flight=2))
