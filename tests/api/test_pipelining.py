"""Clients that send requests without waiting for answers, or that do not read them: the service stays small and quick.

The first part is about a real server process, the second about a connection under uvicorn.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import uvicorn

from abound.api import protocol
from abound.api.protocol import MAX_TURN_REQUESTS, STALL_CHECK_SECONDS, ClientConnection
from abound.processes.startup_page import listen
from benchmarks.serving import Serving

MB = 1_000_000
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"


class Process(NamedTuple):
    """A service with a key, and the process of its replica."""

    port: int
    pid: int
    authorization: bytes

    def resident(self) -> int:
        """Bytes of memory of the replica."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def seconds_to_answer(self) -> float:
        """How long another client waits for an answer."""
        began = time.monotonic()
        with self.connect() as connection:
            connection.sendall(LIVEZ)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        return time.monotonic() - began


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("service")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
    command = [sys.executable, "-m", "abound", "keys", "create", "--new-store", "--scope", "classify"]
    command += ["--data-dir", str(directory / "data")]
    key = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.strip()
    with Serving(directory / "data", "--no-worker", output=directory / "log", environment=environment) as serving:
        serving.until_ready()
        replica = next(  # the processes that it starts come behind it
            pid for pid in serving.pids() if b"abound.api.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        found = Process(httpx.URL(serving.url).port or 0, replica, b"Authorization: Bearer " + key)
        for _ in range(20):
            found.seconds_to_answer()
            headers = {"authorization": f"Bearer {key.decode()}"}
            httpx.post(f"{serving.url}/classify", json={"text": "a"}, headers=headers).raise_for_status()
        yield found


def send(connection: socket.socket, data: memoryview, deadline: float) -> None:
    """Send data; stop when the server takes no more for two seconds, and at the deadline."""
    connection.settimeout(2)
    try:
        while data and time.monotonic() < deadline:
            data = data[connection.send(data[:65_536]) :]
    except OSError:
        pass


def read(connection: socket.socket) -> None:
    """Read until the connection is closed."""
    try:
        while connection.recv(2**18):
            pass
    except OSError:
        pass


@pytest.mark.parametrize(
    ("path", "n_connections", "n_bytes", "reads"),
    [
        ("/livez", 1, 20 * MB, False),
        ("/livez", 1, 2 * MB, True),
        ("/models", 40, 20 * MB, False),
        ("/classify", 1, 4 * MB, False),
    ],
    ids=["nothing read", "everything read", "40 connections without a key", "classify"],
)
def test_many_requests_at_once_take_little_memory_and_keep_nobody_waiting(
    process: Process, path: str, n_connections: int, n_bytes: int, reads: bool
) -> None:
    head = b"GET %b HTTP/1.1\r\nHost: a\r\n" % path.encode()
    if path == "/classify":
        head = b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n" + process.authorization + b"\r\n"
    request = head + b"\r\n" + (b'{"text":"a"}' if path == "/classify" else b"")
    data = memoryview(request * (n_bytes // n_connections // len(request)))
    before = highest = process.resident()
    waits = []
    with ExitStack() as stack:
        threads = []
        for _ in range(n_connections):
            connection = stack.enter_context(process.connect())
            threads.append(threading.Thread(target=send, args=(connection, data, time.monotonic() + 10)))
            if reads:
                threading.Thread(target=read, args=(connection,), daemon=True).start()
        for thread in threads:
            thread.start()
        began = time.monotonic()
        while time.monotonic() - began < 4 or any(thread.is_alive() for thread in threads):
            waits.append(process.seconds_to_answer())
            highest = max(highest, process.resident())
            time.sleep(0.02)
    assert highest - before < 30 * MB
    assert max(waits) < 1.5  # usually 0.05; the machine may be busy


class Gate:
    """An application that answers with the path once ``opened``, and counts its requests."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.n_begun = 0
        self.body = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.n_begun += 1
        more = True
        size = 0
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        await self.opened.wait()
        body = self.body or b"%b %d" % (scope["path"].encode(), size)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


class Open(NamedTuple):
    """A connection: both ends, and its application."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connection: ClientConnection
    app: Gate
    port: int


@asynccontextmanager
async def connected(keep_alive: int = 75) -> AsyncIterator[Open]:
    app = Gate()
    kind = ClientConnection.with_bounds(2000, 2 * MB, 10)
    config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None, timeout_keep_alive=keep_alive)
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await until(lambda: bool(server.server_state.connections))
            [connection] = server.server_state.connections
            assert isinstance(connection, ClientConnection)
            yield Open(reader, writer, connection, app, port)
        finally:
            app.opened.set()
            writer.close()
            server.should_exit = True
            await serving


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def gets(n: int) -> bytes:
    return b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(n))


async def answers(reader: asyncio.StreamReader, n: int) -> list[bytes]:
    found = []
    async with asyncio.timeout(60):
        for _ in range(n):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            found.append(await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])))
    return found


