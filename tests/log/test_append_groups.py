"""Requests at one time share entries; a batch is one entry."""

from __future__ import annotations

import asyncio

from abound.log.append_group import LearnOutcome
from abound.replica.replica import Replica
from abound_core.errors import OutcomeUnknown, StoreUnavailable
from tests.log.conftest import learn, length
from tests.support.fixtures import StartReplica
from tests.support.proxy import Proxy
from tests.support.streams import batch, draft, drafts
from tests.support.valkey import Server


async def test_requests_at_one_time_share_entries(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    learned = await asyncio.gather(*(learn(replica, one) for one in drafts(200)))
    assert await length(replica) < 20
    offsets = [one.offset for one in learned]
    assert len(set(offsets)) == 200
    assert offsets == sorted(offsets)
    assert all(one.applied and one.durability == "log" and one.ranks is not None for one in learned)
    assert max(offsets) == replica.model("default").offset
    assert replica.model("default").live.n_learned == 200


async def test_a_batch_is_one_entry_and_its_instances_follow_each_other(
    server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(server)
    one, whole, other = await replica.learn("default", [draft('{"a": 1}', "x"), batch(100), draft('{"a": 1}', "x")])
    assert await length(replica) == 1
    assert (one.offset.position, whole.offset.position, other.offset.position) == (0, 1, 101)
    assert whole.ranks is not None
    assert (len(whole.ranks), whole.n) == (100, 100)
    assert one.ranks == [0]
    assert other.ranks == [1]


async def test_the_same_answers_come_however_requests_are_grouped(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await replica.models.create("other", replica.model("default").live.config)
    stream = drafts(60)
    together = await replica.learn("default", stream)
    alone = [(await replica.learn("other", [one]))[0] for one in stream]
    assert [one.ranks for one in together] == [one.ranks for one in alone]
    assert [one.updated for one in together] == [one.updated for one in alone]
    assert await replica.model("default").compute_digest() == await replica.model("other").compute_digest()


async def test_a_client_that_goes_away_leaves_its_group_alone(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    tasks = [asyncio.create_task(learn(replica, one)) for one in drafts(30)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::3])
    assert all(isinstance(outcome, LearnOutcome) for i, outcome in enumerate(outcomes) if i % 3)
    assert (await learn(replica, draft('{"a": 1}', "x"))).applied


async def test_waiting_for_the_log_does_not_wait_for_applying(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    model = replica.model("default")
    async with model._turn:  # nothing can be applied
        learned = await learn(replica, draft('{"a": 1}', "x"), wait="log")
        unkeyed = learn(replica, draft('{"a": 1}', "y"), timeout=3.0)
        keyed = learn(replica, draft('{"a": 1}', "z", key="k", body=b"h"), timeout=3.0)
        late, unknown = await asyncio.gather(unkeyed, keyed, return_exceptions=True)
    assert learned == LearnOutcome(learned.offset, 1, None, None, False, "log")
    assert isinstance(late, LearnOutcome)
    assert late == LearnOutcome(late.offset, 1, None, None, False, "log")
    assert isinstance(unknown, OutcomeUnknown)
    assert "not applied in time" in str(unknown)
    await replica.wait_for("default", late.offset, 60)
    assert model.live.n_learned >= 2


async def test_who_waits_for_the_log_is_not_told_more_when_applying_was_quicker(through: Replica, proxy: Proxy) -> None:
    proxy.lose_replies_to = b"XADD"  # so that applying is always quicker
    learned = await learn(through, draft('{"a": 1}', "x"), wait="log")
    assert learned == LearnOutcome(learned.offset, 1, None, None, False, "log")
    assert through.model("default").live.n_learned == 1


async def test_stopping_ends_what_waits(own_server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(own_server)
    own_server.pause()
    first = asyncio.create_task(learn(replica, draft('{"a": 1}', "x")))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(learn(replica, draft('{"a": 1}', "y")))
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(replica.stop())
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    own_server.resume()
    await stopping
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, StoreUnavailable]
