"""Replicas of one log have the same state; each reports what it is and how far its start is, and drains."""

from __future__ import annotations

import asyncio

import pytest

from abound.history import replay
from abound.log.catalog import read_catalog
from abound.log.stream import LogParams
from abound.replica.replica import Replica, ReplicaParams
from abound.state import replica_status
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store
from abound_core.errors import (
    CannotStart,
)
from tests.support.fixtures import StartReplica
from tests.support.replicas import teach
from tests.support.valkey import Server


async def test_a_store_that_cannot_reach_the_default_durability_is_refused(
    server: Server, start_replica: StartReplica
) -> None:
    await start_replica(server, ReplicaParams(durability="fsync"))
    replica = Replica(Store(server.url, server.store_params), ReplicaParams(durability="replica"))
    with pytest.raises(CannotStart, match="ABOUND_DURABILITY is replica, but the store has no connected replica"):
        await replica.start()
    await replica.stop()


async def test_replicas_describe_themselves(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    offset = await teach(one)

    async def described() -> dict[str, replica_status.PublishedStatus]:
        return {said.replica: said for said in await one.replicas("default")}

    async with asyncio.timeout(60):
        while True:
            said = await described()
            if len(said) == 2 and all(each.digest_offset == str(offset) for each in said.values()):
                break
            await asyncio.sleep(0.1)
    assert said[one.id].digest == said[other.id].digest == await one.model("default").compute_digest()
    assert said[other.id].lag == 0
    assert said[other.id].log_bytes == one.model("default").log_bytes > 0
    await other.stop()
    assert (await described()).keys() == {one.id}


async def test_start_tells_how_far_it_is(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    for seed in range(30):
        await teach(replica, 5, seed)
    living = (await read_catalog(replica.store)).get("default")
    assert living is not None
    await replay.compact(replica.store, living, SnapshotParams())
    for seed in range(100):
        await teach(replica, 1, seed)
    told: list[tuple[str, float]] = []
    other = Replica(Store(server.url, server.store_params), ReplicaParams(log=LogParams(read_bytes=1000)))
    await other.start(lambda stage, progress: told.append((stage, progress)))
    await other.stop()
    stages = list(dict.fromkeys(stage for stage, _ in told))
    last = "opening a connection to append over"
    assert stages == ["connecting", "loading snapshot of default", "replaying default", last]
    replaying = [progress for stage, progress in told if stage.startswith("replaying")]
    assert replaying == sorted(replaying)
    assert len(set(replaying)) > 3
    assert replaying[-1] == 1.0
    assert other.status().stage == "draining"
