"""A worker that archives beside replicas that learn: what they tell about it, and how they get on."""

import asyncio
from typing import Any

import pytest

from abound.history.history import HistoryParams
from abound.history.verify import verify
from abound.log.catalog import read_catalog
from abound.log.stream import LogParams
from abound.replica.replica import Replica
from abound.replica.storage_status import NO_ARTIFACTS
from abound.state.snapshots import SnapshotParams
from abound.worker import Worker
from abound_core.errors import Overloaded
from abound_core.types import START, Offset
from tests.support.lab import Lab
from tests.support.replicas import until
from tests.support.streams import drafts, flip

OFTEN = SnapshotParams(every_bytes=3000, every_seconds=1e9, part_bytes=16_384)
SMALL = HistoryParams(segment_bytes=1024)


async def teach(replica: Replica, n: int, seed: int) -> Offset:
    """Learn, each instance an entry of its own; where the last one is."""
    for one in drafts(n, seed):
        await replica.learn("default", [one])
    return replica.model("default").offset


async def refreshed(replica: Replica) -> Any:
    await replica.storage_status.refresh()
    return replica.storage_status.get(replica.model("default"))


async def test_a_worker_keeps_the_log_short_and_replicas_tell(lab: Lab) -> None:
    replica = await lab.replica()
    other = await lab.replica(artifacts=False)
    assert replica.status().history is None
    assert other.status().history == NO_ARTIFACTS
    worker = Worker(lab.store, OFTEN, artifacts=lab.artifacts, history_params=SMALL)
    working = asyncio.create_task(worker.run())
    model = replica.model("default")
    seed = 0
    async with asyncio.timeout(60):
        while model.trim.n_entries <= 40:  # a snapshot is due when the log has grown, so it must go on growing
            await teach(replica, 20, seed)
            await asyncio.sleep(0.1)
            seed += 1
    assert model.held_log_bytes < model.log_bytes
    kept = await refreshed(replica)
    assert kept.snapshot is not None
    assert kept.log_entries + kept.trimmed_entries == model.position.n_entries
    assert kept.history.first == START
    await other.wait_for("default", model.offset, 60)
    await until(lambda: (model.lag, other.model("default").lag) == (0, 0))
    verified = await verify(replica.store, "default", artifacts=lab.artifacts)
    assert verified.good
    assert verified.start == START
    again = await lab.replica(artifacts=False)
    assert await again.model("default").compute_digest() == await model.compute_digest()
    worker.stop()
    await asyncio.wait_for(working, 60)


async def test_what_keeps_the_log_from_being_trimmed_is_told_by_replicas_until_it_is_restored(lab, monkeypatch):
    monkeypatch.setattr("abound.worker.DAMAGED_PAUSE_SECONDS", 0.0)  # until it tries again
    replica = await lab.replica()
    first = await teach(replica, 1, 1)
    await teach(replica, 20, 2)
    living = await lab.living()
    for _ in range(2):
        await lab.snapshot()
        last = await teach(replica, 5, 3)
    await lab.snapshot()
    await flip(lab.store, living.keys.log, first)
    worker = Worker(lab.store, OFTEN, artifacts=lab.artifacts, history_params=SMALL)
    catalog = await read_catalog(lab.store)
    await worker.sweep(catalog)
    kept = await refreshed(replica)
    assert kept.figures()["untrimmed"] == 1
    assert kept.failure is not None
    status = replica.status()
    assert status.ready
    assert status.history == f"default: {kept.failure}"
    assert f"entry {first.entry} of the log of default cannot be moved to history" in status.history
    assert "abound history begin-anew" in status.history
    assert await lab.store.client.ttl(living.keys.key("worker-status")) > 0
    await flip(lab.store, living.keys.log, first)
    await worker.sweep(catalog)
    kept = await refreshed(replica)
    assert (kept.failure, kept.figures()["untrimmed"], replica.status().history) == (None, 0, None)
    assert kept.trimmed_entries > 0
    assert replica.model("default").offset == last


async def test_a_full_log_takes_more_once_it_is_archived(lab: Lab) -> None:
    replica = await lab.replica(log=LogParams(max_log_bytes=12_000))
    await teach(replica, 30, 1)
    await lab.snapshot()
    with pytest.raises(Overloaded, match=r"holds its limit.*ABOUND_LOG_MAX_LOG_BYTES"):
        await teach(replica, 1000, 2)
    before = replica.model("default").held_log_bytes
    await lab.snapshot()
    await lab.archive(SMALL)
    await until(lambda: replica.model("default").held_log_bytes < before)
    await teach(replica, 10, 100)
