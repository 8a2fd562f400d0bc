"""One raw connection to the store for the hot paths: commands out, replies back in order, never a retry.

The appender and the follower each hold one. It speaks the store's protocol through hiredis at about half the cost of
a general client. More important: nothing here sends a command twice. When the connection is lost, every command
without a reply ends with :class:`ConnectionLost`, and whether the store executed it is unknown.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url

from abound_core.errors import StoreUnavailable

Reply = Any
"""bytes, int, None, a list of replies, or hiredis.ReplyError when the store refused the command."""

TICK = 0.25

PING_SECONDS = 15.0
"""An idle connection sends a ``PING`` after this long, because many stores close idle ones. It counts as lost if the
reply takes as long.
"""


def pack_command(words: tuple[str | bytes | int, ...]) -> bytes:
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return command


class ConnectionLost(Exception):
    """The connection is lost. A command without a reply may or may not have been executed."""


@dataclass(frozen=True, slots=True)
class Address:
    """Location and credentials of the store. Never log the fields: ``str`` leaves the password out."""

    path: str | None  # of a unix socket; None: ``host`` and ``port``
    host: str
    port: int
    database: int
    username: str | None
    password: str | None
    tls: ssl.SSLContext | None

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Parse a ``redis://``, ``rediss://`` or ``unix://`` URL; raise ValueError for any other."""
        parts: dict[str, Any] = dict(parse_url(url))
        tls = None
        if parts.get("connection_class") is SSLConnection:
            options = {name: value for name, value in parts.items() if name.startswith("ssl_")}
            tls = SSLConnection(**options).ssl_context.get()
        if url.startswith("unix://") and not parts.get("path"):
            raise ValueError("a unix:// URL must contain the path of a socket")
        return cls(
            path=parts.get("path"),
            host=parts.get("host", "localhost"),
            port=parts.get("port", 6379),
            database=int(parts.get("db") or 0),
            username=parts.get("username"),
            password=parts.get("password"),
            tls=tls,
        )

    def __str__(self) -> str:
        return self.path if self.path is not None else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Address({self})"


class StoreConnection(asyncio.Protocol):
    """An open connection, made by ``StoreConnection.open``. It does not reconnect."""

    def __init__(self, on_lost: Callable[[], None] | None = None) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[Callable[[Reply], None], float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._ticker: asyncio.TimerHandle | None = None
        self._cause: BaseException | None = None
        self._ping_at = math.inf

    @classmethod
    async def open(
        cls, address: Address, name: str, seconds: float, on_lost: Callable[[], None] | None = None
    ) -> StoreConnection:
        """Connect, sign in and name the connection. Raises StoreUnavailable, also for rejected credentials."""
        loop = asyncio.get_running_loop()
        connection = cls(on_lost)
        try:
            async with asyncio.timeout(seconds):
                if address.path is not None:
                    await loop.create_unix_connection(lambda: connection, address.path)
                else:
                    await loop.create_connection(lambda: connection, address.host, address.port, ssl=address.tls)
                await connection._sign_in(address, name, seconds)
        except (OSError, TimeoutError, ConnectionLost, hiredis.ReplyError) as error:
            connection._on_lost = None
            connection.close()
            reason = str(error) or "no answer in time"
            raise StoreUnavailable(f"the store at {address} cannot be used: {reason}") from error
        except BaseException:
            connection._on_lost = None
            connection.close()
            raise
        return connection

    async def _sign_in(self, address: Address, name: str, seconds: float) -> None:
        if address.password is not None:
            who = [address.username] if address.username else []
            await self.call("AUTH", *who, address.password, seconds=seconds)
        if address.database:
            await self.call("SELECT", address.database, seconds=seconds)
        await self.call("PING", seconds=seconds)
        await self.call("CLIENT", "SETNAME", name, seconds=seconds)

    def send(self, commands: bytes, on_reply: Callable[[Reply], None], seconds: float, n: int = 1) -> None:
        """Send packed commands in one write; call ``on_reply`` for each with its reply, or with ConnectionLost.

        A reply that takes longer than ``seconds`` (give or take a quarter of a second) closes the connection.
        """
        if self._transport is None:
            for _ in range(n):
                on_reply(ConnectionLost("the connection is closed"))
            return
        now = self._loop.time()
        self._ping_at = now + PING_SECONDS
        for _ in range(n):
            self._waiting.append((on_reply, now + seconds))
        self._transport.write(commands)

    def call(self, *words: str | bytes | int, seconds: float) -> asyncio.Future[Reply]:
        """Send a command; the future returns its reply, or raises ConnectionLost or hiredis.ReplyError."""
        future: asyncio.Future[Reply] = self._loop.create_future()

        def answer(reply: Reply) -> None:
            if future.done():
                return
            if isinstance(reply, (ConnectionLost, hiredis.ReplyError)):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.send(pack_command(words), answer, seconds)
        return future

    def call_all(self, *commands: tuple[str | bytes | int, ...], seconds: float) -> asyncio.Future[list[Reply]]:
        """Send commands in one write; the future returns all replies, or raises the first error among them."""
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        replies: list[Reply] = []

        def answer(reply: Reply) -> None:
            replies.append(reply)
            if future.done() or len(replies) < len(commands):
                return
            for one in replies:
                if isinstance(one, (ConnectionLost, hiredis.ReplyError)):
                    future.set_exception(one)
                    return
            future.set_result(replies)

        if self._transport is None:
            future.set_exception(ConnectionLost("the connection is closed"))
            return future
        self.send(b"".join([pack_command(words) for words in commands]), answer, seconds, len(commands))
        return future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._end()

    # callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._ticker = self._loop.call_later(TICK, self._tick)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            reply = self._reader.gets()
            while reply is not False:
                if not self._waiting:
                    raise hiredis.ProtocolError("received a reply without a command")
                self._waiting.popleft()[0](reply)
                reply = self._reader.gets()
        except hiredis.ProtocolError as error:
            self._cause = error
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cause = self._cause or exc
        self._end()

    def _tick(self) -> None:
        """Close the connection when its oldest command has timed out; ping the store when the connection is idle."""
        now = self._loop.time()
        if self._waiting and self._waiting[0][1] < now:
            self._cause = TimeoutError("the store did not answer in time")
            self.close()
            return
        if self._ping_at < now:
            self.send(pack_command(("PING",)), lambda _: None, PING_SECONDS)
        self._ticker = self._loop.call_later(TICK, self._tick)

    def _end(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        was_open, self._transport = self._transport is not None, None
        if was_open and self._on_lost is not None:
            self._on_lost()  # first: the callbacks below must not find this connection again
        lost = ConnectionLost(str(self._cause or "") or "the store closed the connection")
        while self._waiting:
            self._waiting.popleft()[0](lost)
