"""uvicorn's HTTP protocol with limits, problem documents for errors, and a fast path for requests answered from memory.

uvicorn leaves open the bytes of a request's head, the bytes of a whole request, the time until the head is complete,
the time without progress of a body, and the connections of a process. The fast path skips a task, a cycle of ASGI
messages and a turn of the event loop, which together cost as much as ranking.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from abound.api.request_body import JSON, Headers

MAX_JOINED_BYTES = 65_536  # longest body that is copied behind its head
HEAD = b"HTTP/1.1 "


class JoinedWrites(asyncio.Transport):
    """A transport that sends the head of an answer together with its body, and asks ``read_on`` to resume reading.

    The server writes them one after the other: two system calls, which cost more than ranking does.
    """

    def __init__(self, transport: asyncio.Transport, read_on: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._read_on = read_on
        self._soon = asyncio.get_running_loop().call_soon
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data; hold the head of an answer until the next write or turn of the event loop."""
        if self._transport.is_closing():
            return  # the client has left; earlier requests of its pipeline still write their answers
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= MAX_JOINED_BYTES:
                self._transport.write(head + data)
                return
            self._transport.write(head)
        elif data[:9] == HEAD:
            self._head = bytes(data)
            self._soon(self.flush)  # at the latest: no body may follow
            return
        self._transport.write(data)

    def send(self, answer: bytes) -> None:
        self.flush()
        self._transport.write(answer)

    def flush(self) -> None:
        if self._head and not self._transport.is_closing():
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Let the protocol resume reading, after it has parsed what it keeps."""
        self._read_on()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + len(self._head)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()


MAX_TURN_REQUESTS = 16  # requests of a connection that are parsed in one turn of the event loop
MAX_UNPARSED_BYTES = 2**26  # kept by all connections together; one that exceeds it is closed
HEAD_END = b"\r\n\r\n"  # the parser accepts no other line ends, so heads are counted without parsing them
FastAnswer = Callable[[Headers, bytes], tuple[bytes, str, bool] | None]
"""Headers and body to JSON, request id, and whether the JSON is compressed with gzip."""

GZIPPED = b"content-encoding: gzip\r\nvary: accept-encoding\r\n"
_NONE = object()

FastPaths = Callable[[bytes], FastAnswer | None]  # the URL of a POST to its fast path


def no_fast_path(path: bytes) -> FastAnswer | None:
    return None


class FastPathConnection(HttpToolsProtocol):
    """A connection with a fast path; its transport joins writes."""

    shortcuts: ClassVar[FastPaths] = staticmethod(no_fast_path)

    unparsed_bytes: ClassVar[int] = 0  # of all connections of the class

    transport: JoinedWrites
    _socket: asyncio.Transport
    _data = b""  # what was read
    _at = 0  # where the part of it begins that is not parsed yet
    _kept_bytes = 0  # of this connection in ``unparsed_bytes``; it reads no more until this is 0
    _fast_answer: FastAnswer | None = None  # the function that may answer the request being read
    _headers: Headers  # of that request, the last of several values
    _body = b""  # of that request
    _defaults: list[tuple[bytes, bytes]] | None = None  # the server's headers, which it replaces every second
    _default_lines = b""  # the same as lines
    _answered: object = _NONE  # the scope of the last request that took the fast path

    @property
    def took_fast_path(self) -> bool:
        """Whether the last request took the fast path and no other has begun since."""
        return self.scope is self._answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        super().connection_made(JoinedWrites(transport, self._read_on))

    def connection_lost(self, exc: Exception | None) -> None:
        self._discard()
        self._fast_answer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._data and data.count(HEAD_END) < 2 and not self.pipeline and not self.flow.read_paused:
            # The usual case, in which nothing has to wait: a request or a part of one.
            self._unset_keepalive_if_required()
            self._feed(data)
            if self._fast_answer is not None:
                self._fall_back()  # the rest of the body has not arrived
            return
        self._data = self._data[self._at :] + data if self._data else data
        self._at = 0
        self._parse()

    def _read_on(self) -> None:
        """Parse what is kept; read more if nothing is. uvicorn asks for it after answers and for more of a body."""
        if self._kept_bytes:
            self.loop.call_soon(self._parse)  # after uvicorn has started the next request
        else:
            self._socket.resume_reading()

    def _parse(self) -> None:
        """Parse a few requests of what was read, unless a parsed one waits, and keep the rest."""
        data, begin = self._data, self._at
        if not data:
            return
        if not self.pipeline and not self.flow.read_paused:
            self._unset_keepalive_if_required()
            # Only a few, so that other connections get a turn of the event loop.
            self._at = end = _end_of_turn(data, begin)
            self._feed(memoryview(data)[begin:end] if begin or end < len(data) else data)
        if self._at < len(data) and not self._socket.is_closing():
            # Read no more: the connection holds one read and a few requests, however much the client sends.
            self._keep()
            return
        self._discard()
        if self._fast_answer is not None:
            self._fall_back()  # the rest of the body has not arrived

    def _keep(self) -> None:
        """Stop reading until the rest is parsed; close the connection if all connections keep too much."""
        kind = type(self)
        kind.unparsed_bytes += len(self._data) - self._kept_bytes
        self._kept_bytes = len(self._data)
        if kind.unparsed_bytes > MAX_UNPARSED_BYTES:
            # No answer: the client could take it for that of an earlier request, which may have been carried out.
            self.logger.warning("Closed a connection: clients send more requests than are answered.")
            self._discard()
            self.transport.close()
        elif self.pipeline or self.flow.read_paused:
            self.flow.pause_reading()
        else:
            self._socket.pause_reading()
            self.loop.call_soon(self._parse)

    def _discard(self) -> None:
        """Free what was read, and resume reading unless a request has to wait."""
        self._data = b""
        self._at = 0
        if self._kept_bytes:
            type(self).unparsed_bytes -= self._kept_bytes
            self._kept_bytes = 0
            if not self.flow.read_paused:
                self._socket.resume_reading()

    def _feed(self, data: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as stopped:
            if self._offers_upgrade():
                # Java's HttpClient and others offer HTTP/2 with every request; a server may ignore it (RFC 9110,
                # 7.8). This parser took the request as complete and stopped: another one reads the head without the
                # header, and the rest.
                head = self._head_without_upgrade()
                self.parser = HttpRequestParser(self)  # the other one skips what follows Connection: close
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self._feed(head)
                self._feed(memoryview(data)[stopped.args[0] :])
            else:
                self._at = len(self._data)  # what follows CONNECT is no request
        except HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin a request. State that only the normal path needs is created when the request takes it."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self.scope = {}  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        # The fast path is for a POST that the application answers without waiting, and whose body came with its head.
        if self._is_plain():
            self._fast_answer = type(self).shortcuts(self.url)
            if self._fast_answer is not None:
                self._body = b""
                return
        if not self._offers_upgrade():
            self._use_normal_path()

    def on_body(self, body: bytes) -> None:
        if self._fast_answer is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        if self._fast_answer is not None:
            try:
                answer = self._fast_answer(self._headers, self._body)
            except Exception:
                answer = None  # the normal path raises it again, logs it and answers
            if answer is not None:
                self._fast_answer = None
                self._answered = self.scope
                self.server_state.total_requests += 1
                self.transport.send(self._response_bytes(*answer))
                return
            # It has to wait or is refused: the normal path answers as if nothing had happened.
            self._fall_back()
        if not self._offers_upgrade():
            super().on_message_complete()

    def _offers_upgrade(self) -> bool:
        """Return whether the parser stops at the end of this head because of a header ``Upgrade``."""
        return self.parser.should_upgrade() and b"upgrade" in self._headers

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _is_plain(self) -> bool:
        """Return whether this is a keep-alive POST, no answer is in progress and no bytes wait to be sent."""
        return (
            (self.cycle is None or self.cycle.response_complete)
            and self.parser.get_method() == b"POST"
            and not self.expect_100_continue
            and not self.flow.write_paused
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"  # to 1.0 the normal path says that it closes
            and not self.parser.should_upgrade()
            and not self.transport.is_closing()
        )

    def _response_bytes(self, body: bytes, request_id: str, is_compressed: bool) -> bytes:
        if self._defaults is not self.server_state.default_headers:
            self._defaults = self.server_state.default_headers
            self._default_lines = b"".join([b"%b: %b\r\n" % header for header in self._defaults])
        return b"HTTP/1.1 200 OK\r\n%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b\r\n%b" % (
            self._default_lines,
            JSON,
            len(body),
            request_id.encode("ascii"),
            GZIPPED if is_compressed else b"",
            body,
        )

    def _use_normal_path(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _fall_back(self) -> None:
        self._fast_answer = None
        self._use_normal_path()
        if self._body:
            super().on_body(self._body)


def _end_of_turn(data: bytes, begin: int) -> int:
    """Return the end of the last head that is parsed in this turn; of the data, if no head follows."""
    end = begin
    for _ in range(MAX_TURN_REQUESTS):
        found = data.find(HEAD_END, end)
        if found < 0:
            return len(data)
        end = found + len(HEAD_END)
    return end if data.find(HEAD_END, end) >= 0 else len(data)


STALL_CHECK_SECONDS = 5.0  # interval at which connections are checked for stalled requests
MAX_HEAD_CHECKS = 3
MAX_BODY_CHECKS = 12
"""Number of checks after which a connection with an incomplete head, or a body without progress, is closed."""


class ClientConnection(FastPathConnection):
    """A client's connection with limits; ``with_bounds`` makes the class to use."""

    most_head_bytes: ClassVar[int]
    most_request_bytes: ClassVar[int]
    most_import_bytes: ClassVar[int]
    most_dataset_bytes: ClassVar[int]
    most_connections: ClassVar[int]

    _counted: object = None  # the scope of the request whose bytes are counted
    _bytes = 0  # of that request, from its second piece on: the size of one read bounds the first piece
    _stalled_checks = 0
    _last_progress: tuple[object, int] = (object(), 0)
    _invalid_detail = "the request is not HTTP/1.1"

    @classmethod
    def with_bounds(
        cls,
        head_bytes: int,
        request_bytes: int,
        connections: int,
        shortcuts: FastPaths = no_fast_path,
        import_bytes: int = 0,
        dataset_bytes: int = 0,
    ) -> type[ClientConnection]:
        """Return the class for a process; the last bounds are of requests with a model, version or data set file."""
        bounds = {
            "most_head_bytes": head_bytes,
            "most_request_bytes": request_bytes,
            "most_import_bytes": max(request_bytes, import_bytes),
            "most_dataset_bytes": max(request_bytes, dataset_bytes),
            "most_connections": connections,
        }
        return type("BoundedConnection", (cls,), {**bounds, "shortcuts": staticmethod(shortcuts)})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", "Service overloaded", "too many connections")

    def _feed(self, data: bytes | memoryview) -> None:
        """Parse data, and refuse the request when it is too long."""
        super()._feed(data)
        if self.scope is not self._counted:
            self._counted, self._bytes = self.scope, 0
            return
        self._bytes += len(data)
        if self._bytes > self.most_head_bytes and self._in_head():
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too-large",
                "Too large",
                f"the request head is larger than {self.most_head_bytes} bytes",
            )
        elif self._bytes > self.most_request_bytes and self._bytes > (most := self._max_bytes()):
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too-large",
                "Too large",
                f"the request is larger than {most} bytes",
            )

    def on_headers_complete(self) -> None:
        """Refuse a request with several ``Host`` or ``Authorization`` headers, or without ``Host`` (except HTTP/1.0).

        A proxy in front of this service may use another one of several values than this service does.
        """
        self._headers = dict(self.headers)
        names = [name for name, _ in self.headers] if len(self._headers) < len(self.headers) else []
        if names.count(b"authorization") > 1:
            self._invalid_detail = "the request has several headers Authorization"
        elif names.count(b"host") > 1:
            self._invalid_detail = "the request has several headers Host"
        elif b"host" not in self._headers and self.parser.get_http_version() != "1.0":
            self._invalid_detail = "the request has no header Host"
        else:
            super().on_headers_complete()
            return
        raise ValueError(self._invalid_detail)  # the parser's caller answers with send_400_response

    def close_if_stalled(self) -> None:
        """Close the connection if its client has stalled. The server calls this every ``STALL_CHECK_SECONDS``."""
        seen: tuple[object, int]
        keep_alive_checks = math.ceil(self.timeout_keep_alive / STALL_CHECK_SECONDS)
        if unsent := self.transport.get_write_buffer_size():
            seen, limit = (self.transport, unsent), keep_alive_checks  # the client does not read
        elif self.took_fast_path:
            # The normal path sets a keep-alive timer; here that would cost more than writing the answer's head.
            seen, limit = (self.scope, 0), keep_alive_checks
        elif self._in_head():
            seen, limit = (self.scope, 0), MAX_HEAD_CHECKS
        elif self.cycle.more_body and not self.cycle.response_complete and not self.flow.read_paused:
            seen, limit = (self.scope, self._bytes), MAX_BODY_CHECKS
        else:
            self._stalled_checks = 0
            return
        same = seen[0] is self._last_progress[0] and seen[1] == self._last_progress[1]
        self._stalled_checks = self._stalled_checks + 1 if same else 0
        self._last_progress = seen
        if self._stalled_checks >= limit:
            self.transport.abort()  # close would wait until the client has read everything

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, "malformed", "The request cannot be read", self._invalid_detail)

    def _in_head(self) -> bool:
        """Return whether a request's head is awaited: of the first request, or begun and incomplete."""
        return not self.took_fast_path and (self.cycle is None or self.cycle.scope is not self.scope)

    def _max_bytes(self) -> int:
        """Return the limit of the current request: higher for uploads, which their routes read piece by piece."""
        method, path = self.scope.get("method"), self.scope.get("path", "")
        if method == "PUT" and path.startswith("/datasets/"):
            return self.most_dataset_bytes
        if (method == "PUT" and path.endswith("/import")) or (method == "POST" and path.endswith("/versions")):
            return self.most_import_bytes
        return self.most_request_bytes

    def _refuse(self, status: HTTPStatus, slug: str, title: str, detail: str) -> None:
        """Answer with a problem document, unless another answer is in progress, and close."""
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
