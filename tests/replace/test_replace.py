"""Replacing a model beside those who learn: nothing is lost or doubled, wherever it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from abound.history.verify import verify
from abound.jobs.replace import RestoreParams, UndoParams, refit, restore, undo
from abound.log import stream
from abound.log.catalog import DEFAULT_MODEL, read_catalog
from abound.replace import replace
from abound.replace.copying import Copy, Past
from abound.replace.refit import RefitParams
from abound.replace.replace import Replacement, end_abandoned, replace_model
from abound.replica.follower import Follower
from abound.replica.replica import Replica
from abound.store.raw_connection import StoreConnection
from abound.tasks import wait_until
from abound_core.errors import Cancelled, Conflict, NotReady, StoreUnavailable, UnknownModel
from abound_core.types import Offset
from tests.support.lab import Lab, digest_at, events, learning, model_of, replace_by
from tests.support.replace_context import Context, archived, end_of, keyed, of_history, run, same, teach, without
from tests.support.replicas import until
from tests.support.streams import drafts


async def same_again(replacement: Replacement) -> Past:
    """A replacement by the same: the model as it is."""
    from abound.history.replay import replay

    place = replacement.context
    model = await replay(place.store, replacement.living, replacement.after, artifacts=place.artifacts)
    return Past(model=model, source=replacement.living, tail_after=replacement.after)


async def test_requests_go_on_and_none_is_lost_or_doubled(lab: Lab) -> None:
    replicas = [await lab.replica() for _ in range(3)]
    await teach(lab, *events(50, 1))
    learned: list[Offset] = []
    stop = asyncio.Event()

    async def learn(replica: Replica, seed: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            [one] = await replica.learn(DEFAULT_MODEL, drafts(1, 1000 * seed + number), timeout=30)
            assert one.applied
            learned.append(one.offset)

    users = [asyncio.create_task(learn(replicas[i % 3], i)) for i in range(9)]
    for number in range(5):
        await replace_model(await lab.context(f"job{number}"), same_again, "again")
    stop.set()
    await asyncio.gather(*users)
    assert len(set(learned)) == len(learned)
    end = await end_of(lab)
    digests = {await digest_at(one, end) for one in replicas}
    assert len(digests) == 1
    assert {one.model(DEFAULT_MODEL).live.n_learned for one in replicas} == {50 + len(learned)}
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


async def test_a_request_waits_while_the_log_is_closed_and_is_refused_after_two_seconds(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await lab.replica()
    await teach(lab, *events(5, 1))
    closed, go_on = asyncio.Event(), asyncio.Event()
    finish = Copy.finish

    async def slow(self: Copy, at: Offset) -> None:
        closed.set()
        await go_on.wait()
        await finish(self, at)

    monkeypatch.setattr(Copy, "finish", slow)
    replacing = asyncio.create_task(replace_model(await lab.context(), same_again, "again"))
    await closed.wait()
    with pytest.raises(NotReady, match="is being replaced; nothing was learned") as refused:
        await one.learn(DEFAULT_MODEL, drafts(1, 2))
    assert refused.value.retry_after is not None
    waits = asyncio.ensure_future(one.learn(DEFAULT_MODEL, drafts(2, 3)))
    await asyncio.sleep(0.1)
    assert one.model(DEFAULT_MODEL).live.rank(drafts(1)[0].records, 3) is not None  # it answers meanwhile
    go_on.set()
    await replacing
    (learned,) = [await waits][:1]
    assert all(outcome.applied for outcome in learned)
    assert one.model(DEFAULT_MODEL).live.n_learned == 7


DIES: dict[str, Callable[[pytest.MonkeyPatch, Any], None]] = {
    "when it has begun": lambda patch, die: patch.setattr(Copy, "write", die),
    "while replicas load": lambda patch, die: patch.setattr(replace, "_until_loaded", die),
    "when the log is closed": lambda patch, die: patch.setattr(Copy, "finish", die),
    "when both logs are the same": lambda patch, die: patch.setattr(replace, "replace_log", die),
}


class Died(BaseException):
    """As if the process had died here."""


@pytest.mark.parametrize("ended_by", ["a worker", "the next one"])
@pytest.mark.parametrize("when", DIES)
async def test_a_replacement_that_dies_changes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, when: str, ended_by: str
) -> None:
    one = await lab.replica()
    await teach(lab, *events(20, 1))
    await archived(lab)
    before = await lab.living()

    async def die(*_: Any) -> None:
        raise Died

    async def nothing(*_: Any) -> bool:
        return False

    with monkeypatch.context() as patch:
        DIES[when](patch, die)
        patch.setattr(replace, "_end_unfinished", nothing)
        with pytest.raises(Died):
            await replace_by(lab, model_of(3, 5), "died")
    assert await lab.living() == before
    assert DEFAULT_MODEL in (await read_catalog(lab.store)).coming
    if ended_by == "a worker":
        assert await end_abandoned(lab.store, await read_catalog(lab.store), DEFAULT_MODEL)
    else:
        await replace_model(await lab.context("next"), same_again, "again")
    assert DEFAULT_MODEL not in (await read_catalog(lab.store)).coming
    await one.learn(DEFAULT_MODEL, drafts(3, 9))
    assert one.model(DEFAULT_MODEL).live.n_learned == 23
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


@pytest.mark.parametrize("when", DIES)
async def test_a_replacement_that_fails_opens_the_log_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    one = await lab.replica()
    await teach(lab, *events(5, 1))

    async def fail(*_: Any) -> None:
        raise Cancelled("the job was told to stop")

    with monkeypatch.context() as patch:
        DIES[when](patch, fail)
        with pytest.raises(Cancelled):
            await replace_by(lab, model_of(3, 5))
    await one.learn(DEFAULT_MODEL, drafts(2, 9))
    assert one.model(DEFAULT_MODEL).live.n_learned == 7


async def test_a_late_process_cannot_replace_the_model(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was suspended when both logs were the same, and another one has opened the log since."""
    one = await lab.replica()
    await teach(lab, *events(5, 1))
    replace_log, reached, go_on = replace.replace_log, asyncio.Event(), asyncio.Event()

    async def late(*given: Any) -> None:
        reached.set()
        await go_on.wait()
        await replace_log(*given)

    monkeypatch.setattr(replace, "replace_log", late)
    replacing = asyncio.create_task(replace_by(lab, model_of(3, 5)))
    await reached.wait()
    keys = (await lab.living()).keys
    await lab.store.client.delete(keys.key("replacement-lease"))  # it has expired
    assert await end_abandoned(lab.store, await read_catalog(lab.store), DEFAULT_MODEL)
    await one.learn(DEFAULT_MODEL, drafts(2, 9))
    go_on.set()
    with pytest.raises(Conflict):
        await replacing
    assert (await lab.living()).keys == keys
    assert one.model(DEFAULT_MODEL).live.n_learned == 7


