from __future__ import annotations

import asyncio
import os

import msgspec

from abound.history.replay import compact
from abound.history.verify import verify
from abound.log.catalog import read_catalog
from abound.replica import heartbeat
from abound.replica.replica import Replica
from abound.state import replica_status
from abound.state.snapshots import SnapshotParams
from abound.store import expiring
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from tests.support.streams import drafts


async def publish_aged(store: Store, keys: ModelKeys, age: float, said: replica_status.PublishedStatus) -> None:
    """Publish a status as if it were so many seconds old."""
    now, _ = await store.client.time()
    await store.client.hset(keys.key("replicas"), said.replica, expiring.pack(now - age, msgspec.json.encode(said)))


async def shown(store: Store, *replicas: Replica) -> None:
    """Wait until replicas have described themselves."""
    keys = replicas[0].model("default").keys
    async with asyncio.timeout(60):
        while len(await replica_status.live_replicas(store, keys)) < len(replicas):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_replicas_that_serve_what_the_log_says_are_good(server, start_replica, store):
    one, other = await start_replica(server), await start_replica(server)
    await one.learn("default", drafts(50))
    living = (await read_catalog(store)).get("default")
    assert living is not None
    await compact(store, living, SnapshotParams())
    await other.learn("default", drafts(50, seed=2))
    await shown(store, one, other)
    verified = await verify(store, "default")
    assert verified.good
    assert {marked.replica for marked in verified.replicas} == {one.id, other.id}
    assert verified.from_start == verified.from_snapshot == verified.replicas[0].digest
    assert one.model("default").offset == verified.offset
    assert verified.silent == []


async def test_a_replica_that_serves_something_else_is_found(server, start_replica, store):
    one, other = await start_replica(server), await start_replica(server)
    await one.learn("default", drafts(50))
    await other.wait_for("default", one.model("default").offset, 60)
    await shown(store, one, other)
    other.model("default").live.configure({"margin": 0.25})  # behind the log's back
    verified = await verify(store, "default")
    assert not verified.good
    digests = {marked.replica: marked.digest for marked in verified.replicas}
    assert digests[one.id] == verified.from_start == verified.from_snapshot
    assert digests[other.id] != digests[one.id]


async def test_a_replica_that_is_not_heard_of_any_more_must_still_answer(server, start_replica, store):
    one = await start_replica(server)
    await one.learn("default", drafts(10))
    await shown(store, one)
    keys = one.model("default").keys
    (own,) = await replica_status.live_replicas(store, keys)
    cut_off = msgspec.structs.replace(own, replica="cut-off")
    await publish_aged(store, keys, 300, cut_off)
    assert [live.replica for live in await replica_status.live_replicas(store, keys)] == [one.id]
    verified = await verify(store, "default", wait_seconds=2.0)
    assert verified.silent == ["cut-off"]
    assert verified.equal
    assert not verified.good
    verifying = asyncio.create_task(verify(store, "default", wait_seconds=30))
    while not await store.client.keys(keys.key("marks:*").decode()):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await replica_status.withdraw(store, [keys], "cut-off")
    assert (await verifying).good
    await publish_aged(store, keys, replica_status.STALE_SECONDS + 60, cut_off)
    assert (await verify(store, "default")).good
    assert not await store.client.hexists(keys.key("replicas"), "cut-off")


async def test_without_a_replica_nothing_is_good_unless_none_was_asked(server, start_replica, store):
    one = await start_replica(server)
    await one.learn("default", drafts(10))
    await one.stop()
    verified = await verify(store, "default")
    assert (verified.replicas, verified.silent, verified.equal, verified.good) == ([], [], True, False)
    assert (await verify(store, "default", offline=True)).good


async def test_what_was_killed_is_let_go_by_the_next_on_its_host(server, start_replica, store, monkeypatch):
    monkeypatch.setattr(heartbeat, "CLEAR_TICKS", 1)
    monkeypatch.setattr(replica_status, "FRESH_SECONDS", 60.0)
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    first = await start_replica(server)
    await shown(store, first)
    keys = first.model("default").keys
    (own,) = await replica_status.live_replicas(store, keys)
    said = {
        "killed": {"pid": ended.pid},
        "now": {"pid": ended.pid},
        "runs": {"pid": os.getppid()},
        "elsewhere": {"pid": ended.pid, "host": "another"},
        "container": {"pid": ended.pid, "numbering": "its own"},
    }
    for name, changed in said.items():
        age = 0 if name == "now" else 300
        await publish_aged(store, keys, age, msgspec.structs.replace(own, replica=name, **changed))
    other = await start_replica(server)
    async with asyncio.timeout(60):
        while "killed" in (there := {one.replica for one in await replica_status.known_replicas(store, keys)}):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert there == {first.id, other.id, "now", "runs", "elsewhere", "container"}
    assert own.numbering == replica_status.pid_namespace()
