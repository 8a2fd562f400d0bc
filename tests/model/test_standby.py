"""A rebuilt index taken over by all replicas at one offset: shadows, adoption, and what comes between them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from abound.core.errors import (
    ArtifactsUnavailable,
    Cancelled,
    Conflict,
    Corrupted,
    Overloaded,
    StoreUnavailable,
    UnknownArtifact,
)
from abound.core.model.live_model import warmup
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import ARTIFACTS_KEY, ArtifactStore
from abound.service.history import pins
from abound.service.history.archive import ArchiveContext, archive
from abound.service.history.replay import ReplaySource, compact, rebuild
from abound.service.log.events import AdoptEvent, ConfigureEvent, PrepareEvent
from abound.service.log.stream import Trim, trimmed_key
from abound.service.rebuild import adoption
from abound.service.replica import loader, memory_budget
from abound.service.replica.memory_budget import MemoryBudget
from abound.service.snapshots import snapshots, state_files
from abound.service.store.client import Store
from abound.service.store.lease import ADOPTION, LeaseLost, acquire
from tests.support.adoption_house import SMALL, House, digest_at, events, learning, model_of, until
from tests.support.proxy import Proxy
from tests.support.streams import drafts
from tests.support.valkey import QUICK, Server


async def adopt(house: House, seed: int = 9, name: str = "adoption", **fields: Any) -> Offset:
    """Adopt a model of something else; where."""
    place = await house.place(**fields)
    async with adoption.begin(place, name) as one:
        index = await house.index(model_of(30, seed), one.after)
        return await one.adopt(index, "a test")


async def test_all_replicas_go_over_at_one_offset_while_learning_goes_on(house: House) -> None:
    one, other = await house.replica(), await house.replica()
    await one.learn("default", drafts(40))
    before = one.model("default").live
    async with learning(other):
        at = await adopt(house)
        await one.learn("default", drafts(5, 77))
    last = max(one.model("default").offset, other.model("default").offset)
    expected = await house.expected()
    assert {await digest_at(replica, last) for replica in (one, other)} == {expected}
    assert {replica.model("default").position.adopted for replica in (one, other)} == {at}
    assert one.model("default").live is not before
    assert one.model("default").standby is None
    assert one.status().ready
    assert other.status().ready
    assert await house.store.client.exists(one.model("default").keys.key("adoption-lease")) == 0
    assert await pins.oldest(house.store, one.model("default").keys) is None


async def test_replays_snapshots_and_new_replicas_give_the_same(house: House) -> None:
    one = await house.replica()
    living = await house.living()
    await one.learn("default", drafts(40))
    early = await compact(house.store, living, SMALL, artifacts=house.artifacts)
    await one.learn("default", drafts(20, 2))
    place = await house.place()
    async with adoption.begin(place, "adoption") as this:
        await one.learn("default", drafts(10, 3))
        index = await house.index(model_of(30, 9, d_max=7), this.after)
        between = await compact(house.store, living, SMALL, artifacts=house.artifacts)
        await house.append(*events(5, 4), ConfigureEvent({"margin": 0.25}))
        at = await this.adopt(index, "a test")
    await one.learn("default", drafts(10, 5))
    last = one.model("default").offset
    expected = await house.expected()
    assert await digest_at(one, last) == expected
    assert one.model("default").live.config.d_max == 7
    assert one.model("default").live.config.margin == 0.25
    for snapshot in (between, early, None):
        model = await rebuild(house.store, living, from_start=snapshot is None, artifacts=house.artifacts)
        assert (await digest_at(model, last), model.position.adopted) == (expected, at)
        if snapshot is not None:
            await house.store.client.lrem(living.keys.key("snapshots"), 0, snapshot.id)
    late = await compact(house.store, living, SMALL, artifacts=house.artifacts)
    assert late.digest == expected
    await state_files.delete(house.artifacts, living.keys, index.id)  # nobody needs it any more
    new = await house.replica(artifacts=False)
    assert await digest_at(new, last) == expected
    assert new.model("default").position.adopted == at


async def test_a_replica_that_starts_between_prepare_and_adopt_goes_over_too(house: House) -> None:
    one = await house.replica()
    await one.learn("default", drafts(40))
    started = []

    async def start_one() -> None:
        if not started:
            await until(lambda: one.model("default").prepared_state is not None)
            started.append(await house.replica())

    with structlog.testing.capture_logs() as logs:
        at = await adopt(house, checkpoint=start_one)
    await house.append(*events(3))
    for replica in (one, *started):
        last = (await house.elements())[-1][0]
        assert await digest_at(replica, last) == await house.expected()
        assert replica.model("default").position.adopted == at
    assert [line["event"] for line in logs].count("a standby state is ready to be adopted") == 2
    assert not [line for line in logs if "halts" in line["event"]]


async def test_a_snapshot_that_comes_too_late_does_not_set_back_a_model_that_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is trimmed past a halted model, and its follower loads it anew while its shadow's task loads as well."""
    one = await house.replica(artifacts=False)
    await one.learn("default", drafts(40))
    living, model = await house.living(), one.model("default")
    async with adoption.begin(await house.place(prepare_seconds=0.01), "adoption") as this:
        await this.adopt(await house.index(model_of(30, 9), this.after), "a test")
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
        await house.append(*events(3, seed))
        await compact(house.store, living, SMALL, artifacts=house.artifacts)
    async with acquire(house.store, living.keys) as lease:
        await archive(ArchiveContext(house.store, house.artifacts, living, lease))
    await waiting.wait()
    one._follower.verify_soon()
    await until(lambda: model.ready)
    [*_, last] = await house.append(*events(3, 5))
    expected = await digest_at(one, last)
    gate.set()
    await asyncio.sleep(0.05)
    assert (model.offset, model.ready, model.resumes) == (last, True, False)
    assert await digest_at(one, last) == expected
    [*_, last] = await house.append(*events(3, 6))
    new = await house.replica(artifacts=False)
    assert await digest_at(one, last) == await digest_at(new, last)


