"""One HTTP exchange without a framework: its headers, its bounded body, its answer.

The hot routes use these functions directly; the other routes read their bodies with them.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from abound.api.problems import UnsupportedMedia
from abound_core.errors import Overloaded, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Mapping[bytes, bytes]

JSON = b"application/json"
NDJSON = b"application/x-ndjson"

MAX_BODIES_BYTES = 512 * 2**20  # of bodies in several pieces that one process holds; more are refused as overload
_sane_request_id = re.compile(rb"[!-~]{1,128}").fullmatch
_process = secrets.token_hex(6)
_numbers = itertools.count(1)


class Disconnected(Exception):
    """The client has disconnected; there is no one to answer."""


def request_id_of(headers: Headers) -> str:
    """Return the ``X-Request-Id`` of the client if it is short and printable, else a new id."""
    given = headers.get(b"x-request-id")
    if given is not None and _sane_request_id(given):
        return given.decode("ascii")
    return f"{_process}-{next(_numbers):x}"


def media_of(headers: Headers, accepted: tuple[bytes, ...]) -> bytes:
    """Return the media type of the body, JSON by default; raise UnsupportedMedia unless it is accepted."""
    given = headers.get(b"content-type", JSON)
    if given == JSON:
        return JSON
    media, _, parameters = given.partition(b";")
    media = media.strip().lower() or JSON
    if media not in accepted:
        names = " or ".join(name.decode() for name in accepted)
        raise UnsupportedMedia(f"the body must be {names}, not {media[:100].decode('latin-1')}")
    for parameter in parameters.split(b";"):
        name, _, value = parameter.strip().lower().partition(b"=")
        if name == b"charset" and value.strip(b'"') not in (b"utf-8", b"utf8", b"us-ascii"):
            raise UnsupportedMedia("the body must be UTF-8")
    return media


def check_length(headers: Headers, limit: int) -> None:
    length = headers.get(b"content-length")
    if length is not None and len(length) > 3 and length.isdigit() and int(length[:20]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes")


class BodyBudget:
    """Counts the bytes of bodies that arrive in several pieces and are not answered yet."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def reserve(self, size: int) -> None:
        if self.n_bytes + size > MAX_BODIES_BYTES:
            raise Overloaded("too many large request bodies at a time; try again")
        self.n_bytes += size

    def release(self, size: int) -> None:
        self.n_bytes -= size


async def read_body(receive: Receive, headers: Headers, limit: int, held: BodyBudget) -> bytes:
    """Return the whole body. Raise TooLarge, by Content-Length or by the bytes received, Overloaded or Disconnected."""
    check_length(headers, limit)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > limit:
            raise too_large(limit)
        return body
    pieces = [body]
    size = len(body)
    counted = 0
    try:
        held.reserve(size)
        counted = size
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise too_large(limit)
            held.reserve(len(piece))
            counted += len(piece)
            pieces.append(piece)
    finally:
        held.release(counted)
    return b"".join(pieces)


async def send_answer(
    send: Send,
    status: int,
    media: bytes,
    body: bytes,
    request_id: str,
    more: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    headers = [
        (b"content-type", media),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("ascii")),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
