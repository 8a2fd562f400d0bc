"""The bounds of a connection, over real sockets."""

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager

import pytest
import uvicorn

from abound.api.protocol import MAX_BODY_CHECKS, MAX_HEAD_CHECKS, ClientConnection
from abound.processes.startup_page import listen

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


async def echo(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(head_bytes=2000, request_bytes=100_000, connections=100, import_bytes=0, dataset_bytes=0):
    """The port of an echo with these bounds, and uvicorn's server."""
    kind = ClientConnection.with_bounds(
        head_bytes, request_bytes, connections, import_bytes=import_bytes, dataset_bytes=dataset_bytes
    )
    server = uvicorn.Server(uvicorn.Config(echo, http=kind, ws="none", lifespan="off", log_config=None))
    with listen("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield listening.getsockname()[1], server
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def connected(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader):
    """(status, body) of an answer, and whether the connection is closed after it."""
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    return int(head.split(b" ")[1]), body


async def closed(reader):
    async with asyncio.timeout(10):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def in_pieces(writer, *pieces):
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)


def is_problem(body, status, slug):
    problem = json.loads(body)
    return problem["status"] == status and problem["type"] == f"/problems/{slug}" and problem["request_id"]


async def test_requests_within_the_bounds_are_answered_one_after_another():
    async with served() as (port, _), connected(port) as (reader, writer):
        for size in (0, 10, 90_000, 90_000, 90_000):
            await in_pieces(writer, HEAD, b"Content-Length: %d\r\n\r\n" % size, b"x" * size)
            assert await answer(reader) == (200, b"x" * size)
        writer.write((HEAD + b"Content-Length: 2\r\n\r\nab") * 50)
        for _ in range(50):
            assert await answer(reader) == (200, b"ab")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "no header Host"),
        (b"POST / HTTP/1.1\r\nContent-Length: 0\r\n", "no header Host"),
        (HEAD + b"host: y\r\n", "several headers Host"),
        (HEAD + b"Host: x\r\nContent-Length: 1\r\n", "several headers Host"),
        (HEAD + b"Authorization: Bearer a\r\nauthorization: Bearer b\r\n", "several headers Authorization"),
    ],
    ids=["no host", "post without host", "two hosts", "host twice", "two keys"],
)
async def test_a_head_of_two_minds_is_refused_and_nothing_behind_it_is_read(head, said):
    async with served() as (port, _), connected(port) as (reader, writer):
        writer.write(HEAD + b"Content-Length: 2\r\n\r\nab")
        assert await answer(reader) == (200, b"ab")
        writer.write(head + b"\r\n" + HEAD + b"Content-Length: 2\r\n\r\nab")
        status, body = await answer(reader)
        assert status == 400
        assert is_problem(body, 400, "malformed")
        assert said in json.loads(body)["detail"]
        assert await closed(reader)


