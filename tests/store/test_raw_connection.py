"""A connection to the store: commands in one piece that are sent while others are under way."""

from __future__ import annotations

import asyncio

import hiredis
import pytest

from abound.store import raw_connection
from abound.store.client import Store
from abound.store.raw_connection import ConnectionLost
from tests.support.valkey import PATIENT, Server


async def test_commands_in_one_piece(store: Store) -> None:
    connection = await store.open_connection("test")
    for i in range(1, 4):
        assert await connection.call_all(("INCR", "n"), ("GET", "n"), ("PING",), seconds=5) == [
            i,
            str(i).encode(),
            b"PONG",
        ]
        assert await connection.call("GET", "n", seconds=5) == str(i).encode()
    for pair in ((("INCR",), ("GET", "n")), (("GET", "n"), ("INCR",))):
        with pytest.raises(hiredis.ReplyError):
            await connection.call_all(*pair, seconds=5)
        assert await connection.call("GET", "n", seconds=5) == b"3"
    connection.close()
    with pytest.raises(ConnectionLost):
        await connection.call_all(("INCR", "n"), ("GET", "n"), seconds=5)
    assert await store.client.get("n") == b"3"


async def test_commands_and_a_link_that_is_lost(own_server: Server) -> None:
    store = Store(own_server.url, own_server.store_params)
    connection = await store.open_connection("test")
    own_server.pause()
    both = connection.call_all(("INCR", "n"), ("GET", "n"), seconds=5)
    given_up = connection.call_all(("INCR", "n"), ("GET", "n"), seconds=5)
    given_up.cancel()
    own_server.kill()
    with pytest.raises(ConnectionLost):
        await both
    await store.close()


async def test_an_idle_connection_stays_open_in_a_store_that_closes_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_connection, "PING_SECONDS", 0.3)
    server = Server(timeout="1")
    store = Store(server.url, PATIENT)
    connection = await store.open_connection("test")
    await asyncio.sleep(3.5)
    assert await connection.call("PING", seconds=5) == b"PONG"
    connection.close()
    await store.close()
    server.close()
