"""The log in the store: connections, reading on, offsets and trims, and what a store must be."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import hiredis
import pytest

from abound.log import stream
from abound.log.stream import MAX_ENTRIES, LogGone
from abound.store.client import Store, StoreParams
from abound.store.raw_connection import Address, ConnectionLost, StoreConnection, pack_command
from abound.store.server_info import ServerInfo, build_server_info
from abound_core.errors import CannotStart, StoreUnavailable
from abound_core.types import START, Offset
from benchmarks.serving import free_port
from tests.support.fixtures import StartServer
from tests.support.proxy import Proxy
from tests.support.valkey import QUICK, Server

KEY = b"abound:{m:1-0}:log"


async def fill(store: Store, n: int, size: int = 10) -> list[Offset]:
    return [
        Offset.of_entry(await store.client.xadd(KEY, {"e": bytes([i % 256]) * size, "c": b"%08x" % i}))
        for i in range(n)
    ]


async def test_a_lost_link_ends_what_waits_on_it(store: Store) -> None:
    lost = []
    connection = await store.open_connection("test", lambda: lost.append(True))
    waiting = connection.call("BLPOP", "nothing", "0", seconds=60)
    await asyncio.sleep(0.05)
    await store.client.client_kill_filter(skipme=True)
    with pytest.raises(ConnectionLost):
        await waiting
    assert lost == [True]
    with pytest.raises(ConnectionLost):
        await connection.call("PING", seconds=10)


async def test_a_store_that_does_not_answer_is_lost_after_a_while(own_server: Server) -> None:
    store = Store(own_server.url, QUICK)
    connection = await store.open_connection("test")
    own_server.pause()
    with pytest.raises(ConnectionLost, match="in time"):
        await connection.call("PING", seconds=0.2)
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await store.open_connection("test")
    await store.close()


async def test_nothing_is_appended_twice_when_a_reply_is_lost(server: Server, tmp_path: Path) -> None:
    """The client's own defaults would send the command again: retries must be off, in both ways to the store."""
    proxy = Proxy(tmp_path / "p", server.url.removeprefix("unix://"))
    await proxy.start()
    store = Store(proxy.url, server.store_params)
    proxy.lose_replies_to = b"XADD"
    with pytest.raises(Exception, match="onnection"):
        await store.client.xadd("by client", {"e": b"x"})
    connection = await store.open_connection("test")
    proxy.lose_replies_to = b"XADD"
    with pytest.raises(ConnectionLost):
        await connection.call("XADD", "by connection", "*", "e", "x", seconds=10)
    await asyncio.sleep(0.2)
    await store.close()
    await proxy.stop()
    with server.client() as client:
        assert (client.xlen("by client"), client.xlen("by connection")) == (1, 1)


async def test_reading_gives_every_entry_once_and_in_order(store: Store) -> None:
    offsets = await fill(store, 500, size=300)
    connection = await store.open_connection("test")

    async def read(after: Offset, until: Offset | None = None) -> list[Offset]:
        found = []
        async for elements in stream.read(connection, KEY, after, until, read_bytes=5_000, seconds=10):
            assert sum(stream.entry_size(fields) for _, fields in elements) < 20_000
            found += [Offset.of_entry(entry_id) for entry_id, _ in elements]
        return found

    assert await read(START) == offsets
    assert await read(offsets[99]) == offsets[100:]
    assert await read(offsets[99]._replace(position=7), offsets[200]) == offsets[100:201]
    assert await read(offsets[-1]) == []
    connection.close()


async def test_no_reply_is_much_larger_than_what_is_read_at_a_time(store: Store) -> None:
    offsets = await fill(store, 100, size=10) + await fill(store, 120, size=100_000)
    connection = await store.open_connection("test")
    counts, found = [], []
    async for elements in stream.read(connection, KEY, START, read_bytes=200_000, seconds=10):
        counts.append(len(elements))
        found += [Offset.of_entry(entry_id) for entry_id, _ in elements]
    connection.close()
    assert found == offsets
    assert counts[:3] == [1, 4, 16]
    assert max(counts) <= MAX_ENTRIES
    assert counts[-5:] == [1] * 5


async def test_a_log_is_known_again_by_its_last_entry(store: Store) -> None:
    assert await stream.holds(store, KEY, START, b"")
    offsets = await fill(store, 10)
    assert await stream.holds(store, KEY, START, b"")
    assert await stream.holds(store, KEY, offsets[4], b"%08x" % 4)
    assert not await stream.holds(store, KEY, offsets[4], b"%08x" % 5)
    assert not await stream.holds(store, KEY, offsets[9]._replace(milliseconds=2**60), b"%08x" % 9)
    await store.client.xtrim(KEY, minid=offsets[5].entry, approximate=False)
    assert not await stream.holds(store, KEY, START, b"")
    assert not await stream.holds(store, KEY, offsets[4], b"%08x" % 4)
    assert await stream.holds(store, KEY, offsets[5], b"%08x" % 5)


async def test_a_deleted_log_is_not_taken_for_one_that_lost_its_end(store: Store) -> None:
    last = (await fill(store, 3))[-1]
    connection = await store.open_connection("test")
    reading = stream.read(connection, KEY, last, read_bytes=1000, seconds=10, checksum=b"another")
    with pytest.raises(StoreUnavailable, match="lost its last entries"):
        await anext(reading)
    await store.client.delete(KEY)
    reading = stream.read(connection, KEY, last, read_bytes=1000, seconds=10, checksum=b"another")
    with pytest.raises(LogGone, match="the model was deleted"):
        await anext(reading)
    connection.close()