async def test_no_more_than_a_few_requests_wait_for_another_and_the_rest_is_not_read() -> None:
    async with connected() as (reader, writer, connection, app, _):
        writer.write(gets(200_000))
        await until(lambda: connection.unparsed_bytes)
        assert await until_still(lambda: connection.unparsed_bytes) <= 2**18
        assert (app.n_begun, len(connection.pipeline)) == (1, MAX_TURN_REQUESTS - 1)
        app.opened.set()
        assert await answers(reader, 300) == [b"/%d 0" % i for i in range(300)]
        assert len(connection.pipeline) < MAX_TURN_REQUESTS
    assert connection.unparsed_bytes == 0


async def until_still(number: Any) -> int:
    """Wait until a number does not change for a while; return it."""
    before = -1
    while before != (now := number()):
        before = now
        await asyncio.sleep(0.1)
    return int(now)


async def test_a_body_with_ends_of_heads_in_it_and_what_follows_are_read_in_order() -> None:
    async with connected() as (reader, writer, connection, app, _):
        app.opened.set()
        body = (b"x" * 500 + b"\r\n\r\n") * 1000
        post = b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        writer.write((post + gets(3)) * 3)
        one = [b"/post %d" % len(body), *(b"/%d 0" % i for i in range(3))]
        assert await answers(reader, 12) == one * 3
        assert connection.unparsed_bytes == 0


async def test_a_connection_is_closed_when_all_together_keep_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_UNPARSED_BYTES", 10_000)
    async with connected() as (reader, writer, connection, app, port):
        writer.write(gets(200))
        await until(lambda: connection.unparsed_bytes)
        other, another = await asyncio.open_connection("127.0.0.1", port)
        another.write(gets(300))
        async with asyncio.timeout(20):
            assert await other.read() == b""
        another.close()
        assert connection.unparsed_bytes < 10_000
        app.opened.set()
        assert await answers(reader, 200) == [b"/%d 0" % i for i in range(200)]


async def test_stopping_answers_those_that_are_parsed_and_closes() -> None:
    async with connected() as (reader, writer, connection, app, _):
        writer.write(gets(500))
        await until(lambda: connection.unparsed_bytes)
        connection.shutdown()
        app.opened.set()
        assert await answers(reader, MAX_TURN_REQUESTS) == [b"/%d 0" % i for i in range(MAX_TURN_REQUESTS)]
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        assert app.n_begun == MAX_TURN_REQUESTS


async def test_an_idle_connection_that_has_pipelined_is_closed_after_its_time() -> None:
    async with connected(keep_alive=1) as (reader, writer, _, app, _):
        app.opened.set()
        writer.write(gets(50))
        await answers(reader, 50)
        async with asyncio.timeout(20):
            assert await reader.read() == b""


@pytest.mark.parametrize("reads", [False, True], ids=["reads nothing", "reads a little"])
async def test_a_client_that_does_not_read_its_answers_is_closed(reads: bool) -> None:
    async with connected(keep_alive=20) as (reader, writer, connection, app, _):
        app.body = bytes(20 * MB)
        app.opened.set()
        writer.write(gets(3))
        await until(connection.transport.get_write_buffer_size)
        await until_still(connection.transport.get_write_buffer_size)
        for _ in range(3):
            for _ in range(math.ceil(20 / STALL_CHECK_SECONDS)):
                connection.close_if_stalled()
            assert not connection.transport.is_closing()
            if not reads:
                connection.close_if_stalled()
                await until(lambda: connection not in connection.connections)
                return
            before = connection.transport.get_write_buffer_size()
            while connection.transport.get_write_buffer_size() == before:
                await reader.read(2**16)
        assert app.n_begun == 2  # the second waits until its answer can be written, the third for the second
