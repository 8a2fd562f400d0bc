"""Connections over real sockets: their bounds, requests without waiting for answers, answers that are given at once."""

import asyncio
import contextlib
import json
import math
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from abound.api import protocol
from abound.processes.startup_page import listen
from tests.support import job_worker
from tests.support.replicas import until
from tests.support.served import Served, served

MB = 1_000_000
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
HALF = HEAD + b"Content-Length: 9\r\n\r\nabc"
BOUNDS = {"head_bytes": 2000, "request_bytes": 100_000, "connections": 100}


class Echo:
    """An application that answers with the body of a request once ``opened``, and counts its requests."""

    def __init__(self, is_open: bool = True, answer: bytes | None = None) -> None:
        self.opened = asyncio.Event()
        if is_open:
            self.opened.set()
        self.answer = answer
        self.n_begun = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.n_begun += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        await self.opened.wait()
        body = body or scope["path"].encode()[1:] if self.answer is None else self.answer
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def listening(app=None, shortcuts=None, keep_alive=75, **bounds) -> AsyncIterator[tuple[int, Any]]:
    """The port of an application with these bounds, and what uvicorn knows of its connections."""
    own = BOUNDS | bounds
    first = [own.pop(name) for name in ("head_bytes", "request_bytes", "connections")]
    kind = protocol.ClientConnection.with_bounds(*first, *([shortcuts] if shortcuts else []), **own)
    app = Echo() if app is None else app
    config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None, timeout_keep_alive=keep_alive)
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as place:
        serving = asyncio.create_task(server.serve(sockets=[place]))
        try:
            yield place.getsockname()[1], server.server_state
        finally:
            app.opened.set()
            server.should_exit = True
            await serving


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


@asynccontextmanager
async def one(*given: Any, **options: Any) -> AsyncIterator[tuple[Any, Any, protocol.ClientConnection, int]]:
    """One connection to an application: both ends, and the port."""
    async with listening(*given, **options) as (port, state), connected(port) as (reader, writer):
        await until(lambda: state.connections)
        [connection] = state.connections
        yield reader, writer, connection, port


async def until_still(number: Any) -> int:
    """Wait until a number does not change for a while; return it."""
    before = -1
    while before != (now := number()):
        before = now
        await asyncio.sleep(0.1)
    return int(now)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    return int(head.split(b" ")[1]), body


async def answers(reader: asyncio.StreamReader, n: int) -> list[bytes]:
    found = [await answer(reader) for _ in range(n)]
    assert {status for status, _ in found} <= {200}
    return [body for _, body in found]


async def refused(reader: asyncio.StreamReader, status: int, slug: str) -> str:
    """What the problem says with which a connection ends."""
    told, body = await answer(reader)
    problem = json.loads(body)
    assert (told, problem["status"], problem["type"]) == (status, status, f"/problems/{slug}")
    assert problem["request_id"]
    assert await closed(reader)
    return str(problem["detail"])


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(10):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def in_pieces(writer: asyncio.StreamWriter, *pieces: bytes) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)


def post(body: bytes, path: bytes = b"/", more: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"POST %b HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (path, version, len(body), more, body)


async def test_requests_within_the_bounds_are_answered_one_after_another() -> None:
    async with one() as (reader, writer, *_):
        for size in (1, 10, 90_000, 90_000, 90_000):
            await in_pieces(writer, HEAD, b"Content-Length: %d\r\n\r\n" % size, b"x" * size)
            assert await answer(reader) == (200, b"x" * size)
        writer.write(post(b"ab") * 50)
        assert await answers(reader, 50) == [b"ab"] * 50


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "no header Host"),
        (HEAD + b"host: y\r\n", "several headers Host"),
        (HEAD + b"Authorization: Bearer a\r\nauthorization: Bearer b\r\n", "several headers Authorization"),
    ],
    ids=["no host", "two hosts", "two keys"],
)
async def test_a_head_of_two_minds_is_refused_and_nothing_behind_it_is_read(head: bytes, said: str) -> None:
    async with one() as (reader, writer, *_):
        writer.write(post(b"ab"))
        assert await answer(reader) == (200, b"ab")
        writer.write(head + b"\r\n" + post(b"ab"))
        assert said in await refused(reader, 400, "malformed")


