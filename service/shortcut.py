"""uvicorn's HTTP connection, with a short cut: an answer that needs no waiting is given while the request is read.

The usual way costs a task, a cycle of messages and a turn of the event loop, which together are as much as ranking is.
A whole POST for which the application knows an answer of status 200 at once goes without them:

1. the head is complete, nothing else is being answered on the connection, and the path has a short cut
2. the body came with it, in the same piece of data
3. the application gives the answer, and it is sent

Where one of these does not hold, the request goes the usual way as if nothing had happened; refusals and failures do
too. What pipelining clients send at once is answered in order, a few requests at a time, so that others get a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.exchange import JSON, Headers
from service.joined import JoinedWrites

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
