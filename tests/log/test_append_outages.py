"""What a lost connection, or a store that refuses, leaves of an append."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
import redis

from abound.replica.replica import Replica
from abound.store.client import Store, store_errors, sync_client
from abound_core.config import ModelConfig
from abound_core.errors import OutcomeUnknown, Overloaded, StoreRefused, StoreUnavailable
from tests.log.conftest import connected, learn
from tests.support.fixtures import StartReplica
from tests.support.proxy import Proxy
from tests.support.replicas import until
from tests.support.streams import draft
from tests.support.valkey import Server


async def test_a_store_that_hangs_does_not_hold_requests_for_ever(
    own_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(own_server)
    own_server.pause()
    first = asyncio.create_task(learn(replica, draft('{"a": 1}', "x"), timeout=0.3))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(learn(replica, draft('{"a": 1}', "y"), timeout=0.3))
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    own_server.resume()
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert isinstance(outcomes[1], Overloaded)
    await connected(replica)
    assert (await learn(replica, draft('{"a": 1}', "z"))).applied
    assert "y" not in [replica.model("default").live.label(i) for i in range(2)]


def warning(replica: Replica) -> str:
    """What /readyz says of the store."""
    durability = replica.status().durability
    return durability.warning or "" if durability is not None else ""


async def test_a_full_store_takes_nothing_and_readyz_says_so(start_replica: StartReplica) -> None:
    server = Server()
    try:
        replica = await start_replica(server)
        with server.client() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(
                StoreUnavailable, match=r"nothing was appended: the store is full .*CONFIG SET maxmemory"
            ):
                await learn(replica, draft('{"a": 1}', "x"))
            await until(lambda: "nothing is learned: the store is full" in warning(replica))
            client.config_set("maxmemory", 0)
            await until(lambda: "full" not in warning(replica))
        assert (await learn(replica, draft('{"a": 1}', "x"))).applied
        await replica.stop()
    finally:
        server.close()


async def test_a_lost_reply_is_made_up_for_only_where_the_log_is_kept(own_server: Server, tmp_path: Path) -> None:
    """The follower has met the event; what it is in keeps no file any more."""
    proxy = Proxy(tmp_path / "proxy", own_server.url.removeprefix("unix://"))
    await proxy.start()
    replica = Replica(Store(proxy.url, own_server.store_params))
    await replica.start()
    with own_server.client() as client:
        client.config_set("appendonly", "no")
    proxy.lose_replies_to = b"XADD"
    with pytest.raises(OutcomeUnknown):
        await learn(replica, draft('{"a": 1}', "x"), timeout=1.0)
    await until(lambda: replica.model("default").live.n_learned == 1)
    await replica.stop()
    await proxy.stop()


@pytest.mark.parametrize("what", ["learn", "create a model"])
async def test_a_store_that_has_become_a_copy_is_left_for_the_primary(
    own_server: Server, start_replica: StartReplica, what: str
) -> None:
    replica = await start_replica(own_server)
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        learning = what == "learn"
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await (learn(replica, draft('{"a": 1}', "x")) if learning else replica.models.create("news", ModelConfig()))
        before = {one["id"] for one in client.client_list() if one["name"] == "abound-append"}
        client.execute_command("REPLICAOF", "NO", "ONE")
        await connected(replica)
        assert (await learn(replica, draft('{"a": 1}', "x"))).applied
        after = {one["id"] for one in client.client_list() if one["name"] == "abound-append"}
    assert after
    assert not after & before


async def test_a_pooled_connection_to_a_store_that_has_become_a_copy_is_closed(own_server: Server) -> None:
    store = Store(own_server.url, own_server.store_params)
    before = await store.client.client_id()
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreRefused, match="read only replica"), store_errors():
            await store.client.set("x", "y")
        assert client.info("commandstats")["cmdstat_set"]["rejected_calls"] == 1  # it is not repeated
    assert await store.client.client_id() != before
    with closing(sync_client(own_server.url, 10.0)) as waiting:
        before = waiting.client_id()
        with pytest.raises(redis.exceptions.ReadOnlyError):
            waiting.set("x", "y")
        assert waiting.client_id() != before
    await store.close()
