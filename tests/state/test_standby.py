"""A rebuilt index taken over by all replicas at one offset: shadows, adoption, and what comes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from abound.history import pins
from abound.history.archive import ArchiveContext, archive
from abound.history.replay import ReplaySource, compact, replay
from abound.log.events import AdoptEvent, ConfigureEvent
from abound.replace import adoption
from abound.replica import loader, memory_budget
from abound.replica.memory_budget import MemoryBudget
from abound.replica.replica import Replica
from abound.state import snapshots, state_files
from abound.store.lease import acquire
from abound_core.errors import (
    Corrupted,
    Overloaded,
    StoreUnavailable,
    UnknownArtifact,
)
from abound_core.types import Offset
from tests.support.lab import SMALL, Lab, adopt, digest_at, events, learning, model_of
from tests.support.replicas import until
from tests.support.streams import drafts


def prepared(replica: Replica) -> Callable[[], Awaitable[None]]:
    """Return a checkpoint that waits until a replica is prepared, so that an adoption need not wait for others."""

    async def checkpoint() -> None:
        await until(lambda: replica.model("default").prepared_state is not None)

    return checkpoint


async def test_all_replicas_go_over_at_one_offset_while_learning_goes_on(lab: Lab) -> None:
    one, other = await lab.replica(), await lab.replica()
    await one.learn("default", drafts(40))
    before = one.model("default").live
    async with learning(other):
        at = await adopt(lab)
        await one.learn("default", drafts(5, 77))
    last = max(one.model("default").offset, other.model("default").offset)
    expected = await lab.expected()
    assert {await digest_at(replica, last) for replica in (one, other)} == {expected}
    assert {replica.model("default").position.adopted for replica in (one, other)} == {at}
    assert one.model("default").live is not before
    assert one.model("default").standby is None
    assert one.status().ready
    assert other.status().ready
    assert await lab.store.client.exists(one.model("default").keys.key("adoption-lease")) == 0
    assert await pins.oldest(lab.store, one.model("default").keys) is None


async def test_replays_snapshots_and_new_replicas_give_the_same(lab: Lab) -> None:
    one = await lab.replica()
    living = await lab.living()
    await one.learn("default", drafts(40))
    early = await compact(lab.store, living, SMALL, artifacts=lab.artifacts)
    await one.learn("default", drafts(20, 2))
    place = await lab.place()
    async with adoption.begin(place, "adoption") as this:
        await one.learn("default", drafts(10, 3))
        index = await lab.index(model_of(30, 9, d_max=7), this.after)
        between = await compact(lab.store, living, SMALL, artifacts=lab.artifacts)
        await lab.append(*events(5, 4), ConfigureEvent({"margin": 0.25}))
        at = await this.adopt(index, "a test")
    await one.learn("default", drafts(10, 5))
    last = one.model("default").offset
    expected = await lab.expected()
    assert await digest_at(one, last) == expected
    assert one.model("default").live.config.d_max == 7
    assert one.model("default").live.config.margin == 0.25
    for snapshot in (between, early, None):
        model = await replay(lab.store, living, from_start=snapshot is None, artifacts=lab.artifacts)
        assert (await digest_at(model, last), model.position.adopted) == (expected, at)
        if snapshot is not None:
            await lab.store.client.lrem(living.keys.key("snapshots"), 0, snapshot.id)
    late = await compact(lab.store, living, SMALL, artifacts=lab.artifacts)
    assert late.digest == expected
    await state_files.delete(lab.artifacts, living.keys, index.id)  # nobody needs it any more
    new = await lab.replica(artifacts=False)
    assert await digest_at(new, last) == expected
    assert new.model("default").position.adopted == at


async def test_a_replica_that_starts_between_prepare_and_adopt_goes_over_too(lab: Lab) -> None:
    one = await lab.replica()
    await one.learn("default", drafts(40))
    started = []

    async def start_one() -> None:
        if not started:
            await until(lambda: one.model("default").prepared_state is not None)
            started.append(await lab.replica())
            async with asyncio.timeout(60):  # an adoption waits for replicas that have published themselves
                while len(await one.replicas("default")) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    with structlog.testing.capture_logs() as logs:
        at = await adopt(lab, checkpoint=start_one)
    await lab.append(*events(3))
    for replica in (one, *started):
        last = (await lab.elements())[-1][0]
        assert await digest_at(replica, last) == await lab.expected()
        assert replica.model("default").position.adopted == at
    assert [line["event"] for line in logs].count("a standby state is ready to be adopted") == 2
    assert not [line for line in logs if "halts" in line["event"]]


async def test_a_snapshot_that_comes_too_late_does_not_set_back_a_model_that_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is trimmed past a halted model, and its follower loads it anew while its shadow's task loads as well."""
    one = await lab.replica(artifacts=False)
    await one.learn("default", drafts(40))
    living, model = await lab.living(), one.model("default")
    async with adoption.begin(await lab.place(prepare_seconds=0.01), "adoption") as this:
        await this.adopt(await lab.index(model_of(30, 9), this.after), "a test")
    await until(lambda: model.halted)
    gate, waiting = asyncio.Event(), asyncio.Event()
    load = snapshots.load

    async def slow(*args: Any) -> Any:
        live = await load(*args)
        task = asyncio.current_task()
        if task is not None and task.get_name() == "adoption default":
            waiting.set()
            await gate.wait()
        return live

    monkeypatch.setattr(snapshots, "load", slow)
    for seed in (3, 4):
        await lab.append(*events(3, seed))
        await compact(lab.store, living, SMALL, artifacts=lab.artifacts)
    async with acquire(lab.store, living.keys) as lease:
        await archive(ArchiveContext(lab.store, lab.artifacts, living, lease))
    await waiting.wait()
    one._follower.verify_soon()
    await until(lambda: model.ready)
    [*_, last] = await lab.append(*events(3, 5))
    expected = await digest_at(one, last)
    gate.set()
    await asyncio.sleep(0.05)
    assert (model.offset, model.ready, model.resumes) == (last, True, False)
    assert await digest_at(one, last) == expected
    [*_, last] = await lab.append(*events(3, 6))
    new = await lab.replica(artifacts=False)
    assert await digest_at(one, last) == await digest_at(new, last)