def upgrading(body: bytes, more: bytes = b"") -> bytes:
    """A request as Java's HttpClient sends it by default: it offers to go on in HTTP/2."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n"
    return post(body, more=offer + more)


async def test_requests_behind_an_offer_to_upgrade_are_answered_in_order_and_closed_on_request() -> None:
    async with one() as (reader, writer, *_):
        bodies = [b"%d" % i for i in range(600)]
        chunked = HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunked += b"3\r\nend\r\n0\r\n\r\n"
        writer.write(b"".join(map(upgrading, bodies)) + chunked + upgrading(b"last", b"Connection: close\r\n"))
        assert await answers(reader, 602) == [*bodies, b"end", b"last"]
        assert await closed(reader)


@pytest.mark.parametrize(
    "pieces", [[b"x-%d: %s\r\n" % (i, b"y" * 200) for i in range(10)], [b"x: ", *[b"y" * 500] * 4]], ids=["many", "one"]
)
async def test_a_head_that_never_ends_is_refused(pieces: list[bytes]) -> None:
    async with one() as (reader, writer, *_):
        await in_pieces(writer, HEAD, *pieces)
        await refused(reader, 431, "too-large")


@pytest.mark.parametrize("ending", [b"x-%d: y\r\n", b"y%d"], ids=["trailers", "one trailer"])
async def test_trailers_that_never_end_are_refused(ending: bytes) -> None:
    async with listening(request_bytes=20_000) as (port, state), connected(port) as (_, writer):
        await in_pieces(writer, HEAD, b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"x: ")
        with contextlib.suppress(ConnectionError):
            for i in range(5000):
                writer.write(ending % i)
                await writer.drain()
                await asyncio.sleep(0)
        await until(lambda: not state.connections)


@pytest.mark.parametrize("nonsense", [b"hello\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http_is_told_so(nonsense: bytes) -> None:
    async with one() as (reader, writer, *_):
        writer.write(nonsense)
        await refused(reader, 400, "malformed")


async def test_one_connection_too_many_is_told_to_come_back() -> None:
    async with listening(connections=2) as (port, _), connected(port), connected(port) as (reader, writer):
        writer.write(post(b"a"))
        assert (await answer(reader))[0] == 200
        async with connected(port) as (third, _):
            await refused(third, 503, "overloaded")


@pytest.mark.parametrize(
    ("sent", "looks"),
    [
        (b"", protocol.MAX_HEAD_CHECKS),
        (HEAD, protocol.MAX_HEAD_CHECKS),
        (HEAD + b"Content-Length: 9\r\n\r\nabc", protocol.MAX_BODY_CHECKS),
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_request_that_does_not_come_on_is_hung_up_on(sent: bytes, looks: int) -> None:
    async with one() as (reader, writer, connection, _):
        await in_pieces(writer, sent, b"")
        for _ in range(looks):
            connection.close_if_stalled()
        assert not connection.transport.is_closing()
        connection.close_if_stalled()
        assert await closed(reader)


async def test_a_head_that_dribbles_is_hung_up_on_and_a_body_that_comes_is_not() -> None:
    async with one() as (reader, writer, connection, _):
        await in_pieces(writer, HEAD)
        for _ in range(protocol.MAX_HEAD_CHECKS + 1):
            await in_pieces(writer, b"x: y\r\n")
            connection.close_if_stalled()
        assert await closed(reader)
    async with one() as (reader, writer, connection, _):
        await in_pieces(writer, HEAD + b"Content-Length: 40\r\n\r\n")
        for _ in range(protocol.MAX_BODY_CHECKS + 8):
            await in_pieces(writer, b"ab")
            connection.close_if_stalled()
        assert await answer(reader) == (200, b"ab" * 20)


@pytest.mark.parametrize(
    ("first", "size", "taken"),
    [
        (b"PUT /models/a/import", 40_000, True),
        (b"PUT /models/a/import", 80_000, False),
        (b"POST /models/a/import", 40_000, False),
        (b"POST /models/a/versions", 40_000, True),
        (b"POST /models/a/versions", 80_000, False),
        (b"PUT /datasets/a", 80_000, True),
        (b"PUT /%64atasets/a?filename=a.txt", 80_000, True),
        (b"PUT /datasets/a", 120_000, False),
        (b"POST /datasets/a", 40_000, False),
    ],
)
async def test_only_a_file_may_be_longer_than_other_requests(first: bytes, size: int, taken: bool) -> None:
    status = None  # a client that is still writing may see no more than that the connection is closed
    bounds = {"request_bytes": 20_000, "import_bytes": 60_000, "dataset_bytes": 100_000}
    async with listening(**bounds) as (port, _), connected(port) as (reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(first + b" HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size)
            for _ in range(size // 1000):
                writer.write(bytes(1000))
                await writer.drain()
                await asyncio.sleep(0)
            status = (await answer(reader))[0]
    assert status == 200 if taken else status in (413, None)


def gets(n: int) -> bytes:
    return b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(n))


def numbers(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


async def test_no_more_than_a_few_requests_wait_for_another_and_the_rest_is_not_read() -> None:
    app = Echo(is_open=False)
    async with one(app) as (reader, writer, connection, _):
        writer.write(gets(200_000))
        await until(lambda: connection.unparsed_bytes)
        assert await until_still(lambda: connection.unparsed_bytes) <= 2**18
        assert (app.n_begun, len(connection.pipeline)) == (1, protocol.MAX_TURN_REQUESTS - 1)
        app.opened.set()
        assert await answers(reader, 300) == numbers(300)
        assert len(connection.pipeline) < protocol.MAX_TURN_REQUESTS
    assert connection.unparsed_bytes == 0


async def test_a_body_with_ends_of_heads_in_it_and_what_follows_are_read_in_order() -> None:
    async with one(request_bytes=2 * MB) as (reader, writer, connection, _):
        body = (b"x" * 500 + b"\r\n\r\n") * 1000
        writer.write((post(body) + gets(3)) * 3)
        assert await answers(reader, 12) == [body, *numbers(3)] * 3
        assert connection.unparsed_bytes == 0


async def test_a_connection_is_closed_when_all_together_keep_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_UNPARSED_BYTES", 10_000)
    app = Echo(is_open=False)
    async with one(app) as (reader, writer, connection, port):
        writer.write(gets(200))
        await until(lambda: connection.unparsed_bytes)
        async with connected(port) as (other, another):
            another.write(gets(300))
            assert await closed(other)
        assert connection.unparsed_bytes < 10_000
        app.opened.set()
        assert await answers(reader, 200) == numbers(200)


@pytest.mark.parametrize("reads", [False, True], ids=["reads nothing", "reads a little"])
async def test_a_client_that_does_not_read_its_answers_is_closed(reads: bool) -> None:
    app = Echo(answer=bytes(20 * MB))
    async with one(app, keep_alive=20) as (reader, writer, connection, _):
        writer.write(gets(3))
        waiting = connection.transport.get_write_buffer_size
        await until(waiting)
        await until_still(waiting)
        for _ in range(3):
            for _ in range(math.ceil(20 / protocol.STALL_CHECK_SECONDS)):
                connection.close_if_stalled()
            assert not connection.transport.is_closing()
            if not reads:
                connection.close_if_stalled()
                await until(lambda: connection not in connection.connections)
                return
            before = waiting()
            while waiting() == before:
                await reader.read(2**16)
        assert app.n_begun == 2  # the second waits until its answer can be written, the third for the second


def quick(headers: Any, body: bytes) -> tuple[bytes, str, bool] | None:
    """Answers ``at once:<body>``, unless the body says otherwise."""
    if body == b"fail":
        raise RuntimeError("a planted error")
    return None if body == b"wait" else (b"at once:" + body, "an id", False)


def of_path(path: bytes) -> Any:
    return quick if path == b"/quick" else None


def asked(body: bytes, path: bytes = b"/quick", **more: bytes) -> bytes:
    return post(body, path, **more)


async def test_a_whole_request_is_answered_at_once() -> None:
    async with one(shortcuts=of_path) as (reader, writer, connection, _):
        for body in (b"a", b"", b"c" * 5000):
            writer.write(asked(body))
            assert await answer(reader) == (200, b"at once:" + body)
            assert connection.took_fast_path


@pytest.mark.parametrize(
    "request_",
    [
        asked(b"a", b"/other"),
        asked(b"wait"),
        asked(b"fail"),
        asked(b"a", more=b"Connection: close\r\n"),
        asked(b"a", version=b"1.0"),
        asked(b"a", version=b"1.0", more=b"Connection: keep-alive\r\n"),
        asked(b"a").replace(b"POST", b"PUT"),
    ],
    ids=["another path", "has to wait", "fails", "to be closed", "HTTP/1.0", "kept alive", "another method"],
)
async def test_what_is_not_plain_goes_the_usual_way(request_: bytes) -> None:
    async with one(shortcuts=of_path) as (reader, writer, connection, _):
        writer.write(request_)
        assert await answer(reader) == (200, request_.partition(b"\r\n\r\n")[2])
        assert not connection.took_fast_path


async def test_one_that_waits_for_leave_to_send_is_given_it() -> None:
    async with one(shortcuts=of_path) as (reader, writer, *_):
        writer.write(asked(b"", more=b"Expect: 100-continue\r\n").replace(b"Length: 0", b"Length: 3"))
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert await answer(reader) == (200, b"abc")


async def test_many_sent_together_are_answered_in_order() -> None:
    bodies = [b"wait" if i % 7 == 3 else b"%d" % i for i in range(3 * protocol.MAX_TURN_REQUESTS)]
    async with one(shortcuts=of_path) as (reader, writer, *_):
        writer.write(b"".join(map(asked, bodies)))
        found = await answers(reader, len(bodies))
    assert [text.rpartition(b":")[2] for text in found] == bodies
    assert found[:4] == [b"at once:0", b"at once:1", b"at once:2", b"wait"]


@pytest.mark.parametrize("ends", ["idle", "stop"])
@pytest.mark.parametrize("path", [b"/quick", b"/other"], ids=["at once", "usual"])
async def test_a_connection_is_closed_after_its_idle_time_and_at_a_stop(path: bytes, ends: str) -> None:
    keep_alive = 1 if (path, ends) == (b"/other", "idle") else 75
    async with one(shortcuts=of_path, keep_alive=keep_alive) as (reader, writer, connection, _):
        for _ in range(2):
            writer.write(asked(b"a", path) * 20)
            await answers(reader, 20)
            for _ in range(math.ceil(connection.timeout_keep_alive / protocol.STALL_CHECK_SECONDS)):
                connection.close_if_stalled()
            assert not connection.transport.is_closing()
        if ends == "stop":
            connection.shutdown()
        elif path == b"/quick":  # uvicorn has no timer for it
            connection.close_if_stalled()
        assert await closed(reader)


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
    b'{"text": "wheat", "min_offset": "0-0.0"}',
    b'{"instances": [{"text": "wheat"}, {"text": "oil"}]}',
]
WRONG = [b"{", b'{"text": "wheat", "k": 0}', b'{"text": 1}', b'{"features": {"a": 1e999}}', b'{"text": "\\ud800"}']


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
    return int(found[1])


@pytest.mark.parametrize("body", [*PLAIN, *WRONG])
def test_both_ways_give_the_same_answer(service: Served, body: bytes) -> None:
    for path in (b"/classify", b"/models/default/classify", b"/models/none/classify"):
        whole = ask(service, body, path)
        assert whole == ask(service, body, path, pieces=True)
        assert (b" 200 ok" in whole) == (b"none" not in path and body in PLAIN)


def test_what_is_answered_at_once_is_counted_like_the_rest(service: Served) -> None:
    def counted() -> float:
        text = service.http.get("/metrics").text
        found = re.search(r'abound_requests_total\{[^}]*route="/classify",status="200"[^}]*\} (\S+)', text)
        return float(found[1]) if found else 0.0

    before = counted()
    for _ in range(5):
        ask(service, PLAIN[0])
    job_worker.until(lambda: counted() == before + 5)


BEHIND = b"DELETE /models/victim HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

HEADS = {
    "plain": b"Content-Length: 5\r\n",
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 0\r\n",
    "a list of lengths": b"Content-Length: 5, 0\r\n",
    "a length with a sign": b"Content-Length: +5\r\n",
    "a length in hexadecimal": b"Content-Length: 0x5\r\n",
    "a negative length": b"Content-Length: -1\r\n",
    "a huge length": b"Content-Length: 99999999999999999999999\r\n",
    "an unknown coding last": b"Transfer-Encoding: chunked, identity\r\n",
    "a coding that looks like it": b"Transfer-Encoding: xchunked\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n",
    "a folded header": b"X: a\r\n Transfer-Encoding: chunked\r\n",
    "a line of its own": b"X: a\nTransfer-Encoding: chunked\r\n",
    "a return in a value": b"X: a\rTransfer-Encoding: chunked\r\n",
    "a zero byte": b"X: a\0b\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_nothing_rides_behind_a_request_of_two_minds(service: Served, head: bytes) -> None:
    """Only behind one that says plainly where it ends."""
    assert service.http.put("/models/victim").status_code in (200, 201)
    is_plain = head == HEADS["plain"]
    request = b"POST /classify HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n0\r\n\r\n" + BEHIND
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(request)
        if not is_plain:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert answer.count(b"HTTP/1.1 ") <= 1 + is_plain, answer
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert service.http.get("/models/victim").status_code == (404 if is_plain else 200)
