"""A client's connection to a replica, with bounds that uvicorn leaves open and errors in the form of all errors.

Bounded are the bytes of a request's head, the bytes of a whole request, the time until a head is whole, the time in
which nothing of a body comes, and the connections of a process.

A transport that sends the head of an answer together with its body.

The server writes them one after the other, which is two system calls, and these cost more than ranking does. A head is
held until the next write, at most until the event loop's next turn: nothing ever waits for long, and nothing that has
a head and no body is lost.

uvicorn's HTTP connection, with a short cut: an answer that needs no waiting is given while the request is read.

The usual way costs a task, a cycle of messages and a turn of the event loop, which together are as much as ranking is.
A whole POST for which the application knows an answer of status 200 at once goes without them:

1. the head is complete, nothing else is being answered on the connection, and the path has a short cut
2. the body came with it, in the same piece of data
3. the application gives the answer, and it is sent

Where one of these does not hold, the request goes the usual way as if nothing had happened; refusals and failures do
too. What pipelining clients send at once is answered in order, a few requests at a time, so that others get a turn.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from abound.service.api.asgi import JSON, Headers

JOINED_BYTES = 65_536
"""A longer body is not copied behind its head."""

HEAD = b"HTTP/1.1 "


class JoinedWrites(asyncio.Transport):
    """Wraps ``transport``."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._soon = asyncio.get_running_loop().call_soon
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or hold a head for a moment."""
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= JOINED_BYTES:
                self._transport.write(head + data)
                return
            self._transport.write(head)
        elif data[:9] == HEAD:
            self._head = bytes(data)
            self._soon(self.flush)
            return
        self._transport.write(data)

    def send(self, answer: bytes) -> None:
        """Send a whole answer."""
        self.flush()
        self._transport.write(answer)

    def flush(self) -> None:
        """Send a head that is held."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Send what is held, then close."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closing or closed."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport knows about the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Whether it reads."""
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be sent, a held head among them."""
        return self._transport.get_write_buffer_size() + len(self._head)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection over."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whose the connection is."""
        return self._transport.get_protocol()


AT_ONCE = 16
"""Requests of one piece of data that are answered at once; those behind them go the usual way."""

AtOnce = Callable[[Headers, bytes], tuple[bytes, str] | None]
"""Given headers and a whole body: the JSON of an answer of status 200 and the id of the request, or None."""

_NONE = object()

Shortcuts = Callable[[bytes], AtOnce | None]
"""By the path of a POST: what may know its answer at once, or None."""


def no_shortcut(path: bytes) -> AtOnce | None:
    """Every request goes the usual way."""
    return None


