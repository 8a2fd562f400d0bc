"""NDJSON requests and answers: read and sent line by line, neither waiting for the other.

``RequestLines.pump`` receives, a worker puts an answer for each line, in order, and ``AnswerLines.pump`` sends. The
three run concurrently, so a client that sends everything before it reads anything is served, in bounded memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from abound.api.request_body import NDJSON, BodyBudget, Disconnected, Receive, Send, too_large
from abound_core.errors import AboundError, TooLarge

MAX_WAITING_BYTES = 2**20  # of unsent answers, at which the worker pauses
LINES_AT_ONCE = 512


class NdjsonLine:
    """One line of a request: its number (from 1) and its bytes, or its error."""

    __slots__ = ("body", "error", "number", "request")

    def __init__(self, number: int, body: bytes, error: AboundError | None = None) -> None:
        self.number = number
        self.body = body
        self.error = error
        self.request: Any = None  # the decoded body, if its text was encoded behind a URL


class RequestLines:
    """The lines of a request's body. A body over ``max_bytes`` or ``max_lines`` ends with a line that has the error.

    A line over ``max_line_bytes`` is answered with a problem and skipped. Blank lines have a number, get no answer, and
    do not count.
    """

    def __init__(self, receive: Receive, held: BodyBudget, max_bytes: int, max_lines: int, max_line_bytes: int) -> None:
        self._receive = receive
        self._held = held
        self._max_bytes = max_bytes
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._pieces: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._size = 0
        self._counted = 0
        self._ended = False
        self._disconnected = False
        self._refusal: AboundError | None = None
        self.may_be_logged = False  # part of the request may be in the log

    @property
    def has_more(self) -> bool:
        return bool(self._pieces) or self._ended

    async def pump(self) -> None:
        """Receive the body, up to its end or its limit. Never wait for the answers."""
        try:
            more = True
            while more and self._refusal is None:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._disconnected = True
                    return
                more = message.get("more_body", False)
                self._receive_piece(message.get("body", b""))
                self._arrived.set()
        except AboundError as error:  # a compressed body is damaged
            self._refusal = error
        finally:
            self._ended = True
            self._arrived.set()

    def _receive_piece(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._refusal = too_large(self._max_bytes)
            return
        try:
            self._held.reserve(len(piece))
        except AboundError as error:
            self._refusal = error
            return
        self._counted += len(piece)
        self._pieces.append(piece)

    def release(self) -> None:
        self._held.release(self._counted)
        self._counted = 0

    async def groups(self) -> AsyncIterator[list[NdjsonLine]]:
        """Yield groups of complete lines as they arrive; raise Disconnected when the client has disconnected."""
        number = taken = 0
        rest: list[bytes] = []
        rest_size = 0
        while True:
            while not self._pieces and not self._ended:
                self._arrived.clear()
                await self._arrived.wait()
            if self._disconnected:
                raise Disconnected
            last = not self._pieces
            piece = b"" if last else self._pieces.popleft()
            if not rest_size:  # skip empty lines: a body can have as many of them as bytes
                number += len(piece)
                piece = piece.lstrip(b"\n")
                number -= len(piece)
            bodies = piece.split(b"\n", LINES_AT_ONCE)
            if len(bodies) > LINES_AT_ONCE:
                self._pieces.appendleft(bodies.pop())
                bodies.append(b"")
            lines = []
            for body in bodies if last else bodies[:-1]:
                if last and (not rest_size or self._refusal is not None):
                    break
                number += 1
                if rest_size:
                    rest_size += len(body)
                    body = b"".join([*rest, body]) if rest_size <= self._max_line_bytes else b""
                    oversize = rest_size > self._max_line_bytes
                    rest, rest_size = [], 0
                else:
                    oversize = len(body) > self._max_line_bytes
                if not oversize and (not body or body.isspace()):
                    continue
                taken += 1
                if taken > self._max_lines:
                    lines.append(NdjsonLine(number, b"", TooLarge(f"a request has at most {self._max_lines} lines")))
                    break
                if oversize:
                    lines.append(NdjsonLine(number, b"", TooLarge(f"a line has at most {self._max_line_bytes} bytes")))
                else:
                    lines.append(NdjsonLine(number, body))
            if last and self._refusal is not None:
                lines.append(NdjsonLine(number + 1, b"", self._refusal))
            if lines:
                yield lines
            else:
                await asyncio.sleep(0)
            if last or taken > self._max_lines:
                return
            if bodies[-1]:
                rest_size += len(bodies[-1])
                if rest_size <= self._max_line_bytes:
                    rest.append(bodies[-1])


class AnswerLines:
    """The lines of an answer, sent while the request still arrives."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self._lines: list[bytes] = []
        self._size = 0
        self._has_lines = asyncio.Event()
        self._drained = asyncio.Event()
        self._ended = False
        self.started = False

    def put(self, line: bytes) -> None:
        """Add the answer to the next line of the request."""
        self._lines.append(line)
        self._size += len(line) + 1

    def flush(self) -> None:
        if self._lines:
            self._has_lines.set()

    async def wait_for_client(self) -> None:
        """Wait while too many answers are unsent: a client that does not read gets no work done."""
        self.flush()
        while self._size > MAX_WAITING_BYTES:
            self._drained.clear()
            await self._drained.wait()

    def end(self) -> None:
        self._ended = True
        self._has_lines.set()

    async def pump(self) -> None:
        while True:
            await self._has_lines.wait()
            self._has_lines.clear()
            if not self.started:
                self.started = True
                headers = [(b"content-type", NDJSON), (b"x-request-id", self._request_id.encode("ascii"))]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            lines, size = self._lines, self._size
            self._lines = []
            if lines:
                lines.append(b"")
                await self._send({"type": "http.response.body", "body": b"\n".join(lines), "more_body": True})
                self._size -= size
                self._drained.set()
            if self._ended and not self._lines:
                await self._send({"type": "http.response.body", "body": b""})
                return