def upgrading(body, more=b""):
    """A request as Java's HttpClient sends it by default: it offers to go on in HTTP/2."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n"
    return HEAD + offer + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("cut", [10, 30, -12, -10, -1])
async def test_an_offer_to_upgrade_is_ignored_and_the_body_is_read(cut):
    async with served() as (port, _), connected(port) as (reader, writer):
        for sent in (upgrading(b"0123456789"), upgrading(b"0123456789")):
            await in_pieces(writer, sent[:cut], sent[cut:])
            assert await answer(reader) == (200, b"0123456789")


async def test_requests_behind_an_offer_to_upgrade_are_answered_in_order():
    async with served() as (port, _), connected(port) as (reader, writer):
        bodies = [b"%d" % i for i in range(600)]
        offer = b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunked = HEAD + offer + b"3\r\nend\r\n0\r\n\r\n"
        writer.write(b"".join(map(upgrading, bodies)) + chunked)
        for body in [*bodies, b"end"]:
            assert await answer(reader) == (200, body)


async def test_a_connection_that_is_to_close_closes_after_an_offer_to_upgrade():
    async with served() as (port, _), connected(port) as (reader, writer):
        writer.write(upgrading(b"body", b"Connection: close\r\n"))
        assert await answer(reader) == (200, b"body")
        assert await closed(reader)


async def test_http_1_0_needs_no_host():
    async with served() as (port, _), connected(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab")
        assert await answer(reader) == (200, b"ab")


async def test_a_head_that_never_ends_is_refused():
    async with served() as (port, _), connected(port) as (reader, writer):
        await in_pieces(writer, HEAD, *[b"x-%d: %s\r\n" % (i, b"y" * 200) for i in range(10)])
        status, body = await answer(reader)
        assert status == 431
        assert is_problem(body, 431, "too-large")
        assert await closed(reader)


async def test_one_header_that_never_ends_is_refused():
    async with served() as (port, _), connected(port) as (reader, writer):
        await in_pieces(writer, HEAD, b"x: ", *[b"y" * 500] * 4)
        assert (await answer(reader))[0] == 431


@pytest.mark.parametrize("ending", [b"x-%d: y\r\n", b"y%d"], ids=["trailers", "one trailer"])
async def test_trailers_that_never_end_are_refused(ending):
    async with served(request_bytes=20_000) as (port, server), connected(port) as (_, writer):
        await in_pieces(writer, HEAD, b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"x: ")
        with contextlib.suppress(ConnectionError):
            for i in range(5000):
                writer.write(ending % i)
                await writer.drain()
                await asyncio.sleep(0)
        assert await closed_soon(server)


async def closed_soon(server):
    async with asyncio.timeout(10):
        while True:
            if not server.server_state.connections:
                return True
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("nonsense", [b"hello\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http_is_told_so(nonsense):
    async with served() as (port, _), connected(port) as (reader, writer):
        writer.write(nonsense)
        status, body = await answer(reader)
        assert status == 400
        assert is_problem(body, 400, "malformed")
        assert await closed(reader)


async def test_one_connection_too_many_is_told_to_come_back():
    async with served(connections=2) as (port, _), connected(port), connected(port) as (reader, writer):
        await in_pieces(writer, HEAD + b"Content-Length: 1\r\n\r\na")
        assert (await answer(reader))[0] == 200
        async with connected(port) as (third, _):
            status, body = await answer(third)
            assert status == 503
            assert is_problem(body, 503, "overloaded")
            assert await closed(third)


@pytest.mark.parametrize(
    ("sent", "looks"),
    [
        (b"", MAX_HEAD_CHECKS),
        (HEAD, MAX_HEAD_CHECKS),
        (HEAD + b"Content-Length: 9\r\n\r\nabc", MAX_BODY_CHECKS),
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_request_that_does_not_come_on_is_hung_up_on(sent, looks):
    async with served() as (port, server), connected(port) as (reader, writer):
        await in_pieces(writer, sent, b"")
        [connection] = server.server_state.connections
        for _ in range(looks):
            connection.close_if_stalled()
        assert not connection.transport.is_closing()
        connection.close_if_stalled()
        assert await closed(reader)


async def test_a_head_that_dribbles_is_hung_up_on_and_a_body_that_comes_is_not():
    async with served() as (port, server), connected(port) as (reader, writer):
        await in_pieces(writer, HEAD)
        [connection] = server.server_state.connections
        for _ in range(MAX_HEAD_CHECKS + 1):
            await in_pieces(writer, b"x: y\r\n")
            connection.close_if_stalled()
        assert await closed(reader)
    async with served() as (port, server), connected(port) as (reader, writer):
        await in_pieces(writer, HEAD + b"Content-Length: 40\r\n\r\n")
        [connection] = server.server_state.connections
        for _ in range(MAX_BODY_CHECKS + 8):
            await in_pieces(writer, b"ab")
            connection.close_if_stalled()
        assert await answer(reader) == (200, b"ab" * 20)


async def test_an_idle_connection_between_requests_is_left_to_its_own_timeout():
    async with served() as (port, server), connected(port) as (reader, writer):
        await in_pieces(writer, HEAD + b"Content-Length: 1\r\n\r\na")
        await answer(reader)
        [connection] = server.server_state.connections
        for _ in range(2 * MAX_BODY_CHECKS):
            connection.close_if_stalled()
        await in_pieces(writer, HEAD + b"Content-Length: 1\r\n\r\nb")
        assert await answer(reader) == (200, b"b")


@pytest.mark.parametrize(
    ("first", "size", "taken"),
    [
        (b"PUT /models/a/import HTTP/1.1", 40_000, True),
        (b"PUT /models/a/import HTTP/1.1", 80_000, False),
        (b"POST /models/a/import HTTP/1.1", 40_000, False),
        (b"PUT /models/a HTTP/1.1", 40_000, False),
        (b"POST /models/a/versions HTTP/1.1", 40_000, True),
        (b"POST /models/a/versions HTTP/1.1", 80_000, False),
        (b"PUT /models/a/versions HTTP/1.1", 40_000, False),
        (b"PUT /datasets/a HTTP/1.1", 80_000, True),
        (b"PUT /%64atasets/a?filename=a.txt HTTP/1.1", 80_000, True),
        (b"PUT /datasets/a HTTP/1.1", 120_000, False),
        (b"POST /datasets/a HTTP/1.1", 40_000, False),
        (b"PUT /models/datasets/a HTTP/1.1", 40_000, False),
    ],
)
async def test_only_a_file_may_be_longer_than_other_requests(first, size, taken):
    status = None  # a client that is still writing may see no more than that the connection is closed
    bounds = {"request_bytes": 20_000, "import_bytes": 60_000, "dataset_bytes": 100_000}
    async with served(**bounds) as (port, _), connected(port) as (reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(first + b"\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size)
            for _ in range(size // 1000):
                writer.write(bytes(1000))
                await writer.drain()
                await asyncio.sleep(0)
            status = (await answer(reader))[0]
    assert status == 200 if taken else status in (413, None)
