"""Client of the store, a Valkey or Redis server: where it is, what it must provide and what it can promise.

A store that could lose the log silently is refused: one without an append-only file, or with an eviction policy. At
the start the service then does not start; later the replica refuses to learn. Commands that change data are never
retried: retries are off in the client and do not exist in :class:`abound.store.raw_connection.StoreConnection`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hiredis
import redis.asyncio
import redis.exceptions
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from abound.store.raw_connection import PING_SECONDS, Address, ConnectionLost, StoreConnection
from abound.store.server_info import FSYNC_PATTERN, ServerInfo, build_server_info, parse_config, refusal_of
from abound_core.errors import CannotStart, StoreRefused, StoreUnavailable

log = structlog.get_logger(__name__)

OLDEST_VERSION = (6, 2)
POOL_CONNECTIONS = 32  # for requests, without appending and following; a command waits while all are in use
SECTIONS = ("server", "persistence", "memory", "replication")
FIRST_FILE = (
    "it writes its append-only file for the first time, and until that has ended a crash would lose the log. "
    "Wait for it (INFO persistence: aof_rewrite_in_progress, aof_last_bgrewrite_status)"
)

CLOSED_BY: list[type[Exception]] = [redis.exceptions.ReadOnlyError]
"""Errors that close a pooled connection, as lost ones do. After a failover a connection may still end at the old
primary; a new one to the same address reaches the new primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParams:
    """Timeouts of the store.

    Attributes
    ----------
    connect_seconds : float
        Longest time to connect and sign in, each time.
    reply_seconds : float
        Longest time to answer a command; after that the connection counts as lost.
    start_seconds : float
        Longest wait for the store when the service starts. A store that is loading its data may take longer.
    """

    connect_seconds: float = 3.0
    reply_seconds: float = 5.0
    start_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "reply_seconds", "start_seconds"):
            if not 0 < getattr(self, name) <= 3600:
                raise ValueError(f"{name} must be more than 0 and at most 3600 seconds")


def sync_client(url: str, seconds: float) -> redis.Redis:
    """Return a blocking client for threads. It never retries a command."""
    return redis.Redis.from_url(
        url,
        protocol=2,
        retry=SyncRetry(NoBackoff(), 0),
        retry_on_error=CLOSED_BY,
        socket_connect_timeout=seconds,
        socket_timeout=seconds,
    )


class Store:
    """Client of one store. Connections are opened on first use."""

    def __init__(self, url: str, params: StoreParams | None = None) -> None:
        """Accept a ``redis://``, ``rediss://`` or ``unix://`` URL; raise CannotStart for any other."""
        self.params = params or StoreParams()
        try:
            self.address = Address.from_url(url)
        except (ValueError, OSError) as error:
            raise CannotStart(f"ABOUND_REDIS_URL cannot be used: {error}") from None
        # A lost reply must never cause a retry of the command, which the library does by default.
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=CLOSED_BY,
            socket_timeout=self.params.reply_seconds,
            socket_connect_timeout=self.params.connect_seconds,
            health_check_interval=PING_SECONDS,
            max_connections=POOL_CONNECTIONS,
            timeout=self.params.reply_seconds,
            protocol=2,
        )
        # Any: the return types of its commands depend on options, which its annotations do not express.
        self.client: Any = redis.asyncio.Redis.from_pool(pool)

    async def open_connection(self, purpose: str, on_lost: Any = None) -> StoreConnection:
        return await StoreConnection.open(self.address, f"abound-{purpose}", self.params.connect_seconds, on_lost)

    async def now(self) -> float:
        """Return the store's clock, in seconds since 1970."""
        with store_errors():
            seconds, microseconds = await self.client.time()
        return float(seconds + microseconds / 1e6)

    async def server_info(self) -> ServerInfo:
        with store_errors():
            async with self.client.pipeline(transaction=False) as pipe:
                for section in SECTIONS:
                    pipe.info(section)
                pipe.config_get(FSYNC_PATTERN)
                answers = await pipe.execute(raise_on_error=False)
        for answer in answers[:4]:
            if isinstance(answer, Exception):
                with store_errors():
                    raise answer
        return build_server_info(*answers)

    async def check(self) -> ServerInfo:
        """Wait for the store, a bounded time; raise CannotStart for one that would lose the log."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.params.start_seconds
        told = 0.0
        while True:
            try:
                info = await self.server_info()
                if info.aof_complete or loop.time() > deadline:
                    _refuse_unsafe(info, self.address)
                    return info
                reason = FIRST_FILE
            except StoreUnavailable as error:
                if loop.time() > deadline and not isinstance(error.__cause__, redis.exceptions.BusyLoadingError):
                    raise CannotStart(
                        f"no store answers at {self.address} ({error}). Start it, or set ABOUND_REDIS_URL"
                    ) from error
                reason = str(error)
            if loop.time() - told > 5:
                log.warning("waiting for the store", store=str(self.address), reason=reason)
                told = loop.time()
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Close all connections but those from ``open_connection``: they belong to their callers."""
        await self.client.aclose()