class Shortcut(HttpToolsProtocol):
    """A connection; its transport is one with joined writes."""

    shortcuts: ClassVar[Shortcuts] = staticmethod(no_shortcut)

    transport: JoinedWrites
    _at_once: AtOnce | None = None  # what may answer the request that is being read
    _body = b""  # of that request
    _left = 0  # requests of this piece of data that may still be answered at once
    _answered: object = _NONE  # the scope of the request that was answered at once last

    @property
    def answered_at_once(self) -> bool:
        """Whether the request that came last was answered at once, and none has begun since."""
        return self.scope is self._answered

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._left = AT_ONCE
        super().data_received(data)
        if self._at_once is not None:
            self._turn_back()  # the body is still to come

    def on_message_begin(self) -> None:
        """A request begins. What only the usual way needs is made when it goes that way."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.scope = {}  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self._left and self._is_plain():
            self._at_once = type(self).shortcuts(self.url)
            if self._at_once is not None:
                self._left -= 1
                self._body = b""
                return
        self._go_the_usual_way()

    def on_body(self, body: bytes) -> None:
        """A piece of the body is there."""
        if self._at_once is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        """The request is there."""
        if self._at_once is not None:
            try:
                answer = self._at_once(dict(self.headers), self._body)
            except Exception:
                answer = None  # the usual way meets it again, reports it and answers
            if answer is not None:
                self._at_once = None
                self._answered = self.scope
                self.server_state.total_requests += 1
                self.transport.send(_whole(self.server_state.default_headers, *answer))
                return
            self._turn_back()
        super().on_message_complete()

    def _is_plain(self) -> bool:
        """Whether this is a POST to be kept alive after, and nothing is being answered or waits to be sent."""
        return (
            (self.cycle is None or self.cycle.response_complete)
            and self.parser.get_method() == b"POST"
            and not self.expect_100_continue
            and not self.flow.write_paused
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.transport.is_closing()
        )

    def _go_the_usual_way(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _turn_back(self) -> None:
        """Go the usual way after all."""
        self._at_once = None
        self._go_the_usual_way()
        if self._body:
            super().on_body(self._body)


def _whole(default_headers: list[tuple[bytes, bytes]], body: bytes, request_id: str) -> bytes:
    """The bytes of an answer of status 200."""
    return b"HTTP/1.1 200 OK\r\n%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n\r\n%b" % (
        b"".join([b"%b: %b\r\n" % header for header in default_headers]),
        JSON,
        len(body),
        request_id.encode("ascii"),
        body,
    )


LOOK_SECONDS = 5.0
"""How often each connection is looked at for having come to a stop."""

LOOKS_AT_HEAD = 3
LOOKS_AT_BODY = 12
"""So many looks at an unfinished head, or at a body of which nothing comes, and the connection is closed."""


class Connection(Shortcut):
    """One connection; ``with_bounds`` makes the class to use."""

    most_head_bytes: ClassVar[int]
    most_request_bytes: ClassVar[int]
    most_import_bytes: ClassVar[int]
    most_dataset_bytes: ClassVar[int]
    most_connections: ClassVar[int]

    _counted: object = None  # the scope of the request that the bytes belong to
    _bytes = 0  # of that request, from its second piece on: a first piece is bounded by what is read at once
    _looks = 0
    _looked_at: tuple[object, int] = (object(), 0)
    _wrong = "this is not HTTP/1.1"

    @classmethod
    def with_bounds(
        cls,
        head_bytes: int,
        request_bytes: int,
        connections: int,
        shortcuts: Shortcuts = no_shortcut,
        import_bytes: int = 0,
        dataset_bytes: int = 0,
    ) -> type[Connection]:
        """The class for the connections of a process.

        ``import_bytes``: of a request that brings the file of a model or of a version; ``dataset_bytes``: a data set.
        """
        bounds = {
            "most_head_bytes": head_bytes,
            "most_request_bytes": request_bytes,
            "most_import_bytes": max(request_bytes, import_bytes),
            "most_dataset_bytes": max(request_bytes, dataset_bytes),
            "most_connections": connections,
        }
        return type("BoundedConnection", (cls,), {**bounds, "shortcuts": staticmethod(shortcuts)})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; refuse one connection too many."""
        super().connection_made(JoinedWrites(transport))
        if len(self.connections) > self.most_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", "Too much at once", "too many connections")

    def data_received(self, data: bytes) -> None:
        """Read on, unless the request has become too long."""
        super().data_received(data)
        if self.scope is not self._counted:
            self._counted, self._bytes = self.scope, 0
            return
        self._bytes += len(data)
        if self._bytes > self.most_head_bytes and self._in_head():
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too-large",
                "Too large",
                f"the head of a request is over {self.most_head_bytes} bytes",
            )
        elif self._bytes > self.most_request_bytes and self._bytes > (most := self._most_bytes()):
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too-large",
                "Too large",
                f"the request is over {most} bytes",
            )

    def on_headers_complete(self) -> None:
        """Refuse a head of two minds about whom it is for or from: others before this service may go by the other."""
        names = [name for name, _ in self.headers]
        if names.count(b"authorization") > 1:
            self._wrong = "it has several headers Authorization"
        elif names.count(b"host") > 1:
            self._wrong = "it has several headers Host"
        elif b"host" not in names and self.parser.get_http_version() != "1.0":
            self._wrong = "it has no header Host"
        else:
            super().on_headers_complete()
            return
        raise ValueError(self._wrong)  # what reads on says send_400_response

    def look(self) -> None:
        """Close the connection if its request has not come on for too long. To be called every ``LOOK_SECONDS``."""
        if self.answered_at_once:
            # The usual way sets a timer for this; here it would cost more than the answer's head.
            seen, limit = (self.scope, 0), math.ceil(self.timeout_keep_alive / LOOK_SECONDS)
        elif self._in_head():
            seen, limit = (self.scope, 0), LOOKS_AT_HEAD
        elif self.cycle.more_body and not self.cycle.response_complete and not self.flow.read_paused:
            seen, limit = (self.scope, self._bytes), LOOKS_AT_BODY
        else:
            self._looks = 0
            return
        same = seen[0] is self._looked_at[0] and seen[1] == self._looked_at[1]
        self._looks = self._looks + 1 if same else 0
        self._looked_at = seen
        if self._looks >= limit:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, "malformed", "The request cannot be read", self._wrong)

    def _in_head(self) -> bool:
        """Whether a request's head is awaited: of the first request, or begun and not whole."""
        return not self.answered_at_once and (self.cycle is None or self.cycle.scope is not self.scope)

    def _most_bytes(self) -> int:
        """Of the request that comes: more if it brings a file, which its route reads piece by piece."""
        method, path = self.scope.get("method"), self.scope.get("path", "")
        if method == "PUT" and path.startswith("/datasets/"):
            return self.most_dataset_bytes
        if (method == "PUT" and path.endswith("/import")) or (method == "POST" and path.endswith("/versions")):
            return self.most_import_bytes
        return self.most_request_bytes

    def _refuse(self, status: HTTPStatus, slug: str, title: str, detail: str) -> None:
        """Answer with a problem document, where nothing is being answered, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            problem = {"type": f"/problems/{slug}", "title": title, "status": status.value, "detail": detail}
            body = msgspec.json.encode({**problem, "request_id": secrets.token_hex(8)})
            lines = [f"HTTP/1.1 {status.value} {status.phrase}", "Content-Type: application/problem+json"]
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                lines.append("Retry-After: 1")
            lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
            self.transport.write("\r\n".join(lines).encode() + body)
        self.transport.close()
