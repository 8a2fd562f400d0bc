from __future__ import annotations

import asyncio
import socket

from abound.api.protocol import MAX_JOINED_BYTES, JoinedWrites
from tests.support.served import served

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Wire(asyncio.Transport):
    """Remembers what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.sent.append(b"closed")
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0


def no_reading() -> None:
    raise AssertionError("nothing is read here")


async def test_a_head_goes_out_with_its_body() -> None:
    wire = Wire()
    joined = JoinedWrites(wire, no_reading)
    for body in (b"one", b"two"):
        joined.write(HEAD)
        assert joined.get_write_buffer_size() == len(HEAD)
        joined.write(body)
        joined.write(b"more")
    assert wire.sent == [HEAD + b"one", b"more", HEAD + b"two", b"more"]
    await asyncio.sleep(0)
    assert len(wire.sent) == 4


async def test_a_head_without_a_body_goes_out_at_the_next_turn() -> None:
    wire = Wire()
    joined = JoinedWrites(wire, no_reading)
    joined.write(HEAD)
    assert wire.sent == []
    await asyncio.sleep(0)
    assert wire.sent == [HEAD]
    joined.write(b"late")
    assert wire.sent == [HEAD, b"late"]


async def test_a_head_goes_out_before_the_end() -> None:
    wire = Wire()
    joined = JoinedWrites(wire, no_reading)
    joined.write(HEAD)
    joined.close()
    assert wire.sent == [HEAD, b"closed"]


async def test_a_long_body_is_not_copied() -> None:
    wire = Wire()
    joined = JoinedWrites(wire, no_reading)
    body = b"x" * (MAX_JOINED_BYTES + 1)
    joined.write(HEAD)
    joined.write(body)
    assert wire.sent == [HEAD, body]


async def test_two_heads_stay_in_order() -> None:
    wire = Wire()
    joined = JoinedWrites(wire, no_reading)
    joined.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    joined.write(HEAD)
    joined.write(b"body")
    assert b"".join(wire.sent) == b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"body"


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    """The 100 that comes before a body is not held until the answer; neither is the head of an answer to HEAD."""
    with served() as service, socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.settimeout(20)
        body = b'{"text": "a"}'
        head = (
            f"POST /classify HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        connection.sendall(b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n")


async def test_nothing_is_written_once_the_client_has_left() -> None:
    wire = Wire()
    joined = JoinedWrites(wire, no_reading)
    joined.write(HEAD)
    wire.closed = True
    joined.write(b"body")
    joined.write(HEAD)
    joined.flush()
    await asyncio.sleep(0)
    assert wire.sent == []
