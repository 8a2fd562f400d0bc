"""The startup server: what the supervisor answers on the service's port while no replica does.

``/livez`` answers 200. Everything else, including ``/readyz``, answers 503 with the progress of the start; ``/`` is
an HTML page that reloads until the service is ready. Each connection serves one request, and request bodies are
discarded.

This module also creates the listening socket, which the supervisor binds and every replica accepts from.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import html
import secrets
import socket
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from abound_core.errors import CannotStart

HEAD_SECONDS = 5.0
HEAD_BYTES = 16_384
MOST_CONNECTIONS = 512

DISCARD_SECONDS = 2.0
DISCARD_BYTES = 2**24
"""Bounds in time and size for reading and discarding a body: closing on unread bytes would reset the connection."""


# A script is needed: an HTML refresh does nothing for an address with a fragment, such as ``/#labels``.
RELOAD = "setTimeout(() => location.reload(), 1000)"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>Abound is starting</title>
</head>
<body>
<h1>Abound is starting</h1>
<p>{stage} <progress max="1" value="{progress}">{percent:.0f} %</progress></p>
<p>This page reloads automatically.</p>
<script>{script}</script>
</body>
</html>
"""

PAGE_HEADERS = [
    "Content-Type: text/html; charset=utf-8",
    "Content-Security-Policy: default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(RELOAD.encode()).digest()).decode()}'",
    "X-Content-Type-Options: nosniff",
]


class StartupStatus(NamedTuple):
    stage: str
    progress: float  # of the stage, 0..1


class StartupServer:
    """Answers requests on ``listening`` between ``open`` and ``close``, any number of times."""

    def __init__(self, listening: socket.socket, status: Callable[[], StartupStatus]) -> None:
        self._listening = listening
        self._status = status
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def open(self) -> None:
        if self._server is None:
            # A copy of the socket: closing it does not affect the one that the replicas accept from.
            copy = self._listening.dup()
            self._server = await asyncio.start_server(self._serve, sock=copy, limit=HEAD_BYTES, backlog=BACKLOG)

    def close(self) -> None:
        """Stop accepting connections; requests in progress are still answered."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= MOST_CONNECTIONS:
                await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass  # the parent ends: just close the connection
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client disconnected, was too slow or sent no request head
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3:
            return
        path = words[1].partition(b"?")[0]
        writer.write(response_to(path, self._status(), with_body=words[0] != b"HEAD"))
        writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                await writer.drain()
                left = DISCARD_BYTES
                while left > 0 and (data := await reader.read(65_536)):
                    left -= len(data)


def response_to(path: bytes, status: StartupStatus, with_body: bool = True) -> bytes:
    if path == b"/livez":
        body = msgspec.json.encode({"status": "alive"})
        lines = ["HTTP/1.1 200 OK", "Content-Type: application/json"]
    elif path == b"/":
        stage, done = html.escape(status.stage[:1].upper() + status.stage[1:]), status.progress
        said = PAGE.format(stage=stage, progress=round(done, 3), percent=100 * done, script=RELOAD)
        body = said.encode()
        lines = ["HTTP/1.1 503 Service Unavailable", *PAGE_HEADERS, "Retry-After: 1"]
    else:
        body = msgspec.json.encode(
            {
                "type": "/problems/not-ready",
                "title": "This replica cannot answer now",
                "status": 503,
                "detail": f"not ready: {status.stage}",
                "request_id": secrets.token_hex(8),
                "retry_after": 1.0,
                "stage": status.stage,
                "progress": round(status.progress, 3),
            }
        )
        lines = [
            "HTTP/1.1 503 Service Unavailable",
            "Content-Type: application/problem+json",
            "Retry-After: 1",
        ]
    lines += [f"Content-Length: {len(body)}", "Cache-Control: no-store", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + (body if with_body else b"")


BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a listening, non-blocking TCP socket of our own; ``port`` 0 takes a free port.

    ``::`` accepts IPv4 too. A name is resolved; of several addresses, IPv4 is preferred.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise CannotStart(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listening = socket.socket(family, kind, protocol)
    try:
        # Allows reuse of a port with old connections in TIME_WAIT. Two listeners still cannot share it.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CannotStart(_refusal(host, port, error)) from None
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """Return ``http://host:port`` of a listening socket, as a client on this machine can use it."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another program; choose another --port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} is not allowed to this user; choose a --port of 1024 or more"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen on {host}, port {port}: {error.strerror or error}"
