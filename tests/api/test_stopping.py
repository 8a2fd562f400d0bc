"""What a client and the log get to see of requests that a stop cuts off."""

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from unittest.mock import AsyncMock

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from abound.api.server import serve
from abound.metrics import configure_logging
from abound.processes.status_pipe import Reporter
from abound.replica.follower import Follower
from abound.settings import Settings
from abound.tasks import forever
from abound_core.errors import Corrupted
from tests.support.job_worker import until
from tests.support.served import Served, served

SECRET = "bearer-3f9c1a77"
FEATURE = "diagnosis-5d21"
HEAD = f"Host: x\r\nAuthorization: Bearer {SECRET}\r\n"


@contextmanager
def logged() -> Iterator[None]:
    """Log as the processes do, for a while."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging("info", "text")
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def sent(service: Served, start: str, body: str, lines: bool = False, length: int = 5000) -> socket.socket:
    """A connection that has sent its head and its body, or the beginning of it."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=20)
    media = "application/x-ndjson" if lines else "application/json"
    head = f"{start} HTTP/1.1\r\n{HEAD}Content-Type: {media}\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


def everything(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    with closing(connection):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def test_requests_that_a_stop_cuts_off_end_in_the_form_of_all_errors(capfd: pytest.CaptureFixture[str]) -> None:
    begun = json.dumps({"features": {FEATURE: 1}, "labels": [FEATURE]})
    with logged(), served(stop_seconds=1.0) as service:
        connections = [
            sent(service, "POST /learn", begun[:-1]),
            sent(service, "POST /classify", begun[:-1]),
            sent(service, "POST /learn", begun[:-1], lines=True),
            sent(service, "PUT /models/new", begun[:-1]),
        ]
        streaming = sent(service, "POST /learn", begun + "\n" + begun[:-1], lines=True)
        first = streaming.recv(65_536)
        while b'"applied":true' not in first:
            first += streaming.recv(65_536)
        until(lambda: service.app.state.parts.held.n_bytes == 5 * len(begun[:-1]) + len(begun + "\n"))
    for connection in connections:
        answer = everything(connection)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 "), answer
        assert b"application/problem+json" in head
        assert b"retry-after: 1" in head
        document = json.loads(body)
        assert (document["status"], document["type"]) == (503, "/problems/not-ready")
        assert "stopping" in document["detail"]
    rest = everything(streaming)
    assert not (first + rest).endswith(b"0\r\n\r\n")
    told = capfd.readouterr()
    for stream in (told.err, told.out):
        assert SECRET not in stream
        assert FEATURE not in stream
        assert "Traceback" not in stream


def test_learning_that_a_stop_cuts_off_has_an_unknown_outcome(capfd: pytest.CaptureFixture[str]) -> None:
    body = {"text": FEATURE, "labels": [FEATURE]}
    with logged(), served(stop_seconds=1.0) as service:
        appender = service.app.state.parts.replica.model("default").appender
        with service.server.client() as client:
            client.client_pause(60_000, all=False)  # the store reads and does not write
        connections = [
            sent(service, start, content, lines, len(content))
            for start, content, lines in (
                ("POST /learn", json.dumps(body), False),
                ("POST /learn", json.dumps(body) + "\n", True),
                ("PUT /models/default/labels", json.dumps({"labels": [{"label": FEATURE}]}), False),
            )
        ]
        until(lambda: appender.waiting[0] == 3)
    for connection in connections:
        answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 504 "), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "/problems/outcome-unknown"
    told = capfd.readouterr().err
    assert FEATURE not in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("error", "ends"),
    [(RuntimeError("can't start new thread"), True), (Corrupted("damaged"), False)],
    ids=["ends", "stays"],
)
async def test_a_process_ends_if_a_part_of_it_has_crashed(server, monkeypatch, error, ends):
    monkeypatch.setattr(Follower, "_follow", AsyncMock(side_effect=error))
    settings = Settings(redis_url=SecretStr(server.url), host="127.0.0.1", port=0)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        serving = asyncio.create_task(serve(settings, listening, Reporter(None)))
        await asyncio.wait([serving], timeout=60.0 if ends else 3.0)
        assert serving.done() == ends
        if not ends:
            os.kill(os.getpid(), signal.SIGTERM)
        assert await serving is not ends


async def test_periodic_work_goes_on_after_an_unexpected_error() -> None:
    work = AsyncMock(side_effect=[MemoryError, MemoryError, None, Corrupted("damaged")])
    with capture_logs() as logs, pytest.raises(Corrupted):
        await forever(work, 0.001)
    assert work.await_count == 4
    assert len(logs) == 1