async def fetch_server_info(connection: StoreConnection, seconds: float) -> ServerInfo:
    """Query the server info over a given connection, since another connection may lead to another server."""
    asked = [connection.call("INFO", section, seconds=seconds) for section in SECTIONS]
    asked.append(connection.call("CONFIG", "GET", FSYNC_PATTERN, seconds=seconds))
    *sections, config = await asyncio.gather(*asked, return_exceptions=True)
    said: list[dict[str, str]] = []
    with store_errors():
        for answer in sections:
            if isinstance(answer, BaseException):
                raise answer
            lines = [line.partition(":") for line in answer.decode().splitlines()]
            said.append({name: value for name, colon, value in lines if colon})
    server, persistence, memory, replication = said
    return build_server_info(server, persistence, memory, replication, parse_config(config))


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Translate exceptions of the client into StoreUnavailable, and a refused command into StoreRefused."""
    try:
        yield
    except (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        raise StoreUnavailable(f"the store rejected the credentials of this service: {error}") from error
    except redis.exceptions.BusyLoadingError as error:
        raise StoreUnavailable("the store is loading its data") from error
    except (
        redis.exceptions.ConnectionError,
        redis.exceptions.InvalidResponse,  # something else than a store answers
        redis.exceptions.TimeoutError,
        OSError,
        ConnectionLost,
    ) as error:
        raise StoreUnavailable(f"the store is away: {error or 'no answer in time'}") from error
    except (redis.exceptions.ResponseError, hiredis.ReplyError) as error:
        raise StoreRefused(refusal_of(error)) from error


def _refuse_unsafe(info: ServerInfo, address: Address) -> None:
    if info.version < OLDEST_VERSION:
        version = ".".join(map(str, info.version))
        raise CannotStart(f"the store at {address} is Redis {version}; at least 6.2 (or any Valkey) is needed")
    if info.danger is not None:
        raise CannotStart(f"the store at {address} {info.danger}")
    if not info.aof_complete:
        raise CannotStart(f"the store at {address} cannot be used yet: {FIRST_FILE}")
    if info.eviction == "unknown":
        log.warning("the store does not report its eviction policy; it must be noeviction", store=str(address))
    if info.appendfsync is None:
        log.warning("the store does not report its appendfsync policy", store=str(address))
    elif info.appendfsync != "always":
        log.warning(
            "the last events may be lost when the store's machine fails; set appendfsync always to keep them",
            appendfsync=info.appendfsync,
        )
    elif info.pauses:
        log.warning(
            "events learned while the store saves or rewrites its file may be lost when its machine fails; "
            "set no-appendfsync-on-rewrite no to keep them",
            appendfsync=info.appendfsync,
        )