async def test_a_halted_model_whose_log_has_lost_its_end_is_loaded_anew_whatever_goes_wrong_meanwhile(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left where it began: what was said of the state that went made it look as if it only waited."""
    one = await lab.replica(artifacts=False)
    await one.learn("default", drafts(40))
    model = one.model("default")
    async with adoption.begin(await lab.place(prepare_seconds=0.01), "adoption") as this:
        await this.adopt(await lab.index(model_of(30, 9), this.after), "a test")
    await until(lambda: model.halted)
    kept = (await lab.store.client.xrange(model.keys.log))[:-2]
    async with lab.store.client.pipeline(transaction=True) as pipe:
        pipe.delete(model.keys.log)
        for name, fields in kept:
            pipe.xadd(model.keys.log, fields, id=name)
        await pipe.execute()
    restore, asked = loader.load_newest, []

    async def away_at_first(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            model.reset()
            raise StoreUnavailable("the store is away")
        return await restore(*args, **kwargs)

    monkeypatch.setattr(loader, "load_newest", away_at_first)
    one._follower.verify_soon()
    await until(lambda: model.ready)
    [*_, last] = await lab.append(*events(3, 5))
    assert await digest_at(one, last) == await lab.expected()
    assert len(asked) == 2


async def test_a_replica_that_is_not_ready_halts_before_the_adoption_and_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await lab.replica()
    slow = await lab.replica()
    gate = asyncio.Event()
    load = ReplaySource.load

    async def load_late(source: ReplaySource, *given: Any) -> Any:
        if source is slow._standbys._source:
            await gate.wait()
        return await load(source, *given)

    monkeypatch.setattr(ReplaySource, "load", load_late)
    await one.learn("default", drafts(40))
    at = await adopt(lab, checkpoint=prepared(one), prepare_seconds=0.1)
    await one.learn("default", drafts(5, 77))
    await until(lambda: slow.model("default").halted is not None)
    assert slow.model("default").offset < at
    assert not slow.status().ready
    assert "adopted" in str(slow.status().reason)
    assert one.status().ready
    gate.set()
    last = one.model("default").offset
    assert await digest_at(slow, last) == await digest_at(one, last) == await lab.expected()
    await until(lambda: slow.status().ready)


async def test_a_replica_without_the_artifact_store_goes_on_from_a_snapshot_past_the_adoption(lab: Lab) -> None:
    one = await lab.replica()
    blind = await lab.replica(artifacts=False)
    await one.learn("default", drafts(40))
    place = await lab.place(checkpoint=prepared(one), prepare_seconds=0.1)
    async with adoption.begin(place, "adoption") as this:
        at = await this.adopt(await lab.index(model_of(30, 9), this.after), "a test")
        await until(lambda: "ABOUND_ARTIFACTS_URL" in str(blind.model("default").halted))
        await one.learn("default", drafts(5, 77))
        made = await adoption.snapshot_past(place, at)
    assert made.position.offset >= at
    await until(lambda: blind.status().ready)
    last = one.model("default").offset
    assert await digest_at(blind, last) == await digest_at(one, last) == await lab.expected()
    assert blind.model("default").position.adopted == at


async def test_a_start_that_meets_an_adoption_without_its_index_waits_for_it(lab: Lab) -> None:
    await lab.append(*events(30))
    at = await adopt(lab)
    living = await lab.living()
    starting = asyncio.create_task(lab.replica(artifacts=False))
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any("halts before" in line["event"] for line in logs))
    assert not starting.done()
    await adoption.snapshot_past(await lab.place(), at)
    replica = await starting
    assert replica.status().ready
    assert replica.model("default").position.adopted == at
    assert replica.model("default").keys == living.keys


async def test_a_start_does_not_wait_for_an_adoption_that_the_store_has_lost(lab: Lab) -> None:
    offsets = await lab.append(*events(30))
    await adopt(lab)
    log = (await lab.living()).keys.log
    starting = asyncio.create_task(lab.replica(artifacts=False))
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any("halts before" in line["event"] for line in logs))
    entries = await lab.store.client.xrange(log)
    async with lab.store.client.pipeline(transaction=True) as pipe:  # a failover to a copy that had not all of it
        pipe.delete(log)
        for entry_id, fields in entries:
            if Offset.of_entry(entry_id) < offsets[-1]:
                pipe.xadd(log, fields, id=entry_id)
        await pipe.execute()
    replica = await asyncio.wait_for(starting, 30)
    assert replica.model("default").live.n_learned == 29
    assert await digest_at(replica, offsets[-2]) == await lab.expected()


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut off"])
async def test_an_index_that_cannot_be_read_is_not_adopted(lab: Lab, damage: str) -> None:
    one = await lab.replica()
    await one.learn("default", drafts(40))
    place = await lab.place(prepare_seconds=1.0)
    async with adoption.begin(place, "adoption") as this:
        index = await lab.index(model_of(30, 9), this.after)
        path = lab.artifacts.path(state_files.file_name(place.keys, index.id, "0"))
        assert path is not None
        whole = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[:-1] + (bytes([whole[-1] ^ 1]) if damage == "flipped" else b""))
        with pytest.raises(UnknownArtifact if damage == "missing" else Corrupted):
            await this.adopt(index, "a test")
    await one.learn("default", drafts(5, 77))
    assert not [event for _, event in await lab.elements() if isinstance(event, AdoptEvent)]
    await until(lambda: one.model("default").standby is None)
    assert await digest_at(one, one.model("default").offset) == await lab.expected()
    assert one.status().ready
    at = await adopt(lab, name="another")  # nothing is in its way
    await until(lambda: one.model("default").position.adopted == at)


async def test_a_shadow_counts_in_the_budget_before_it_is_loaded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await lab.replica()
    await lab.append(*events(200, 1))
    model = one.model("default")
    await until(lambda: model.live.n_learned == 200)
    size = model.live.n_bytes + model.live.growth_bytes
    monkeypatch.setattr(memory_budget, "LOOK_SECONDS", -1.0)
    narrow, wide = MemoryBudget(int(1.5 * size)), MemoryBudget(3 * size)
    narrow.check(model, lambda: [model])
    may_load, load = asyncio.Event(), ReplaySource.load

    async def held_up(*given: Any) -> Any:
        await may_load.wait()
        return await load(*given)

    monkeypatch.setattr(ReplaySource, "load", held_up)
    async with adoption.begin(await lab.place(), "a") as begun:
        index = await lab.index(model_of(200, 2), begun.after)
        adopting = asyncio.create_task(begun.adopt(index, "r"))
        await until(lambda: model.standby is not None)
        with pytest.raises(Overloaded, match="the state that is being prepared") as refused:
            narrow.check(model, lambda: [model])
        assert refused.value.retry_after > 1
        wide.check(model, lambda: [model])
        may_load.set()
        at = await adopting
    await digest_at(one, at)
    assert model.n_standby_bytes == 0
    narrow.check(model, lambda: [model])
