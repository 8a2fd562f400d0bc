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
from pathlib import Path

import pytest

from service.client import Client

LEAVES = """
import sys
from service.client import Client

with Client(sys.argv[1]) as client:
    for answer in client.classify_stream("m", [b'{"text": "a"}'] * 5000, in_flight=3):
        print(answer)
"""


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """The URL of a service that takes requests and says nothing, and the connections to it."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

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


def until(taken: list[socket.socket], n: int) -> None:
    deadline = time.monotonic() + 30
    while len(taken) < n:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_source_raises_is_not_kept_by_a_silent_service_once_the_stream_is_left(
    silent: tuple[str, list[socket.socket]],
) -> None:
    url, taken = silent

    class Enough(BaseException):
        """Of whoever reads the stream, like an interrupt."""

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
    process = subprocess.Popen([sys.executable, "-c", LEAVES, url], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        until(taken, 3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert said.strip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in said