@pytest.mark.parametrize("lost", ["the old log", "the new log"])
async def test_a_store_that_has_lost_the_end_of_a_log_refuses(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    one = await lab.replica()
    await teach(lab, *events(5, 1))
    finish = Copy.finish

    async def lose(self: Copy, at: Offset) -> None:
        await finish(self, at)
        keys = (await lab.living()).keys
        coming = (await read_catalog(lab.store)).coming[DEFAULT_MODEL].keys
        if lost == "the old log":  # a failover has lost that it was closed, and it went on
            await lab.store.client.execute_command("XSETID", keys.log, at.entry)
            await lab.append(*events(1, 7))
        else:
            await lab.store.client.xdel(coming.log, at.entry)

    monkeypatch.setattr(Copy, "finish", lose)
    with pytest.raises(Conflict, match="has lost the newest entries"):
        await replace_by(lab, model_of(3, 5))
    await one.learn(DEFAULT_MODEL, drafts(2, 9))
    assert one.model(DEFAULT_MODEL).live.n_learned == (8 if lost == "the old log" else 7)


async def test_two_at_once_come_one_after_the_other(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(20, 1))
    await teach(lab, *events(20, 2))
    await asyncio.gather(
        run(lab, restore, RestoreParams(to=str(early[-1]), reason="r"), job="restore"),
        run(lab, refit, RefitParams(search={}, passes=2), job="refit"),
    )
    await digest_at(one, await end_of(lab))
    assert one.model(DEFAULT_MODEL).live.n_learned == 20
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


async def test_a_model_that_is_deleted_meanwhile_stays_deleted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await lab.replica()
    await one.models.create("m", one.model(DEFAULT_MODEL).live.config)
    finish = Copy.finish

    async def delete(self: Copy, at: Offset) -> None:
        await finish(self, at)
        await one.models.delete("m")

    monkeypatch.setattr(Copy, "finish", delete)
    living = (await read_catalog(lab.store)).get("m")
    assert living is not None
    with pytest.raises((UnknownModel, Conflict)):
        await replace_model(await lab.context(name="m", origin=living.origin), same_again, "again")
    assert one.models.names() == [DEFAULT_MODEL]
    assert "m" not in (await read_catalog(lab.store)).coming


async def test_a_delete_that_does_not_know_of_the_replacement_deletes_the_model(lab: Lab) -> None:
    one, other = await lab.replica(), await lab.replica()
    await one.models.create("m", one.model(DEFAULT_MODEL).live.config)
    await until(lambda: "m" in other.models.names())
    living = (await read_catalog(lab.store)).get("m")
    assert living is not None
    await replace_model(await lab.context(name="m", origin=living.origin), same_again, "again")
    await one.models.delete("m")
    assert one.models.names() == [DEFAULT_MODEL]


async def test_replicas_that_start_at_any_moment_serve_the_same(lab: Lab) -> None:
    one = await lab.replica()
    await teach(lab, *events(40, 1))
    started: list[Replica] = []

    async def start(stage: str) -> None:
        started.append(await lab.replica())

    waiting: list[asyncio.Task[None]] = []
    context = await lab.context(progress=lambda stage, done: waiting.append(asyncio.ensure_future(start(stage))))
    async with learning(one):
        await replace_model(context, same_again, "again")
        await asyncio.gather(*waiting)
    end = await end_of(lab)
    assert len(started) >= 2
    assert len({await digest_at(replica, end) for replica in (one, *started)}) == 1


async def test_a_replica_that_has_not_loaded_it_in_time_is_not_ready_until_it_has(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await lab.replica()
    await teach(lab, *events(5, 1))
    load, may_load = one._follower.incoming._loader.load, asyncio.Event()

    async def slow(*given: Any) -> None:
        await may_load.wait()
        await load(*given)

    monkeypatch.setattr(one._follower.incoming._loader, "load", slow)
    replacing = asyncio.create_task(replace_model(await lab.context(prepare_seconds=0.3), same_again, "again"))
    await until(lambda: not one.model(DEFAULT_MODEL).ready)
    with pytest.raises(NotReady):
        await one.learn(DEFAULT_MODEL, drafts(1))
    may_load.set()
    await until(lambda: one.model(DEFAULT_MODEL).ready)
    await replacing
    await one.learn(DEFAULT_MODEL, drafts(1))
    assert one.model(DEFAULT_MODEL).live.n_learned == 6


async def test_offsets_keep_their_order_and_keys_their_answers(lab: Lab) -> None:
    one = await lab.replica()
    keyed_draft = msgspec.structs.replace(drafts(1, 1)[0], key="k", body=b"body")
    await one.learn(DEFAULT_MODEL, [keyed_draft])
    (before,) = await one.learn(DEFAULT_MODEL, drafts(1, 2))
    await replace_model(await lab.context(), same_again, "again")
    (again,) = await one.learn(DEFAULT_MODEL, [keyed_draft])
    (after,) = await one.learn(DEFAULT_MODEL, drafts(1, 3))
    assert again.offset < before.offset < after.offset
    await one.wait_for(DEFAULT_MODEL, before.offset, 1)
    assert one.model(DEFAULT_MODEL).live.n_learned == 3
    trim = await stream.trim_of(lab.store, one.model(DEFAULT_MODEL).keys.log)
    assert not trim.is_past(one.model(DEFAULT_MODEL).offset)


async def test_an_undo_brings_back_what_was_replaced_and_keeps_what_came_since(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(20, 1))
    await teach(lab, *events(20, 2))
    with pytest.raises(Conflict, match="nothing to undo"):
        await run(lab, undo, UndoParams(), job="too early")
    await run(lab, restore, RestoreParams(to=str(early[-1]), reason="r"), job="restore")
    await teach(lab, *events(5, 3))
    await run(lab, undo, UndoParams(), job="undo")
    await same(lab, one, await without(lab, lambda unit, at: False))
    await run(lab, undo, UndoParams(), job="redo")
    await same(lab, one, await without(lab, lambda unit, at: early[-1] < at <= lab.past[39][0]))


async def test_a_large_model_is_not_kept_for_an_undo(lab: Lab) -> None:
    await teach(lab, *events(20, 1))
    await replace_model(await lab.context(undo_bytes=10), same_again, "again")
    assert DEFAULT_MODEL not in (await read_catalog(lab.store)).former


async def test_history_is_linked_and_not_written_again(lab: Lab) -> None:
    await lab.replica()
    await teach(lab, *events(200, 1))
    await archived(lab)
    await teach(lab, *events(10, 2))
    before = await lab.living()
    files = {path.stat().st_ino for path in lab.folder.rglob("*.seg")}
    await run(lab, refit, RefitParams(search={}, passes=2), job="refit")
    own = {path.stat().st_ino for path in lab.folder.rglob(f"{(await lab.living()).keys.incarnation}/history/*.seg")}
    assert before.keys != (await lab.living()).keys
    assert files <= own
    assert len(own) == len(files) + 1  # what was in the log only
    learned = [event for event in await of_history(lab) if getattr(event, "units", None)]
    assert len(learned) == 210


async def test_a_job_that_was_done_is_not_done_again(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(20, 1))
    params = RestoreParams(to=str(early[9]), reason="r")
    context = Context(lab, await lab.living())
    await restore(cast("Any", context), params, context.progress)
    await teach(lab, *events(1, 3))
    again = Context(lab, await lab.living(), committed=True, outcome=context.job.outcome)
    await restore(cast("Any", again), params, again.progress)
    await digest_at(one, await end_of(lab))
    assert one.model(DEFAULT_MODEL).live.n_learned == 11


async def test_a_store_that_is_away_for_a_moment_does_not_end_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await lab.replica()
    await teach(lab, *keyed(5, 1, "k"))
    close, n = replace.close_log, 0

    async def flaky(*given: Any) -> Offset:
        nonlocal n
        n += 1
        at = await close(*given)
        if n == 1:
            raise StoreUnavailable("the reply was lost")
        return at

    monkeypatch.setattr(replace, "close_log", flaky)
    monkeypatch.setattr(replace, "RETRY_SECONDS", 0.01)
    await replace_model(await lab.context(), same_again, "again")
    assert n == 2
    await one.learn(DEFAULT_MODEL, drafts(1, 3))
    assert one.model(DEFAULT_MODEL).live.n_learned == 6


async def test_what_a_switch_has_read_is_not_applied_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that was busy reads the switch and the rest of the new log in one reply."""
    one = await lab.replica()
    await teach(lab, *events(5, 1))
    read_once, go_on = Follower._read_once, asyncio.Event()
    go_on.set()

    async def busy(self: Follower, connection: StoreConnection) -> None:
        await go_on.wait()
        await read_once(self, connection)

    monkeypatch.setattr(Follower, "_read_once", busy)
    before = await lab.living()

    async def commit() -> None:
        go_on.clear()
        await lab.append(*events(3, 2))

    async def release() -> None:
        async def is_replaced() -> bool:
            return (await read_catalog(lab.store)).get(DEFAULT_MODEL) != before

        assert await wait_until(is_replaced, 0.01, 30)
        go_on.set()

    releasing = asyncio.create_task(release())
    await replace_model(await lab.context(commit=commit), same_again, "again")
    await releasing
    await digest_at(one, await end_of(lab))
    assert one.model(DEFAULT_MODEL).live.n_learned == 8
