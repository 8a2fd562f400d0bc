"""What waits to be appended, a group and the log are bounded."""

from __future__ import annotations

import asyncio

import pytest

from abound.log.append_group import LearnOutcome
from abound.log.stream import LogParams
from abound.replica.replica import ReplicaParams
from abound_core.errors import Overloaded, TooLarge
from tests.log.conftest import learn, length
from tests.support.fixtures import StartReplica
from tests.support.replicas import until
from tests.support.streams import batch, draft, drafts
from tests.support.valkey import Server


async def test_what_waits_is_bounded(own_server: Server, start_replica: StartReplica) -> None:
    params = ReplicaParams(log=LogParams(waiting_requests=5, waiting_bytes=100_000))
    replica = await start_replica(own_server, params)
    own_server.pause()
    tasks = [asyncio.create_task(learn(replica, one)) for one in drafts(8)]
    await until(lambda: sum(task.done() for task in tasks) == 3)
    for task in [task for task in tasks if task.done()]:
        with pytest.raises(Overloaded, match="too many events wait"):
            await task
    own_server.resume()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, LearnOutcome) for one in done) == 5
    assert (await learn(replica, draft('{"a": 1}', "x"))).applied


async def test_a_full_log_refuses_and_says_what_to_do(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server, ReplicaParams(log=LogParams(max_log_bytes=3000)))
    outcomes = [(await asyncio.gather(learn(replica, one), return_exceptions=True))[0] for one in drafts(100)]
    assert isinstance(outcomes[0], LearnOutcome)
    with pytest.raises(Overloaded, match="ABOUND_LOG_MAX_LOG_BYTES"):
        await learn(replica, batch(30))
    assert 1000 < replica.model("default").log_bytes <= 3500
    await replica.configure("default", {"d_max": 7})


async def test_groups_are_bounded(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server, ReplicaParams(log=LogParams(group_events=10, group_bytes=400)))
    learned = await asyncio.gather(*(learn(replica, one) for one in drafts(40)))
    assert max(one.offset.position for one in learned) < 10
    assert await length(replica) >= 4
    assert (await learn(replica, batch(50))).n == 50  # one request that is larger goes alone


async def test_a_request_over_the_bound_is_refused_alone(server: Server, start_replica: StartReplica) -> None:
    most = len(batch(50).records)
    replica = await start_replica(server, ReplicaParams(log=LogParams(request_bytes=most, group_bytes=400)))
    whole, one, too_large, in_two = await asyncio.gather(
        learn(replica, batch(50)),
        learn(replica, draft('{"a": 1}', "x")),
        learn(replica, batch(51)),
        replica.learn("default", [batch(50), draft('{"a": 1}', "x")]),
        return_exceptions=True,
    )
    assert isinstance(whole, LearnOutcome)
    assert isinstance(one, LearnOutcome)
    assert (whole.n, one.applied) == (50, True)
    for refused in (too_large, in_two):
        assert isinstance(refused, TooLarge)
        assert "ABOUND_LOG_REQUEST_BYTES" in str(refused)
    assert await length(replica) == 2
    assert replica.model("default").live.n_learned == 51


def test_a_request_that_no_store_takes_cannot_be_allowed() -> None:
    with pytest.raises(ValueError, match="request_bytes"):
        LogParams(request_bytes=2**29)
