"""The library by which the store is asked, without what takes long and can be seen neither by store nor service.

It is not what is looked into. A command is written at once, without a task of its own; a connection that is free is
taken and given back without a queue when nobody waits for one; nothing is measured.
"""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hiredis
import redis.asyncio.client
import redis.asyncio.connection
import redis.utils
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool, ConnectionPool

_init, _end = AbstractConnection.__init__, AbstractConnection.__del__
_queue_for, _release = BlockingConnectionPool.get_connection, BlockingConnectionPool.release
_pack = AbstractConnection.pack_command


def _open(connection: Any, *args: Any, **options: Any) -> None:
    _init(connection, *args, **options)
    connection.driver_info = None  # it need not say what it is
    connection.simulated = True


def _end_unless_simulated(connection: Any) -> None:
    """A process that was killed has not closed its connections; nobody is to hear of that afterwards."""
    if not hasattr(connection, "simulated"):
        _end(connection)


AbstractConnection.__del__ = _end_unless_simulated  # type: ignore[method-assign]


async def _take(pool: Any, *args: Any, **options: Any) -> Any:
    """A connection: one that is free and in order at once, any other by the library's way."""
    if pool._condition.locked() or not pool._available_connections:
        return await _queue_for(pool)
    connection = ConnectionPool.get_available_connection(pool)
    if connection.is_connected and not connection._reader.at_eof() and not connection._reader._buffer:
        return connection
    try:
        await pool.ensure_connection(connection)
    except BaseException:
        await pool.release(connection)
        raise
    return connection


async def _give_back(pool: Any, connection: Any) -> None:
    if pool._condition.locked() or pool._condition._waiters or connection.should_reconnect():
        await _release(pool, connection)
        return
    pool._in_use_connections.remove(connection)
    pool._available_connections.append(connection)


def _packed(connection: Any, *args: Any) -> list[bytes]:
    first = args[0].encode() if isinstance(args[0], str) else args[0]
    try:
        return [hiredis.pack_command((*first.split(), *args[1:]))]
    except TypeError:
        return _pack(connection, *args)


async def _at_once(writing: Any, seconds: float) -> Any:
    """What never waits needs no task that could be given up."""
    return await writing


async def _unmeasured(*args: Any, **options: Any) -> None:
    return None


_MEASURES = {
    redis.asyncio.client: ("record_operation_duration", "record_error_count"),
    redis.asyncio.connection: (
        "record_connection_closed", "record_connection_count", "record_connection_create_time",
        "record_connection_wait_time", "record_error_count",
    ),
}  # fmt: skip


def lean() -> Iterator[tuple[Any, str, Any]]:
    """What is put where so that stores are asked in this way."""
    for module, names in _MEASURES.items():
        for name in names:
            yield module, name, _unmeasured
    yield redis.asyncio.connection, "asyncio", SimpleNamespace(**{**vars(asyncio), "wait_for": _at_once})
    yield redis.utils, "get_lib_version", lambda: "0"  # it reads files
    yield AbstractConnection, "__init__", _open
    yield AbstractConnection, "pack_command", _packed
    yield BlockingConnectionPool, "get_connection", _take
    yield BlockingConnectionPool, "release", _give_back
