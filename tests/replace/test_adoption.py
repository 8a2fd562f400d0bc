"""An adoption: what it refuses, and what happens when the store or another adoption comes in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abound.artifacts.artifact_store import ARTIFACTS_KEY, ArtifactStore
from abound.history.archive import ArchiveContext, restart_history
from abound.history.replay import compact, replay
from abound.log.events import AdoptEvent, PrepareEvent
from abound.log.stream import Trim, trimmed_key
from abound.replace import adoption
from abound.replica import standbys
from abound.store.client import Store
from abound.store.lease import ADOPTION, LeaseLost, acquire
from abound_core.errors import (
    ArtifactsUnavailable,
    Cancelled,
    Conflict,
    NotReady,
    StoreUnavailable,
)
from abound_core.model.live_model import warmup
from abound_core.types import START, Offset
from tests.support.lab import SMALL, Lab, adopt, digest_at, events, model_of
from tests.support.proxy import Proxy
from tests.support.replicas import until
from tests.support.streams import drafts
from tests.support.valkey import Server


async def test_an_adoption_that_is_given_up_leaves_nothing(lab: Lab) -> None:
    one = await lab.replica()
    await one.learn("default", drafts(40))

    async def stop() -> None:
        if one.model("default").prepared_state is not None:
            raise Cancelled("told to stop")

    with pytest.raises(Cancelled):
        await adopt(lab, checkpoint=stop)
    await until(lambda: one.model("default").standby is None)
    assert [type(event) for _, event in await lab.elements()][-1] is PrepareEvent
    assert await digest_at(one, one.model("default").offset) == await lab.expected()


async def test_two_adoptions_at_one_time_are_refused(lab: Lab) -> None:
    await lab.append(*events(3))
    place = await lab.place()
    async with adoption.begin(place, "one") as one:
        with pytest.raises(Conflict, match="another rebuild"):
            async with adoption.begin(place, "two"):
                pass
        index = await lab.index(model_of(5, 1), one.after)
        await lab.store.client.delete(place.keys.key("adoption-lease"))  # it was taken for dead
        async with adoption.begin(place, "two"):
            with pytest.raises(LeaseLost):
                await one.adopt(index, "late")
    assert len(await lab.elements()) == 3


@pytest.mark.parametrize("lost", ["the entry that the index stands for", "the name of the artifact store"])
async def test_an_index_of_what_a_failover_has_lost_is_not_adopted(lab: Lab, lost: str) -> None:
    await lab.append(*events(3))
    place = await lab.place()

    async def lose(folder: str) -> None:
        if lost.startswith("the entry"):
            assert await lab.store.client.xdel(place.keys.log, one.after.entry) == 1
        else:
            assert await lab.store.client.delete(ARTIFACTS_KEY) == 1
            await ArtifactStore(lab.artifacts.url).join(lab.store)

    async with adoption.begin(await lab.place(commit=lose), "one") as one:
        index = await lab.index(model_of(5, 1), one.after)
        with pytest.raises(Conflict, match="the store has lost"):
            await one.adopt(index, "too late")
    assert not [event for _, event in await lab.elements() if isinstance(event, AdoptEvent)]


async def test_what_scripts_write_at_once_lies_together_on_a_cluster(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, ...]] = []
    run = lab.store.client.eval

    async def told(script: str, n: int, *words: Any) -> Any:
        asked.append(words[:n])
        return await run(script, n, *words)

    monkeypatch.setattr(lab.store.client, "eval", told)
    await lab.append(*events(3))
    await adopt(lab)
    tag = (await lab.living()).keys.log.rpartition(b":")[0]
    assert len(asked) > 3
    assert [keys for keys in asked if any(not key.startswith(tag) for key in keys)] == []


async def test_an_index_of_what_was_trimmed_meanwhile_is_adopted(lab: Lab) -> None:
    await lab.append(*events(3))
    place = await lab.place()
    async with adoption.begin(place, "one") as one:
        index = await lab.index(model_of(5, 1), one.after)
        await lab.append(*events(2, 7))
        trim = Trim(one.after, 3, 100)
        await lab.store.client.set(trimmed_key(place.keys.log), trim.packed())
        assert await lab.store.client.xtrim(
            place.keys.log, minid=f"{one.after.milliseconds}-{one.after.sequence + 1}", approximate=False
        )
        await one.adopt(index, "in time")
    assert [event.index for _, event in await lab.elements() if isinstance(event, AdoptEvent)] == [index.id]


async def test_of_two_adoptions_the_first_one_stays(lab: Lab) -> None:
    """As after a store that was away when the first one's ``Adopt`` was appended, which is then sent again."""
    await lab.append(*events(20))
    after = (await lab.elements())[-1][0]
    first = await lab.index(model_of(30, 9), after)
    second = await lab.index(model_of(30, 10), after)
    await lab.append(*events(5, 2))
    (at,) = await lab.append(AdoptEvent("a", first.id, first.offset, first.digest))
    await lab.append(
        *events(5, 3),
        AdoptEvent("a", first.id, first.offset, first.digest),
        AdoptEvent("b", second.id, second.offset, second.digest),
        *events(5, 4),
    )
    model = await replay(lab.store, await lab.living(), artifacts=lab.artifacts)
    assert model.position.adopted == at
    assert await model.compute_digest() == await lab.expected()
    assert model.live.n_learned == 45


