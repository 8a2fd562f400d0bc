"""Stores that come back with less, or with something else, than they had: what is lost is noticed, nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from abound.artifacts.checksums import seal
from abound.history.replay import compact, replay
from abound.log.catalog import read_catalog
from abound.replica.replica import Replica, ReplicaParams
from abound.state.snapshots import SnapshotParams, file_key
from abound.state.state_image import MANIFEST
from abound.store.client import Store
from abound.worker import Worker
from abound_core.errors import CannotStart, OutcomeUnknown, StoreUnavailable
from abound_core.types import Offset
from benchmarks.stores import StoreServer
from tests.support.fixtures import StartReplica
from tests.support.replicas import digests, teach, until
from tests.support.valkey import PATIENT, Server

FULL_AFTER = 24 * 2**20


@contextlib.asynccontextmanager
async def replica_of(url: str, durability: str = "log") -> AsyncIterator[Replica]:
    replica = Replica(Store(url, PATIENT), ReplicaParams(durability=durability))
    await replica.start()
    try:
        yield replica
    finally:
        await replica.stop()


async def rebuilt(replica: Replica) -> str | None:
    """The digest of the default model, rebuilt from the store."""
    living = (await read_catalog(replica.store)).get("default")
    assert living is not None
    model = await replay(replica.store, living)
    assert model.offset == replica.model("default").offset
    return await model.compute_digest()


# an append-only file with a torn tail


async def test_a_torn_tail_of_the_append_only_file_is_dropped_by_everybody(
    own_server: Server, start_replica: StartReplica
) -> None:
    """A disk that lied: what was said to be on it is not."""
    replica = await start_replica(own_server)
    for seed in range(3):
        await teach(replica, 10, seed)
    log = replica.model("default").keys.log
    await teach(replica, 10, 3)
    own_server.kill()
    [file] = (own_server.directory / "appendonlydir").glob("*.incr.aof")
    entry = file.read_bytes().rindex(b"XADD")
    with file.open("r+b") as handle:
        handle.truncate(entry + 40)
    own_server.start()
    with own_server.client() as client:
        assert client.xlen(log) == 3
    await until(lambda: replica.model("default").live.n_learned == 30)
    await until(lambda: replica.status().log == "connected" and replica.status().ready)
    await teach(replica, 10, 4)
    assert len(await digests(replica, await start_replica(own_server))) == 1
    assert await rebuilt(replica) == await replica.model("default").compute_digest()


# a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FULL_AFTER}", "tmpfs", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


async def test_a_full_disk_stops_learning_and_nothing_else_and_loses_nothing(small_disk: Path) -> None:
    store = StoreServer(small_disk / "store")
    store.launch()
    store.until_answering()
    acknowledged: list[Offset] = []
    try:
        async with replica_of(store.url) as replica:
            acknowledged.append(await teach(replica, 10, 1))
            filler = small_disk / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            with filler.open("r+b") as file:
                file.truncate(filler.stat().st_size - 64 * 1024)
            refused = 0
            while refused < 3:
                try:
                    acknowledged.append(await teach(replica, 50, len(acknowledged)))
                except (StoreUnavailable, OutcomeUnknown):
                    refused += 1
            assert len(acknowledged) > 1
            assert replica.status().ready
            assert replica.model("default").live.n_learned >= 10
            filler.unlink()
            if store.pid is None:  # it ends when it cannot keep its word; whoever runs it starts it again
                store.launch()
                store.until_answering()
            await until(lambda: replica.status().log == "connected")
            acknowledged.append(await teach(replica, 10, 1000))
            with store.client() as client:
                held = {entry.decode() for entry, _ in client.xrange(replica.model("default").keys.log)}
            assert {offset.entry for offset in acknowledged} <= held
            assert await rebuilt(replica) == await replica.model("default").compute_digest()
    finally:
        store.kill()


# a clock that is set back


async def test_a_log_that_goes_on_after_the_newest_snapshot_only_is_refused(
    server: Server, start_replica: StartReplica
) -> None:
    """Trimmed by somebody else: between the snapshot and what is left of the log, events are missing."""
    replica = await start_replica(server)
    living = (await read_catalog(replica.store)).get("default")
    assert living is not None
    for seed in range(2):
        await teach(replica, 10, seed)
        await compact(replica.store, living, SnapshotParams())
    for seed in range(2, 5):
        last = await teach(replica, 10, seed)
    await replica.store.client.xtrim(living.keys.log, minid=last.entry, approximate=False)
    late = Replica(Store(server.url, server.store_params))
    with pytest.raises(CannotStart, match=r"does not continue from its offset .* lost its beginning.*from a backup"):
        await late.start()
    await late.stop()


async def test_a_snapshot_of_the_future_does_not_put_off_the_next_one(
    server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(server)
    await teach(replica, 10, 1)
    living = (await read_catalog(replica.store)).get("default")
    assert living is not None
    made = await compact(replica.store, living, SnapshotParams())
    later = seal(msgspec.structs.replace(made, created=made.created + 3_600_000))
    await replica.store.client.set(file_key(living.keys, made.id, MANIFEST), msgspec.json.encode(later))
    await teach(replica, 10, 2)
    store = Store(server.url, server.store_params)
    worker = Worker(store, SnapshotParams(every_seconds=600.0))
    working = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while len(found := await replica.snapshots("default")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert found[0].position.offset == replica.model("default").offset
    worker.stop()
    await working
    await store.close()
