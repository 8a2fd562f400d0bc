"""Requests whose end can be read in two ways: refused, and the connection closed, so that nothing rides behind them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.served import Served, served

BEHIND = b"DELETE /models/victim HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"

HEADS = {
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


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_nothing_rides_behind_a_request_of_two_minds(service: Served, head: bytes) -> None:
    assert service.http.put("/models/victim").status_code in (200, 201)
    request = b"POST /classify HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n0\r\n\r\n" + BEHIND
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert service.http.get("/models/victim").status_code == 200


def test_a_request_whose_end_is_plain_is_followed_by_the_next(service: Served) -> None:
    assert service.http.put("/models/victim").status_code in (200, 201)
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" + BEHIND
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while b"204" not in answer:
            piece = connection.recv(65_536)
            assert piece, answer
            answer += piece
    assert service.http.get("/models/victim").status_code == 404