def test_an_address_never_shows_its_password() -> None:
    address = Address.from_url("rediss://user:secret@store.example:7000/3")
    assert (address.username, address.password, address.database) == ("user", "secret", 3)
    assert address.tls is not None
    assert str(address) == "store.example:7000"
    assert "secret" not in repr(address)
    assert str(Address.from_url("unix:///run/store.sock?db=2")) == "/run/store.sock"
    assert Address.from_url("redis://store").port == 6379


@pytest.mark.parametrize("url", ["http://store", "unix://", "redis://store:port"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(CannotStart, match="ABOUND_REDIS_URL"):
        Store(url)


async def test_a_store_with_a_password_on_tcp(start_server: StartServer) -> None:
    port = free_port()
    server = start_server(port=str(port), requirepass="secret")
    store = Store(f"redis://:secret@127.0.0.1:{port}/2", server.store_params)
    assert (await store.check()).appendfsync == "always"
    connection = await store.open_connection("test")
    await connection.call("SET", "a", "b", seconds=10)
    assert await store.client.get("a") == b"b"
    assert await connection.call("CLIENT", "GETNAME", seconds=10) == b"abound-test"
    connection.close()
    await store.close()
    store = Store(f"redis://:wrong@127.0.0.1:{port}", StoreParams(start_seconds=0.3))
    with pytest.raises(CannotStart, match="no store answers"):
        await store.check()
    with pytest.raises(StoreUnavailable, match="WRONGPASS") as caught:
        await store.open_connection("test")
    assert "secret" not in str(caught.value)
    await store.close()


@pytest.mark.parametrize(
    ("settings", "mend"),
    [
        ({"appendonly": "no"}, "CONFIG SET appendonly yes"),
        ({"maxmemory-policy": "allkeys-lru"}, "CONFIG SET maxmemory-policy noeviction"),
    ],
)
async def test_a_store_that_could_lose_the_log_is_refused(start_server, settings, mend):
    server = start_server(**settings)
    store = Store(server.url, server.store_params)
    with pytest.raises(CannotStart, match=mend):
        await store.check()
    await store.close()


async def test_a_store_that_does_not_tell_its_configuration_is_taken(start_server: StartServer) -> None:
    own = start_server(**{"rename-command": "CONFIG hidden", "appendfsync": "everysec"})
    store = Store(own.url, own.store_params)
    facts = await store.check()
    assert facts.appendfsync is None
    assert not facts.reachable("fsync")
    assert "does not report" in str(facts.warning)
    await store.close()


async def test_what_is_not_there_or_no_store_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for url, said in (
            (f"unix://{tmp_path}/none", "no store answers at .*/none"),
            (f"redis://127.0.0.1:{port}", r"no store answers at 127.0.0.1:\d+ .*Protocol error"),
        ):
            store = Store(url, StoreParams(start_seconds=0.3))
            with pytest.raises(CannotStart, match=said):
                await store.check()
            await store.close()


def test_levels_that_a_store_can_reach() -> None:
    always = ServerInfo((7, 0), True, "always", "noeviction", 0)
    everysec = always._replace(appendfsync="everysec")
    assert always.reachable("fsync")
    assert not everysec.reachable("fsync")
    assert not everysec._replace(version=(7, 2)).reachable("fsync")
    assert everysec._replace(waitaof=True).reachable("fsync")
    assert always._replace(pauses=True, waitaof=True).reachable("fsync")  # WAITAOF waits until it has synced again
    assert not always.reachable("replica")
    assert always._replace(replicas=1).reachable("replica")
    assert "CONFIG SET appendfsync always" in str(everysec.lacks("fsync"))
    assert "no connected" in str(always.lacks("replica"))
    assert always.lacks("fsync") is None


@pytest.mark.parametrize(
    ("said", "holds"),
    [
        ({"redis_version": "7.2.4"}, False),
        ({"redis_version": "7.4.1"}, False),
        ({"redis_version": "8.0.0"}, True),
        ({"redis_version": "10.1"}, True),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, False),
        ({"redis_version": "8.0.0", "server_name": "valkey"}, False),
    ],
)
def test_whose_word_is_taken_that_something_is_on_disk(said: dict[str, str], holds: bool) -> None:
    assert build_server_info(said, {}, {}, {}, {}).waitaof is holds


async def test_commands_in_one_piece(store: Store) -> None:
    connection = await store.open_connection("test")
    for i in range(1, 4):
        answers = await connection.call_all(("INCR", "n"), ("GET", "n"), ("PING",), seconds=5)
        assert answers == [i, str(i).encode(), b"PONG"]
        assert await connection.call("GET", "n", seconds=5) == str(i).encode()
    for pair in ((("INCR",), ("GET", "n")), (("GET", "n"), ("INCR",))):
        with pytest.raises(hiredis.ReplyError):
            await connection.call_all(*pair, seconds=5)
        assert await connection.call("GET", "n", seconds=5) == b"3"
    connection.close()
    with pytest.raises(ConnectionLost):
        await connection.call_all(("INCR", "n"), ("GET", "n"), seconds=5)
    assert await store.client.get("n") == b"3"


async def test_nothing_of_another_comes_between_commands_in_one_piece():
    """They are one write, so the store has read them all before it begins with the first."""
    connection, transport, commands = StoreConnection(), Mock(asyncio.Transport), (("INCR", "n"), ("GET", "n"))
    connection.connection_made(transport)
    asked = connection.call_all(*commands, seconds=5)
    transport.write.assert_called_once_with(b"".join(pack_command(one) for one in commands))
    connection.close()
    with pytest.raises(ConnectionLost):
        await asked
