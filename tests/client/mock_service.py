"""A service that is a function from a request to an answer, and what clients send to it."""

import json
from collections.abc import AsyncIterator, Callable

import httpx

from abound.client import Client

Handler = Callable[[httpx.Request], httpx.Response]

AWAY = httpx.ConnectError("refused")


class Script:
    """Answers in turn, the last one ever after: a status, an error to raise, or a handler. Keeps the requests."""

    def __init__(self, *answers: int | Exception | Handler) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer, json={} if answer == 200 else problem(answer))
        return answer(request)

    @property
    def numbers(self) -> list[list[int]]:
        return [[json.loads(line)["n"] for line in request.content.splitlines()] for request in self.requests]


def body(content: str | bytes, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    return lambda request: httpx.Response(status, content=content, headers=headers)


def cut(data: bytes = b"") -> Handler:
    """An answer that breaks off behind these bytes."""

    class Cut(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield data
            raise httpx.RemoteProtocolError("peer closed the connection")

    return lambda request: httpx.Response(200, stream=Cut())


def client(handler: Handler, pauses: list[float] | None = None) -> Client:
    kept = [] if pauses is None else pauses
    return Client("http://test", transport=httpx.MockTransport(handler), pause=kept.append)


def echo(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=request.content)


def lines(n: int, size: int = 0) -> list[bytes]:
    return [json.dumps({"n": i, "pad": "x" * size}).encode() for i in range(n)]


def problem(status: int, **fields: object) -> dict[str, object]:
    return {"type": "/problems/x", "title": "X", "status": status, "detail": "it is so"} | fields


def starting(n: int, then: Handler = echo) -> Script:
    """Begins to answer after so many requests."""
    said = problem(503, type="/problems/not-ready", detail="this replica accepts no changes: warming", retry_after=1)
    return Script(*[body(json.dumps(said), 503)] * n, then)


def broken_gzip(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip at all"))
