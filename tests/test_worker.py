"""The worker: when snapshots are due, who makes them, and how it ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import redis

from abound import worker as service_worker
from abound.artifacts.artifact_store import ArtifactStore
from abound.history import worker_status
from abound.history.replay import compact
from abound.log.catalog import CatalogModel, read_catalog
from abound.log.closing import append_fenced, close_log
from abound.log.events import APPLY_VERSION, BoundaryEvent, Entry, ReplacementBegun
from abound.log.stream import trim_of
from abound.replace.replace import end_abandoned
from abound.replica.replica import Replica, ReplicaParams
from abound.state import schedule, snapshots
from abound.state.snapshots import SnapshotParams
from abound.state.state_image import StateManifest
from abound.store import expiring
from abound.store.client import Store
from abound.store.lease import REPLACEMENT, acquire
from abound.worker import Worker
from abound_core.errors import NotReady, StoreUnavailable, UnknownOffset
from abound_core.types import START
from tests.support.fixtures import StartReplica
from tests.support.replicas import until
from tests.support.streams import drafts
from tests.support.valkey import Server

NEVER = SnapshotParams(every_bytes=2**40, every_seconds=1e9)


class Work:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.running: list[tuple[Worker, asyncio.Task[None], Store]] = []

    def start(self, params: SnapshotParams = NEVER, artifacts: ArtifactStore | None = None) -> Worker:
        store = Store(self.server.url, self.server.store_params)
        worker = Worker(store, params, artifacts=artifacts)
        self.running.append((worker, asyncio.create_task(worker.run()), store))
        return worker

    async def stop(self) -> None:
        for worker, task, store in self.running:
            worker.stop()
            await asyncio.wait_for(task, 60)
            await store.close()
        self.running = []


@pytest.fixture
async def work(server: Server) -> AsyncIterator[Work]:
    work = Work(server)
    yield work
    await work.stop()


async def newest(replica: Replica, count: int, name: str = "default", seconds: float = 60.0) -> list[StateManifest]:

    async def enough() -> list[StateManifest] | None:
        found = await replica.snapshots(name)
        return found if len(found) >= count else None

    return await until(enough, seconds)


async def trouble(replica: Replica) -> str:
    """What the worker reports of the default model, once it does; other models may come before it."""
    key = replica.model("default").keys.key("worker-status")

    async def said() -> str | None:
        return worker_status.parse(await replica.store.client.hgetall(key)).trouble

    return str(await until(said))


async def test_a_snapshot_that_is_asked_for_is_made_of_the_state_that_is_served(server, start_replica, work):
    replica = await start_replica(server, ReplicaParams(snapshots=NEVER))
    await replica.learn("default", drafts(100))
    with pytest.raises(NotReady, match="abound worker"):
        await replica.request_snapshot("default")
    work.start()
    await until(lambda: schedule.live_workers(replica.store))
    first = await replica.request_snapshot("default")
    assert first.position.offset == replica.model("default").offset
    assert first.digest == await replica.model("default").compute_digest()
    assert await replica.request_snapshot("default") == first  # nothing was learned since
    await replica.learn("default", drafts(10))
    second = await replica.request_snapshot("default")
    assert await replica.snapshots("default") == [second, first]
    again = await start_replica(server)
    assert await again.model("default").compute_digest() == second.digest
    await work.stop()
    with pytest.raises(NotReady, match="no worker"):
        await replica.request_snapshot("default")


async def test_a_snapshot_is_due_when_the_log_has_grown_and_when_it_is_time(server, start_replica):
    replica = await start_replica(server)
    store, keys = replica.store, replica.model("default").keys
    large, old = (SnapshotParams(every_bytes=n, every_seconds=at) for n, at in ((5000, 1e9), (2**40, 1800.0)))
    living = (await read_catalog(store)).get("default")
    assert living is not None
    empty = await compact(store, living, NEVER)
    long_ago = msgspec.structs.replace(empty, created=empty.created - 3_600_000)
    assert await schedule.why_due(store, keys, long_ago, old) is None  # nothing was learned
    await replica.learn("default", drafts(10))
    assert await schedule.why_due(store, keys, empty, old) is None
    assert await schedule.why_due(store, keys, long_ago, old) == "the newest is too old"
    of_the_future = msgspec.structs.replace(empty, created=empty.created + 3_600_000)  # the clock was set back since
    assert await schedule.why_due(store, keys, of_the_future, old) is not None
    assert await schedule.why_due(store, keys, empty, large) is None
    await replica.learn("default", drafts(200))
    assert await until(lambda: schedule.why_due(store, keys, empty, large)) == "the log has grown"
    made = await compact(store, living, NEVER)
    assert await schedule.why_due(store, keys, made, large) is None


@pytest.mark.parametrize(
    "error",
    [None, MemoryError(), UnknownOffset("history begins later", START), StoreUnavailable("no answer in time")],
    ids=["damaged log", "MemoryError", "UnknownOffset", "StoreUnavailable"],
)
async def test_a_model_that_cannot_be_rebuilt_leaves_the_other_models_their_worker(
    server, start_replica, work, monkeypatch, error
):
    replica = await start_replica(server)
    await replica.models.create("good", replica.model("default").live.config)
    for name in replica.models.names():
        await replica.learn(name, drafts(10))

    async def compact_small(store: Store, living: CatalogModel, *given: Any, **named: Any) -> StateManifest:
        if error is not None and living.keys.name == "default":
            raise error
        return await compact(store, living, *given, **named)

    if error is None:
        await replica.store.client.xadd(replica.model("default").keys.log, {"e": b"x", "c": b"y"})
    monkeypatch.setattr(service_worker, "compact", compact_small)
    work.start(SnapshotParams(every_bytes=100))
    await newest(replica, 1, "good")
    said = await trouble(replica)
    assert said.startswith("no snapshot can be made: ")
    assert error is None or said.endswith(str(error) or "MemoryError()")
    assert await replica.snapshots("default") == []


async def test_a_snapshot_that_the_store_has_no_room_for_leaves_no_parts_and_the_others_their_worker(
    server, start_replica, work, monkeypatch
):
    replica = await start_replica(server)
    await replica.models.create("small", replica.model("default").live.config)
    await replica.learn("default", drafts(100))
    await replica.learn("small", drafts(10))
    keys = replica.model("default").keys
    await replica.store.client.set(keys.key("snapshot:1-0.0-00000000:0"), b"a part that a dead worker left")
    put, written = redis.asyncio.Redis.set, []

    async def put_until_full(client: redis.asyncio.Redis, key: Any, *given: Any, **named: Any) -> Any:
        if not key.startswith(keys.key("snapshot:")):
            return await put(client, key, *given, **named)
        written.append(key)
        await client.config_set("maxmemory", int(len(written) == 3))  # the store has no room for the third part
        try:
            return await put(client, key, *given, **named)
        finally:
            await client.config_set("maxmemory", 0)

    monkeypatch.setattr(redis.asyncio.Redis, "set", put_until_full)
    work.start(SnapshotParams(every_bytes=100, part_bytes=1024))
    await newest(replica, 1, "small")
    assert "the store is full (maxmemory)" in await trouble(replica)
    assert len(written) == 3
    assert await snapshots.unlisted_keys(replica.store, keys) == {}
    assert await replica.snapshots("default") == []


async def test_a_full_store_is_trimmed_and_read(own_server, start_replica, tmp_path):
    artifacts = ArtifactStore(str(tmp_path))
    replica = await start_replica(own_server, None, artifacts)
    model = (await read_catalog(replica.store)).get("default")
    assert model is not None
    for snapshot in (False, True, True, False):
        await replica.learn("default", drafts(100))
        if snapshot:
            await compact(replica.store, model, NEVER)
    client = replica.store.client
    await client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        await client.set("x", "y")
    again = await start_replica(own_server, None, ArtifactStore(str(tmp_path)))
    assert again.model("default").ready
    assert again.storage_status.failure is None
    work = Work(own_server)
    work.start(SnapshotParams(every_bytes=2**40, every_seconds=1.0), ArtifactStore(str(tmp_path)))

    async def n_trimmed() -> int:
        return (await trim_of(replica.store, model.keys.log)).n_entries

    await until(n_trimmed)
    await work.stop()


async def test_what_nothing_points_to_is_swept(server: Server, start_replica: StartReplica, work: Work) -> None:
    replica = await start_replica(server)
    client = replica.store.client
    await replica.models.create("gone", replica.model("default").live.config)
    await replica.learn("default", drafts(10))
    await replica.learn("gone", drafts(10))
    gone = replica.model("gone").keys
    await replica.models.delete("gone")
    keys = replica.model("default").keys
    worker = work.start(SnapshotParams(every_bytes=100))
    (made,) = await newest(replica, 1)
    kept = set(await client.keys("*"))
    orphans = {gone.key("history"): "late", gone.key("snapshots"): "x", keys.key("snapshot:1-0.0-00000000:0"): "part"}
    orphans[keys.key("snapshot:1-0.0-00000000:manifest")] = "{}"
    newer = f"abound:{{newer:{2**60}-0}}:log".encode()
    await client.mset(orphans | {newer: "a model that is newer than the catalog that was read", b"other": "other"})
    assert await worker.sweep(await read_catalog(replica.store)) == 4
    left = set(await client.keys("*"))
    assert not left & orphans.keys()
    assert {newer, b"other"} < left
    assert {key for key in kept if b"lease" not in key} <= left
    assert (await snapshots.read_manifests(replica.store, keys))[0] == made


async def test_an_unfinished_replacement_is_ended_once_its_process_is_dead(server, start_replica, work):
    """Its log was closed already: requests to learn are refused until the worker opens it again."""
    replica = await start_replica(server)
    await replica.learn("default", drafts(10))
    store, keys = replica.store, replica.model("default").keys
    async with acquire(store, keys, purpose=REPLACEMENT) as lease:
        await append_fenced(store, lease, ReplacementBegun(keys.name, keys.incarnation))
        last, prepared = Entry(APPLY_VERSION, b"", 0, BoundaryEvent("")), (await read_catalog(store)).offset
        await close_log(store, lease, replica.model("default").offset, last, prepared)
        assert not await end_abandoned(store, await read_catalog(store), "default")
        assert (await read_catalog(store)).coming  # its process is alive
    work.start()

    async def is_ended() -> bool:
        return not (await read_catalog(store)).coming

    await until(is_ended)
    await replica.learn("default", drafts(5, 2))
    assert replica.model("default").live.n_learned == 15
    assert not await end_abandoned(store, await read_catalog(store), "default")


async def test_a_live_worker_says_which_jobs_it_runs_and_a_silent_one_is_not_there(server, store, tmp_path):
    await store.client.hset(schedule.WORKERS_KEY, "silent", expiring.pack(1.0, b'["fit"]'))
    own, alive = Store(server.url), tmp_path / "alive"
    worker = Worker(own, NEVER, kinds=["replace", "fit"], alive_file=alive)
    task = asyncio.create_task(worker.run())
    assert await until(lambda: schedule.live_workers(store)) == {worker.id: ["replace", "fit"]}
    assert alive.exists()
    worker.stop()
    await task
    assert await schedule.live_workers(store) == {}
    await own.close()