@pytest.mark.parametrize("last", ["none", "other"])
async def test_an_adoption_whose_reply_was_lost_is_appended_once(lab: Lab, tmp_path: Path, last: str) -> None:
    await lab.append(*events(5))
    if last == "other":
        await adopt(lab, seed=3, name="other")
    proxy = Proxy(tmp_path / "proxy", lab.server.socket)
    await proxy.start()
    store = Store(proxy.url, lab.server.store_params)
    try:
        proxy.lose_replies_to = b"\xa5adopt"
        at = await adopt(lab, store=store)
        assert proxy.lose_replies_to is None
    finally:
        await store.close()
        await proxy.stop()
    assert [where for where, event in await lab.elements() if isinstance(event, AdoptEvent)][-1] == at
    made = await adoption.snapshot_past(await lab.place(), at)
    assert made.position.adopted == at
    model = await replay(lab.store, await lab.living(), artifacts=lab.artifacts)
    assert await model.compute_digest() == await lab.expected()


async def test_an_adoption_that_would_be_passed_over_is_not_appended(lab: Lab) -> None:
    """As after another one, while this was taken for dead and was not."""
    await lab.append(*events(5))
    place = await lab.place()
    async with adoption.begin(place, "late") as late:
        index = await lab.index(model_of(5, 1), late.after)
        assert await lab.store.client.delete(place.keys.key("adoption-lease")) == 1
        at = await adopt(lab, name="other")
        with pytest.raises(LeaseLost):
            await late.adopt(index, "late")
    async with adoption.begin(place, "late") as again:
        again.after = late.after
        with pytest.raises(Conflict, match="came first"):
            await again.adopt(index, "late")
    assert [where for where, event in await lab.elements() if isinstance(event, AdoptEvent)] == [at]


async def test_a_shadow_of_an_adoption_that_never_came_does_not_keep_a_replica_from_the_next(lab: Lab) -> None:
    """As after a store that has lost the end of one adoption, and let another one begin."""
    one = await lab.replica()
    await one.learn("default", drafts(20))
    after = one.model("default").offset
    never, next_ = [await lab.index(model_of(30, seed), after) for seed in (9, 10)]
    place = await lab.place()
    prepare = PrepareEvent("never", never.id, never.offset, never.digest)
    async with acquire(lab.store, place.keys, purpose=ADOPTION) as lease:
        await lease.renew(msgspec.json.encode(prepare))
        await until(lambda: one.model("default").prepared_state == never.id)
        (at,) = await lab.append(AdoptEvent("next", next_.id, next_.offset, next_.digest))
        assert await digest_at(one, at) == await lab.expected()
        await until(lambda: one.status().ready)


