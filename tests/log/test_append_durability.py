"""Which durability is claimed of an entry, and when none is."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from abound.log.stream import LogParams
from abound.replica.replica import ReplicaParams
from abound_core.config import ModelConfig
from abound_core.errors import StoreUnavailable
from abound_core.instances.record import pack_labels
from abound_core.limits import Limits
from benchmarks.serving import free_port
from tests.log.conftest import learn, length
from tests.support.fixtures import StartReplica
from tests.support.replicas import until
from tests.support.streams import draft, drafts
from tests.support.valkey import Server

FSYNC = ReplicaParams(durability="fsync")


async def test_fsync_is_not_claimed_of_a_store_whose_waitaof_says_too_much(start_replica: StartReplica) -> None:
    """Valkey answers WAITAOF before it has synced, unless it syncs every command."""
    server = Server()
    try:
        replica = await start_replica(server, FSYNC)
        for policy in ("everysec", "always"):
            with server.client() as client:
                client.config_set("appendfsync", policy)
            await until(
                lambda policy=policy: (info := replica.server_info()) is not None and info.appendfsync == policy
            )
            if policy == "always":
                assert (await learn(replica, draft('{"a": 1}', "x"))).durability == "fsync"
                continue
            with pytest.raises(StoreUnavailable, match=r"nothing was appended.*CONFIG SET appendfsync always"):
                await learn(replica, draft('{"a": 1}', "x"))
        assert await length(replica) == 1
        await replica.stop()
    finally:
        server.close()


async def test_fsync_by_waiting(start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abound.store.server_info._waitaof_holds", lambda server: True)
    server = Server(appendfsync="everysec")
    try:
        params = ReplicaParams(durability="fsync", log=LogParams(wait_store_seconds=8.0))
        replica = await start_replica(server, params)
        learned = await asyncio.gather(*(learn(replica, one) for one in drafts(20)))
        assert {one.durability for one in learned} == {"fsync"}
        assert await length(replica) < 5  # concurrent requests share an entry, and its fsync
        assert (await learn(replica, draft('{"a": 1}', "x"))).durability == "fsync"
        await replica.stop()
    finally:
        server.close()


async def test_fsync_is_not_claimed_after_the_policy_was_changed(
    own_server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service asks each second what the store is, and behind each append whether that is so."""
    monkeypatch.setattr("abound.store.reconnecting_connection.INFO_SECONDS", 60.0)
    replica = await start_replica(own_server, FSYNC)
    for policy, level in (("always", "fsync"), ("everysec", "log"), ("always", "fsync")):
        with own_server.client() as client:
            client.config_set("appendfsync", policy)
        assert (await learn(replica, draft('{"a": 1}', "x"))).durability == level


async def test_a_level_is_claimed_only_when_it_is_reached(start_replica: StartReplica) -> None:
    port = free_port()
    primary = Server(port=str(port), **{"repl-diskless-sync-delay": "0"})
    copy = Server(replicaof=f"127.0.0.1 {port}")
    try:
        with primary.client() as client:
            while client.info("replication")["slave0"]["state"] != "online":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            client.set("written", "and copied")
            while not client.wait(1, 100):
                pass
        params = ReplicaParams(durability="replica", log=LogParams(wait_store_seconds=8.0))
        replica = await start_replica(primary, params)
        appender = replica.model("default").appender
        assert appender is not None
        one = draft('{"a": 1}', "x")
        learned = await learn(replica, one)
        assert (learned.durability, learned.applied) == ("replica", True)
        copy.pause()
        appender.params = LogParams(wait_store_seconds=0.3)
        learned = await learn(replica, one)
        assert (learned.durability, learned.applied) == ("fsync", True)
        copy.kill()
        await until(lambda: (facts := replica.server_info()) is not None and not facts.replicas)
        with pytest.raises(StoreUnavailable, match=r"nothing was appended: ABOUND_DURABILITY is replica.*no connected"):
            await learn(replica, one)
        await replica.stop()
    finally:
        copy.close()
        primary.close()


@pytest.mark.parametrize("binary", [None, "redis-server"])
@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("appendonly", "no", "yes"), ("maxmemory-policy", "allkeys-lru", "noeviction")]
)
async def test_a_store_that_could_lose_the_log_from_now_on_is_told_nothing(
    start_replica: StartReplica, binary: str | None, name: str, wrong: str, right: str
) -> None:
    if binary is not None and shutil.which(binary) is None:
        pytest.skip(f"there is no {binary} here")
    server = Server(binary)
    try:
        replica = await start_replica(server)
        one = draft('{"a": 1}', "x")
        assert (await learn(replica, one)).applied

        async def warned(expected: bool) -> None:
            async with asyncio.timeout(60):
                while (durability := replica.status().durability) is None or expected != bool(durability.warning):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        await warned(False)
        with server.client() as client:
            client.config_set(name, wrong)
            await warned(True)
            for refused in (
                learn(replica, one),
                replica.configure("default", {"d_max": 3}),
                replica.models.create("other", ModelConfig()),
            ):
                with pytest.raises(StoreUnavailable, match=f"nothing was appended.*CONFIG SET {name} {right}"):
                    await refused
            assert await length(replica) == 1
            status = replica.status()
            assert status.ready
            assert status.durability is not None
            assert f"CONFIG SET {name} {right}" in str(status.durability.warning)
            live = replica.model("default").live
            assert len(live.rank(one.records[: -len(pack_labels(["x"], Limits()))], 5).class_ids) == 1
            client.config_set(name, right)
        await warned(False)
        assert (await learn(replica, one)).ranks == [1]
        await replica.stop()
    finally:
        server.close()


async def test_what_everysec_may_lose_is_said(start_replica: StartReplica) -> None:
    server = Server(appendfsync="everysec")
    try:
        replica = await start_replica(server)
        durability = replica.status().durability
        assert durability is not None
        assert durability[:2] == ("everysec", ("log",))
        assert "up to 2 s" in str(durability.warning)
        assert "CONFIG SET appendfsync always" in str(durability.warning)
        await replica.stop()
    finally:
        server.close()
