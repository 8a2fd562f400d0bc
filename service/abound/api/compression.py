"""Compressed bodies: of requests by ``Content-Encoding``, of answers by ``Accept-Encoding``."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from typing import Any

from abound.api.problems import CODINGS, UnsupportedMedia
from abound.api.request_body import Headers, Message, Receive, Send
from abound.artifacts.zstandard import zstd
from abound_core.errors import Malformed

PIECE_BYTES = 2**18  # of a body, inflated at a time
SMALL_BYTES = 1024  # an answer up to this size is sent as it is
LARGE_BYTES = 2**16  # an answer above this size is compressed in a thread
LEVEL = 1


class _Zlib:
    """zlib's decompressor of gzip and deflate, with the interface of that of zstandard."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        plain = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(plain) < max_length
        return plain


_DECOMPRESSORS: dict[bytes, Callable[[], Any]] = dict(zip(CODINGS, (_Zlib, _Zlib, zstd.ZstdDecompressor), strict=True))


def plain_body(receive: Receive, headers: Headers) -> Receive:
    """Return ``receive`` for the body without its ``Content-Encoding``, in pieces of at most ``PIECE_BYTES``.

    Receiving raises UnsupportedMedia for an unknown coding, and Malformed for a body that is damaged or cut off.
    """
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if coding in (b"", b"identity"):
        return receive
    make = _DECOMPRESSORS.get(coding)
    decompressor = make() if make is not None else None
    rest, more, ended = b"", True, False

    async def receive_plain() -> Message:
        nonlocal decompressor, rest, more, ended
        if decompressor is None or make is None:
            names = ", ".join(name.decode() for name in CODINGS)
            raise UnsupportedMedia(f"the body must be sent as it is, or with a Content-Encoding of {names}")
        if ended:
            return await receive()  # the end of the connection
        while not ended:
            if more and not rest and (decompressor.needs_input or decompressor.eof):
                message = await receive()
                if message["type"] != "http.request":
                    return message
                rest, more = message.get("body", b""), message.get("more_body", False)
            if decompressor.eof:
                if not rest:
                    ended = not more
                    continue
                decompressor = make()  # another member or frame follows
            try:
                plain = decompressor.decompress(rest, PIECE_BYTES)
            except (zlib.error, zstd.ZstdError) as error:
                raise Malformed(f"the body is not {coding.decode()}, or is damaged: {error}") from error
            rest = decompressor.unused_data if decompressor.eof else b""
            if plain:
                return {"type": "http.request", "body": plain, "more_body": True}
            if not (more or rest or decompressor.eof):
                raise Malformed(f"the body is cut off: its {coding.decode()} does not end")
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive_plain


def takes_gzip(headers: Headers) -> bool:
    """Return whether ``Accept-Encoding`` names gzip and does not refuse it."""
    for coding in headers.get(b"accept-encoding", b"").decode("latin-1").lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def compress(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)


def compressing(send: Send, headers: Headers) -> Send:
    """Return ``send`` that compresses JSON of over ``SMALL_BYTES`` if the client takes it; streams stay as they are."""
    if not takes_gzip(headers):
        return send
    held: Message | None = None

    async def send_compressed(message: Message) -> None:
        nonlocal held
        if message["type"] == "http.response.start":
            given = dict(message["headers"])
            size = int(given.get(b"content-length", 0))
            if size > SMALL_BYTES and given[b"content-type"].endswith(b"json") and b"content-encoding" not in given:
                held = message
                return
        elif held is not None:
            start, held = held, None
            body = message["body"]
            body = compress(body) if len(body) <= LARGE_BYTES else await asyncio.to_thread(compress, body)
            others = [header for header in start["headers"] if header[0] != b"content-length"]
            coding = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
            await send({**start, "headers": [*others, (b"content-length", b"%d" % len(body)), *coding]})
            message = {**message, "body": body}
        await send(message)

    return send_compressed