async def test_a_replica_without_memory_for_the_state_of_an_adoption_tries_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await lab.replica()
    await one.learn("default", drafts(20))
    index = await lab.index(model_of(30, 9), one.model("default").offset)

    async def fail(*given: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as full:
        full.setattr(standbys, "bring_up", fail)
        full.setattr(standbys, "load_past", fail)
        (at,) = await lab.append(AdoptEvent("index", index.id, index.offset, index.digest))
        await until(lambda: "MemoryError" in str(one.model("default").halted))
    assert await digest_at(one, at) == await lab.expected()
    await until(lambda: one.status().ready)


async def test_what_the_log_has_of_an_adoption_is_found_again(lab: Lab) -> None:
    await lab.append(*events(3))
    place = await lab.place()
    assert await adoption.find_adoption(place, "adoption", START) is None
    at = await adopt(lab)
    found = await adoption.find_adoption(place, "adoption", START)
    assert found is not None
    assert found[1] == at
    assert await adoption.find_adoption(place, "other", START) is None


async def test_without_an_artifact_store_nothing_is_rebuilt_over_an_adoption(lab: Lab) -> None:
    await lab.append(*events(30))
    await adopt(lab)
    with pytest.raises(ArtifactsUnavailable, match="ABOUND_ARTIFACTS_URL"):
        await replay(lab.store, await lab.living())


async def test_a_store_that_goes_away_before_the_adoption_leaves_the_model_as_it_was(
    own_server: Server, tmp_path: Path
) -> None:
    warmup()
    lab = Lab(own_server, tmp_path)
    await lab.open()
    try:
        one = await lab.replica()
        await one.learn("default", drafts(40))

        async def go_away() -> None:
            if one.model("default").prepared_state is not None and own_server.process is not None:
                own_server.kill()

        with pytest.raises(StoreUnavailable):
            await adopt(lab, checkpoint=go_away)
        own_server.start()
        await until(lambda: one.status().log == "connected" and one.status().ready)
        assert await digest_at(one, one.model("default").offset) == await lab.expected()
        await lab.store.client.delete((await lab.living()).keys.key("adoption-lease"))  # it has expired
        at = await adopt(lab)  # begun again under its name
        await until(lambda: one.model("default").position.adopted == at)
    finally:
        await lab.close()


async def test_an_adoption_gets_through_to_a_store_that_comes_back(own_server: Server, tmp_path: Path) -> None:
    warmup()
    lab = Lab(own_server, tmp_path)
    await lab.open()
    try:
        one, other = await lab.replica(), await lab.replica()
        await one.learn("default", drafts(40))
        coming = []

        async def come_back() -> None:
            await until(lambda: one.status().log == "cut off")
            own_server.start()

        async def go_away(*_: str) -> None:
            own_server.kill()
            coming.append(asyncio.create_task(come_back()))

        at = await adopt(lab, commit=go_away)
        await asyncio.gather(*coming)
        last = (await lab.elements())[-1][0]
        for replica in (one, other):
            await until(lambda replica=replica: replica.model("default").position.adopted == at)
            assert await digest_at(replica, last) == await lab.expected()
    finally:
        await lab.close()


async def test_history_does_not_begin_anew_past_what_an_adoption_replays(lab: Lab) -> None:
    await lab.append(*events(20))
    place = await lab.place()
    living = place.living

    async def begin_anew() -> Offset:
        async with acquire(lab.store, living.keys) as lease:
            return (await restart_history(ArchiveContext(lab.store, lab.artifacts, living, lease))).start

    async with adoption.begin(place, "one") as one:
        index = await lab.index(model_of(30, 9), one.after)
        for seed in (2, 3):
            await lab.append(*events(5, seed))
            await compact(lab.store, living, SMALL, artifacts=lab.artifacts)
        with pytest.raises(Conflict, match="another rebuild"):
            await begin_anew()
        at = await one.adopt(index, "a test")
    with pytest.raises(NotReady, match="after the next snapshot"):
        await begin_anew()
    made = await adoption.snapshot_past(place, at)
    await lab.append(*events(5, 4))
    expected = await lab.expected()
    assert await begin_anew() == made.position.offset
    for from_start in (False, True):
        model = await replay(lab.store, living, from_start=from_start, artifacts=lab.artifacts)
        assert await model.compute_digest() == expected
