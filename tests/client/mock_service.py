"""A service that is a function from a request to an answer, and what clients send to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import httpx

from abound.client import (
    Client,
)

Handler = Callable[[httpx.Request], httpx.Response]


class Cut(httpx.AsyncByteStream):
    """An answer that breaks off behind these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        raise httpx.RemoteProtocolError("peer closed the connection")


def client(handler: Handler, pauses: list[float] | None = None) -> Client:
    kept = [] if pauses is None else pauses
    return Client("http://test", transport=httpx.MockTransport(handler), pause=kept.append)


def echo(request: httpx.Request) -> httpx.Response:
    """Answers each line with itself."""
    return httpx.Response(200, content=request.read())


def lines(n: int, size: int = 0) -> list[bytes]:
    return [json.dumps({"n": i, "pad": "x" * size}).encode() for i in range(n)]


def problem(status: int, **fields: object) -> dict[str, object]:
    return {"type": "/problems/x", "title": "X", "status": status, "detail": "it is so"} | fields


def starting(n: int, then: Handler = echo) -> Handler:
    """Begins to answer after so many requests."""
    left = [n]

    def handler(request: httpx.Request) -> httpx.Response:
        left[0] -= 1
        said = problem(
            503, type="/problems/not-ready", detail="this replica accepts no changes: warming", retry_after=1
        )
        return then(request) if left[0] < 0 else httpx.Response(503, json=said)

    return handler


def broken_gzip(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip at all"))