async def test_a_halted_model_whose_log_has_lost_its_end_is_loaded_anew_whatever_goes_wrong_meanwhile(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left where it began: what was said of the state that went made it look as if it only waited."""
    one = await house.replica(artifacts=False)
    await one.learn("default", drafts(40))
    model = one.model("default")
    async with adoption.begin(await house.place(prepare_seconds=0.01), "adoption") as this:
        await this.adopt(await house.index(model_of(30, 9), this.after), "a test")
    await until(lambda: model.halted)
    kept = (await house.store.client.xrange(model.keys.log))[:-2]
    async with house.store.client.pipeline(transaction=True) as pipe:
        pipe.delete(model.keys.log)
        for name, fields in kept:
            pipe.xadd(model.keys.log, fields, id=name)
        await pipe.execute()
    restore, asked = loader.restore_newest, []

    async def away_at_first(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            model.reset()
            raise StoreUnavailable("the store is away")
        return await restore(*args, **kwargs)

    monkeypatch.setattr(loader, "restore_newest", away_at_first)
    one._follower.verify_soon()
    await until(lambda: model.ready)
    [*_, last] = await house.append(*events(3, 5))
    assert await digest_at(one, last) == await house.expected()
    assert len(asked) == 2


async def test_a_replica_that_is_not_ready_halts_before_the_adoption_and_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await house.replica()
    slow = await house.replica()
    gate = asyncio.Event()
    load = ReplaySource.load

    async def load_late(source: ReplaySource, *given: Any) -> Any:
        if source is slow._standbys._source:
            await gate.wait()
        return await load(source, *given)

    monkeypatch.setattr(ReplaySource, "load", load_late)
    await one.learn("default", drafts(40))
    at = await adopt(house, prepare_seconds=2)
    await one.learn("default", drafts(5, 77))
    await until(lambda: slow.model("default").halted is not None)
    assert slow.model("default").offset < at
    assert not slow.status().ready
    assert "adopted" in str(slow.status().reason)
    assert one.status().ready
    gate.set()
    last = one.model("default").offset
    assert await digest_at(slow, last) == await digest_at(one, last) == await house.expected()
    await until(lambda: slow.status().ready)


async def test_a_replica_without_the_artifact_store_goes_on_from_a_snapshot_past_the_adoption(house: House) -> None:
    one = await house.replica()
    blind = await house.replica(artifacts=False)
    await one.learn("default", drafts(40))
    place = await house.place(prepare_seconds=2)
    async with adoption.begin(place, "adoption") as this:
        at = await this.adopt(await house.index(model_of(30, 9), this.after), "a test")
        await until(lambda: "ABOUND_ARTIFACTS_URL" in str(blind.model("default").halted))
        await one.learn("default", drafts(5, 77))
        made = await adoption.snapshot_past(place, at)
    assert made.position.offset >= at
    await until(lambda: blind.status().ready)
    last = one.model("default").offset
    assert await digest_at(blind, last) == await digest_at(one, last) == await house.expected()
    assert blind.model("default").position.adopted == at


async def test_a_start_that_meets_an_adoption_without_its_index_waits_for_it(house: House) -> None:
    await house.append(*events(30))
    at = await adopt(house)
    living = await house.living()
    starting = asyncio.create_task(house.replica(artifacts=False))
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any("halts before" in line["event"] for line in logs))
    assert not starting.done()
    await adoption.snapshot_past(await house.place(), at)
    replica = await starting
    assert replica.status().ready
    assert replica.model("default").position.adopted == at
    assert replica.model("default").keys == living.keys


async def test_a_start_does_not_wait_for_an_adoption_that_the_store_has_lost(house: House) -> None:
    offsets = await house.append(*events(30))
    await adopt(house)
    log = (await house.living()).keys.log
    starting = asyncio.create_task(house.replica(artifacts=False))
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any("halts before" in line["event"] for line in logs))
    entries = await house.store.client.xrange(log)
    async with house.store.client.pipeline(transaction=True) as pipe:  # a failover to a copy that had not all of it
        pipe.delete(log)
        for entry_id, fields in entries:
            if Offset.of_entry(entry_id) < offsets[-1]:
                pipe.xadd(log, fields, id=entry_id)
        await pipe.execute()
    replica = await asyncio.wait_for(starting, 30)
    assert replica.model("default").live.n_learned == 29
    assert await digest_at(replica, offsets[-2]) == await house.expected()


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut off"])
async def test_an_index_that_cannot_be_read_is_not_adopted(house: House, damage: str) -> None:
    one = await house.replica()
    await one.learn("default", drafts(40))
    place = await house.place(prepare_seconds=1.0)
    async with adoption.begin(place, "adoption") as this:
        index = await house.index(model_of(30, 9), this.after)
        path = house.artifacts.path(state_files.file_name(place.keys, index.id, "0"))
        assert path is not None
        whole = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[:-1] + (bytes([whole[-1] ^ 1]) if damage == "flipped" else b""))
        with pytest.raises(UnknownArtifact if damage == "missing" else Corrupted):
            await this.adopt(index, "a test")
    await one.learn("default", drafts(5, 77))
    assert not [event for _, event in await house.elements() if isinstance(event, AdoptEvent)]
    await until(lambda: one.model("default").standby is None)
    assert await digest_at(one, one.model("default").offset) == await house.expected()
    assert one.status().ready
    at = await adopt(house, name="another")  # nothing is in its way
    await until(lambda: one.model("default").position.adopted == at)


async def test_a_shadow_counts_in_the_budget_before_it_is_loaded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await house.replica()
    await house.append(*events(200, 1))
    model = one.model("default")
    await until(lambda: model.live.n_learned == 200)
    size = model.live.n_bytes + model.live.growth_bytes
    monkeypatch.setattr(memory_budget, "LOOK_SECONDS", -1.0)
    narrow, wide = MemoryBudget(int(1.5 * size)), MemoryBudget(3 * size)
    narrow.check(model)
    may_load, load = asyncio.Event(), ReplaySource.load

    async def held_up(*given: Any) -> Any:
        await may_load.wait()
        return await load(*given)

    monkeypatch.setattr(ReplaySource, "load", held_up)
    async with adoption.begin(await house.place(), "a") as begun:
        index = await house.index(model_of(200, 2), begun.after)
        adopting = asyncio.create_task(begun.adopt(index, "r"))
        await until(lambda: model.standby is not None)
        with pytest.raises(Overloaded, match="the state that is being prepared") as refused:
            narrow.check(model)
        assert refused.value.retry_after > 1
        wide.check(model)
        may_load.set()
        at = await adopting
    await digest_at(one, at)
    assert model.n_standby_bytes == 0
    narrow.check(model)


async def test_an_adoption_that_is_given_up_leaves_nothing(house: House) -> None:
    one = await house.replica()
    await one.learn("default", drafts(40))

    async def stop() -> None:
        if one.model("default").prepared_state is not None:
            raise Cancelled("told to stop")

    with pytest.raises(Cancelled):
        await adopt(house, checkpoint=stop)
    await until(lambda: one.model("default").standby is None)
    assert [type(event) for _, event in await house.elements()][-1] is PrepareEvent
    assert await digest_at(one, one.model("default").offset) == await house.expected()


async def test_two_adoptions_at_one_time_are_refused(house: House) -> None:
    await house.append(*events(3))
    place = await house.place()
    async with adoption.begin(place, "one") as one:
        with pytest.raises(Conflict, match="another rebuild"):
            async with adoption.begin(place, "two"):
                pass
        index = await house.index(model_of(5, 1), one.after)
        await house.store.client.delete(place.keys.key("adoption-lease"))  # it was taken for dead
        async with adoption.begin(place, "two"):
            with pytest.raises(LeaseLost):
                await one.adopt(index, "late")
    assert len(await house.elements()) == 3


@pytest.mark.parametrize("lost", ["the entry that the index stands for", "the name of the artifact store"])
async def test_an_index_of_what_a_failover_has_lost_is_not_adopted(house: House, lost: str) -> None:
    await house.append(*events(3))
    place = await house.place()

    async def lose(folder: str) -> None:
        if lost.startswith("the entry"):
            assert await house.store.client.xdel(place.keys.log, one.after.entry) == 1
        else:
            assert await house.store.client.delete(ARTIFACTS_KEY) == 1
            await ArtifactStore(house.artifacts.url).join(house.store)

    async with adoption.begin(await house.place(commit=lose), "one") as one:
        index = await house.index(model_of(5, 1), one.after)
        with pytest.raises(Conflict, match="the store has lost"):
            await one.adopt(index, "too late")
    assert not [event for _, event in await house.elements() if isinstance(event, AdoptEvent)]


async def test_what_scripts_write_at_once_lies_together_on_a_cluster(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bytes, ...]] = []
    run = house.store.client.eval

    async def told(script: str, n: int, *words: Any) -> Any:
        asked.append(words[:n])
        return await run(script, n, *words)

    monkeypatch.setattr(house.store.client, "eval", told)
    await house.append(*events(3))
    await adopt(house)
    tag = (await house.living()).keys.log.rpartition(b":")[0]
    assert len(asked) > 3
    assert [keys for keys in asked if any(not key.startswith(tag) for key in keys)] == []


async def test_an_index_of_what_was_trimmed_meanwhile_is_adopted(house: House) -> None:
    await house.append(*events(3))
    place = await house.place()
    async with adoption.begin(place, "one") as one:
        index = await house.index(model_of(5, 1), one.after)
        await house.append(*events(2, 7))
        trim = Trim(one.after, 3, 100)
        await house.store.client.set(trimmed_key(place.keys.log), trim.packed())
        assert await house.store.client.xtrim(
            place.keys.log, minid=f"{one.after.milliseconds}-{one.after.sequence + 1}", approximate=False
        )
        await one.adopt(index, "in time")
    assert [event.index for _, event in await house.elements() if isinstance(event, AdoptEvent)] == [index.id]


async def test_of_two_adoptions_the_first_one_stays(house: House) -> None:
    """As after a store that was away when the first one's ``Adopt`` was appended, which is then sent again."""
    await house.append(*events(20))
    after = (await house.elements())[-1][0]
    first = await house.index(model_of(30, 9), after)
    second = await house.index(model_of(30, 10), after)
    await house.append(*events(5, 2))
    (at,) = await house.append(AdoptEvent("a", first.id, first.offset, first.digest))
    await house.append(
        *events(5, 3),
        AdoptEvent("a", first.id, first.offset, first.digest),
        AdoptEvent("b", second.id, second.offset, second.digest),
        *events(5, 4),
    )
    model = await rebuild(house.store, await house.living(), artifacts=house.artifacts)
    assert model.position.adopted == at
    assert await model.compute_digest() == await house.expected()
    assert model.live.n_learned == 45


@pytest.mark.parametrize("last", ["none", "other"])
async def test_an_adoption_whose_reply_was_lost_is_appended_once(house: House, tmp_path: Path, last: str) -> None:
    await house.append(*events(5))
    if last == "other":
        await adopt(house, seed=3, name="other")
    proxy = Proxy(tmp_path / "proxy", house.server.socket)
    await proxy.start()
    store = Store(proxy.url, QUICK)
    try:
        proxy.lose_replies_to = b"\xa5adopt"
        at = await adopt(house, store=store)
        assert proxy.lose_replies_to is None
    finally:
        await store.close()
        await proxy.stop()
    assert [where for where, event in await house.elements() if isinstance(event, AdoptEvent)][-1] == at
    made = await adoption.snapshot_past(await house.place(), at)
    assert made.position.adopted == at
    model = await rebuild(house.store, await house.living(), artifacts=house.artifacts)
    assert await model.compute_digest() == await house.expected()


async def test_an_adoption_that_would_be_passed_over_is_not_appended(house: House) -> None:
    """As after another one, while this was taken for dead and was not."""
    await house.append(*events(5))
    place = await house.place()
    async with adoption.begin(place, "late") as late:
        index = await house.index(model_of(5, 1), late.after)
        assert await house.store.client.delete(place.keys.key("adoption-lease")) == 1
        at = await adopt(house, name="other")
        with pytest.raises(LeaseLost):
            await late.adopt(index, "late")
    async with adoption.begin(place, "late") as again:
        again.after = late.after
        with pytest.raises(Conflict, match="came first"):
            await again.adopt(index, "late")
    assert [where for where, event in await house.elements() if isinstance(event, AdoptEvent)] == [at]


async def test_a_shadow_of_an_adoption_that_never_came_does_not_keep_a_replica_from_the_next(house: House) -> None:
    """As after a store that has lost the end of one adoption, and let another one begin."""
    one = await house.replica()
    await one.learn("default", drafts(20))
    after = one.model("default").offset
    never, next_ = [await house.index(model_of(30, seed), after) for seed in (9, 10)]
    place = await house.place()
    prepare = PrepareEvent("never", never.id, never.offset, never.digest)
    async with acquire(house.store, place.keys, purpose=ADOPTION) as lease:
        await lease.renew(msgspec.json.encode(prepare))
        await until(lambda: one.model("default").prepared_state == never.id)
        (at,) = await house.append(AdoptEvent("next", next_.id, next_.offset, next_.digest))
        assert await digest_at(one, at) == await house.expected()
        await until(lambda: one.status().ready)


async def test_what_the_log_has_of_an_adoption_is_found_again(house: House) -> None:
    await house.append(*events(3))
    place = await house.place()
    assert await adoption.find_adoption(place, "adoption", START) is None
    at = await adopt(house)
    found = await adoption.find_adoption(place, "adoption", START)
    assert found is not None
    assert found[1] == at
    assert await adoption.find_adoption(place, "other", START) is None


async def test_without_an_artifact_store_nothing_is_rebuilt_over_an_adoption(house: House) -> None:
    await house.append(*events(30))
    await adopt(house)
    with pytest.raises(ArtifactsUnavailable, match="ABOUND_ARTIFACTS_URL"):
        await rebuild(house.store, await house.living())


async def test_a_store_that_goes_away_before_the_adoption_leaves_the_model_as_it_was(
    own_server: Server, tmp_path: Path
) -> None:
    warmup()
    house = House(own_server, tmp_path)
    await house.open()
    try:
        one = await house.replica()
        await one.learn("default", drafts(40))

        async def go_away() -> None:
            if one.model("default").prepared_state is not None and own_server.process is not None:
                own_server.kill()

        with pytest.raises(StoreUnavailable):
            await adopt(house, checkpoint=go_away)
        own_server.start()
        await until(lambda: one.status().log == "connected" and one.status().ready)
        assert await digest_at(one, one.model("default").offset) == await house.expected()
        await house.store.client.delete((await house.living()).keys.key("adoption-lease"))  # it has expired
        at = await adopt(house)  # begun again under its name
        await until(lambda: one.model("default").position.adopted == at)
    finally:
        await house.close()


async def test_an_adoption_gets_through_to_a_store_that_comes_back(own_server: Server, tmp_path: Path) -> None:
    warmup()
    house = House(own_server, tmp_path)
    await house.open()
    try:
        one, other = await house.replica(), await house.replica()
        await one.learn("default", drafts(40))
        coming = []

        async def come_back() -> None:
            await until(lambda: one.status().log == "cut off")
            own_server.start()

        async def go_away(*_: str) -> None:
            own_server.kill()
            coming.append(asyncio.create_task(come_back()))

        at = await adopt(house, commit=go_away)
        await asyncio.gather(*coming)
        last = (await house.elements())[-1][0]
        for replica in (one, other):
            await until(lambda replica=replica: replica.model("default").position.adopted == at)
            assert await digest_at(replica, last) == await house.expected()
    finally:
        await house.close()
