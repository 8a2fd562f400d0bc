"""A replica while its store is away, has lost its tail, or is another one."""

from __future__ import annotations

import asyncio

import pytest

from abound.log.events import APPLY_VERSION, Entry, LearnEvent, encode
from abound_core.config import ModelConfig
from abound_core.errors import (
    NotReady,
    StoreUnavailable,
)
from abound_core.model.entry_application import Unit
from abound_core.types import Offset
from benchmarks.serving import free_port
from tests.support.fixtures import StartReplica
from tests.support.replicas import digests, teach, until
from tests.support.streams import drafts
from tests.support.valkey import Server


async def test_a_store_that_is_away_leaves_answers_and_comes_back(
    own_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(own_server)
    await teach(replica)
    before = await replica.model("default").compute_digest()
    own_server.kill()
    await until(lambda: replica.status().log == "cut off")
    with pytest.raises(StoreUnavailable):
        await teach(replica)
    assert replica.status().ready
    assert (replica.status().since or 0) >= 0
    assert replica.model("default").live.stats()["learned"] == 50
    with pytest.raises(NotReady, match="cut off"):
        await replica.wait_for("default", Offset(2**63, 0, 0), 1)
    own_server.start()
    await until(lambda: replica.status().log == "connected")
    assert await replica.model("default").compute_digest() == before
    await teach(replica, seed=2)
    assert len(await digests(replica, await start_replica(own_server))) == 1


async def test_nothing_is_read_from_a_server_that_was_made_a_copy(start_replica: StartReplica) -> None:
    """A failover by hand: the connection outlives it, and the log behind it is another one from some moment on."""
    ports = free_port(), free_port()
    at_once = {"repl-diskless-sync-delay": "0"}
    primary = Server(port=str(ports[0]), **at_once)
    copy = Server(port=str(ports[1]), replicaof=f"127.0.0.1 {ports[0]}", **at_once)
    try:
        with primary.client() as old, copy.client() as new:
            replica = await start_replica(primary)
            model = replica.model("default")
            log = model.keys.log
            await teach(replica, 5)
            await until(lambda: new.xlen(log) == old.xlen(log))
            new.execute_command("REPLICAOF", "NO", "ONE")
            await teach(replica, 3, 2)  # the new primary never gets it
            async with model.paused():  # the follower is busy with an entry, and not with waiting for one
                old.xadd(log, entry(7))
                await until(lambda: model.has_waiting_entry)
                old.execute_command("REPLICAOF", "127.0.0.1", str(ports[1]))
                for seed in range(6):
                    new.xadd(log, entry(seed))
                await until(lambda: old.xlen(log) == new.xlen(log))
            await until(lambda: replica.status().log == "cut off")
            new.xadd(log, entry(8))
            await asyncio.sleep(1.5)
            assert (replica.status().ready, model.live.n_learned) == (True, 9)
            old.execute_command("REPLICAOF", "NO", "ONE")
            await until(lambda: replica.status().log == "connected" and model.live.n_learned == 12)
            assert len(await digests(replica, await start_replica(primary))) == 1
    finally:
        copy.close()
        primary.close()


def entry(seed: int) -> dict[str | bytes, bytes]:
    """The fields of an entry with one instance."""
    payload, checksum = encode(
        Entry(APPLY_VERSION, b"somebody", seed, LearnEvent(drafts(1, seed)[0].records, 1, [Unit(1)]))
    )
    return {"e": payload, "c": checksum}


async def test_a_store_that_lost_everything_is_started_anew(own_server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(own_server)
    await replica.models.create("news", ModelConfig())
    await teach(replica)
    own_server.kill()
    for path in (own_server.directory / "appendonlydir").iterdir():
        path.unlink()
    own_server.start()
    other = await start_replica(own_server)
    await until(lambda: replica.status().log == "connected" and replica.models.names() == ["default"])
    assert replica.model("default").incarnation == other.model("default").incarnation
    assert replica.model("default").live.n_learned == 0
    await teach(replica)
    assert len(await digests(replica, other)) == 1
