"""A client's connection to a replica, with bounds that uvicorn leaves open and errors in the form of all errors.

Bounded are the bytes of a request's head, the bytes of a whole request, the time until a head is whole, the time in
which nothing of a body comes, and the connections of a process.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from http import HTTPStatus
from typing import ClassVar

import msgspec

from service.joined import JoinedWrites
from service.shortcut import Shortcut, Shortcuts, no_shortcut

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
