"""Answers that are given while a request is read, over real sockets: the same as the usual ones, and in order."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from abound.api.protocol import MAX_TURN_REQUESTS, STALL_CHECK_SECONDS, ClientConnection, FastAnswer
from abound.processes.startup_page import listen
from tests.support.served import Served, served


async def usual(scope: Any, receive: Any, send: Any) -> None:
    """Answers ``usual:<body>``."""
    body, more = b"usual:", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def quick(headers: Any, body: bytes) -> tuple[bytes, str] | None:
    """Answers ``at once:<body>``, unless the body says otherwise."""
    if body == b"fail":
        raise RuntimeError("nobody meant this")
    return None if body == b"wait" else (b"at once:" + body, "an id")


def of_path(path: bytes) -> FastAnswer | None:
    return quick if path == b"/quick" else None


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, ClientConnection]]:
    kind = ClientConnection.with_bounds(2000, 100_000, 10, of_path)
    server = uvicorn.Server(uvicorn.Config(usual, http=kind, ws="none", lifespan="off", log_config=None))
    with listen("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
        try:
            async with asyncio.timeout(10):
                while not server.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            (connection,) = server.server_state.connections
            assert isinstance(connection, ClientConnection)
            yield reader, writer, connection
        finally:
            writer.close()
            server.should_exit = True
            await serving


def post(body: bytes, path: bytes = b"/quick", more: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"POST %b HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (path, version, len(body), more, body)


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        return await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


async def test_a_whole_request_is_answered_at_once() -> None:
    async with connected() as (reader, writer, connection):
        for body in (b"a", b"", b"c" * 5000):
            writer.write(post(body))
            assert await answer(reader) == b"at once:" + body
            assert connection.took_fast_path


@pytest.mark.parametrize(
    "request_",
    [
        post(b"a", b"/other"),
        post(b"wait"),
        post(b"fail"),
        post(b"a", more=b"Connection: close\r\n"),
        post(b"a", version=b"1.0"),
        post(b"a").replace(b"POST", b"PUT"),
    ],
    ids=["another path", "has to wait", "fails", "to be closed", "HTTP/1.0", "another method"],
)
async def test_what_is_not_plain_goes_the_usual_way(request_: bytes) -> None:
    async with connected() as (reader, writer, connection):
        writer.write(request_)
        assert await answer(reader) == b"usual:" + request_.partition(b"\r\n\r\n")[2]
        assert not connection.took_fast_path


@pytest.mark.parametrize("cut", [5, -3, -1], ids=["in the head", "in the body", "before the last byte"])
async def test_a_request_in_pieces_is_answered_whole(cut: int) -> None:
    async with connected() as (reader, writer, _):
        request = post(b"abcdef")
        writer.write(request[:cut])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(request[cut:])
        # A head that comes in pieces is complete with the body behind it; a body that is still to come is waited for.
        assert await answer(reader) == (b"at once:" if cut == 5 else b"usual:") + b"abcdef"
        writer.write(post(b"next"))
        assert await answer(reader) == b"at once:next"


async def test_one_that_waits_for_leave_to_send_is_given_it() -> None:
    async with connected() as (reader, writer, _):
        writer.write(post(b"", more=b"Expect: 100-continue\r\n").replace(b"Length: 0", b"Length: 3"))
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert await answer(reader) == b"usual:abc"


async def test_many_sent_together_are_answered_in_order() -> None:
    bodies = [b"wait" if i % 7 == 3 else b"%d" % i for i in range(3 * MAX_TURN_REQUESTS)]
    async with connected() as (reader, writer, _):
        writer.write(b"".join(map(post, bodies)))
        answers = [await answer(reader) for _ in bodies]
    assert [text.partition(b":")[2] for text in answers] == bodies
    assert answers[:3] == [b"at once:0", b"at once:1", b"at once:2"]
    assert answers[3] == b"usual:wait"


async def test_no_more_than_a_few_keep_other_connections_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = itertools.count(1)
    turn = 0
    answered: list[int] = []  # the turn of the event loop in which each request was answered

    def count_turn() -> None:
        nonlocal turn
        turn = next(turns)
        asyncio.get_running_loop().call_soon(count_turn)

    def noting(headers: Any, body: bytes) -> tuple[bytes, str] | None:
        answered.append(turn)
        return quick(headers, body)

    async with connected() as (reader, writer, connection):
        monkeypatch.setattr(type(connection), "shortcuts", staticmethod(lambda path: noting))
        count_turn()
        bodies = [b"%d" % i for i in range(20 * MAX_TURN_REQUESTS + 2)]
        writer.write(b"".join(map(post, bodies)))
        assert [await answer(reader) for _ in bodies] == [b"at once:" + body for body in bodies]
    assert max(Counter(answered).values()) <= MAX_TURN_REQUESTS


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with connected() as (reader, writer, connection):
        for _ in range(2):
            writer.write(post(b"a"))
            await answer(reader)
            for _ in range(math.ceil(connection.timeout_keep_alive / STALL_CHECK_SECONDS)):
                connection.close_if_stalled()
            assert not connection.transport.is_closing()
        connection.close_if_stalled()
        async with asyncio.timeout(10):
            assert await reader.read() == b""


async def test_stopping_closes_a_connection_that_was_answered_at_once() -> None:
    async with connected() as (reader, writer, connection):
        writer.write(post(b"a"))
        await answer(reader)
        connection.shutdown()
        async with asyncio.timeout(10):
            assert await reader.read() == b""


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        for text, label in [("wheat corn", "grain"), ("oil barrel", "crude"), ("wheat é", "trade")]:
            service.http.post("/learn", json={"text": text, "labels": [label]}).raise_for_status()
        yield service


PLAIN = [
    b'{"text": "wheat"}',
    b'{"features": {"wheat": 2, "oil": 1.5}, "k": 1}',
    b'{"text": "wheat", "explain": true}',
    b'{"text": "nothing known"}',
    b'{"text": "wheat", "threshold": 0.9, "exclude": ["grain"]}',
]
UNUSUAL = [
    b'{"text": "wheat", "min_offset": "0-0.0"}',
    b'{"instances": [{"text": "wheat"}, {"text": "oil"}]}',
    b"{",
    b"",
    b'{"text": "wheat", "k": 0}',
    b'{"text": 1}',
    b'{"features": {"a": 1e999}}',
    b'{"text": "\\ud800"}',
]


def ask(service: Served, body: bytes, path: bytes = b"/classify", pieces: bool = False) -> bytes:
    """The bytes of an answer, to a request sent in one piece or in two, without what differs every time."""
    request = post(body, path, b"Content-Type: application/json\r\nX-Request-Id: same\r\n")
    request = request.replace(b"Host: x", b"Host: localhost")
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cut = request.index(b"\r\n\r\n") + 4 if pieces else len(request)
        connection.sendall(request[:cut])
        if pieces:
            time.sleep(0.03)
            connection.sendall(request[cut:])
        text = b""
        while (head := text.partition(b"\r\n\r\n"))[1] == b"" or len(head[2]) < length_of(head[0]):
            text += connection.recv(65536)
    lines = sorted(line for line in head[0].lower().split(b"\r\n") if not line.startswith(b"date:"))
    return b"\r\n".join(lines) + b"\r\n\r\n" + head[2]


def length_of(head: bytes) -> int:
    found = re.search(rb"content-length: (\d+)", head.lower())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("body", [*PLAIN, *UNUSUAL])
@pytest.mark.parametrize("path", [b"/classify", b"/models/default/classify", b"/models/none/classify"])
def test_both_ways_give_the_same_answer(service: Served, body: bytes, path: bytes) -> None:
    whole = ask(service, body, path)
    if not body:
        return
    assert whole == ask(service, body, path, pieces=True)
    assert (b" 200 ok" in whole) == (path != b"/models/none/classify" and (body in PLAIN or body in UNUSUAL[:2]))


def test_what_is_answered_at_once_is_counted_like_the_rest(service: Served) -> None:
    def counted() -> float:
        text = service.http.get("/metrics").text
        found = re.search(r'abound_requests_total\{[^}]*route="/classify",status="200"[^}]*\} (\S+)', text)
        return float(found[1]) if found else 0.0

    before = counted()
    for _ in range(5):
        ask(service, PLAIN[0])
    for _ in range(100):
        if counted() >= before + 5:
            break
        time.sleep(0.03)
    assert counted() == before + 5
