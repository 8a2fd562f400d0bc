"""Appending to the log: groups, bounds, keys, what a lost connection leaves, and which durability is claimed."""

import asyncio
from contextlib import closing

import pytest
import redis

from abound.log.append_group import LearnDraft, LearnOutcome
from abound.log.stream import LogParams
from abound.replica.replica import Replica, ReplicaParams
from abound.store.client import Store, store_errors, sync_client
from abound_core.config import ModelConfig
from abound_core.errors import Overloaded, StoreRefused, StoreUnavailable, TooLarge
from abound_core.instances.record import pack_labels
from abound_core.limits import Limits
from tests.support.fixtures import StartReplica, StartServer
from tests.support.replicas import until
from tests.support.streams import batch, draft, drafts
from tests.support.valkey import Server


async def length(replica: Replica) -> int:
    return await replica.store.client.xlen(replica.model("default").keys.log)


async def learn(replica: Replica, one: LearnDraft, **options: object) -> LearnOutcome:
    return (await replica.learn("default", [one], **options))[0]  # type: ignore[arg-type]


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


def warning(replica: Replica) -> str:
    durability = replica.status().durability
    return durability.warning or "" if durability is not None else ""


async def test_a_full_store_takes_nothing_and_readyz_says_so(own_server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(own_server)
    with own_server.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailable, match=r"nothing was appended: the store is full .*CONFIG SET maxmemory"):
            await learn(replica, draft('{"a": 1}', "x"))
        await until(lambda: "nothing is learned: the store is full" in warning(replica))
        client.config_set("maxmemory", 0)
        await until(lambda: "full" not in warning(replica))
    assert (await learn(replica, draft('{"a": 1}', "x"))).applied


async def test_a_pooled_connection_to_a_store_that_has_become_a_copy_is_closed(own_server: Server) -> None:
    store = Store(own_server.url, own_server.store_params)
    before = await store.client.client_id()
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreRefused, match="read only replica"), store_errors():
            await store.client.set("x", "y")
        assert client.info("commandstats")["cmdstat_set"]["rejected_calls"] == 1  # it is not repeated
    assert await store.client.client_id() != before
    with closing(sync_client(own_server.url, 10.0)) as waiting:
        before = waiting.client_id()
        with pytest.raises(redis.exceptions.ReadOnlyError):
            waiting.set("x", "y")
        assert waiting.client_id() != before
    await store.close()


FSYNC = ReplicaParams(durability="fsync")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("no-appendfsync-on-rewrite", "no", "yes"), ("appendfsync", "always", "everysec")],
    ids=["pauses", "policy"],
)
async def test_fsync_is_not_claimed_after_the_policy_was_changed(
    own_server, start_replica, monkeypatch, name, good, bad
):
    """The service asks each second what the store is, and behind each append whether that is so."""
    monkeypatch.setattr("abound.store.reconnecting_connection.INFO_SECONDS", 60.0)
    replica = await start_replica(own_server, FSYNC)
    for value, level in ((good, "fsync"), (bad, "log"), (good, "fsync")):
        with own_server.client() as client:
            client.config_set(name, value)
        assert (await learn(replica, draft('{"a": 1}', "x"))).durability == level


async def test_a_level_is_claimed_only_when_it_is_reached(servers, start_replica):
    primary, copy = servers
    params = ReplicaParams(durability="replica", log=LogParams(wait_store_seconds=8.0))
    replica = await start_replica(primary, params)
    appender = replica.model("default").appender
    assert appender is not None
    one = draft('{"a": 1}', "x")
    learned = await learn(replica, one)
    assert (learned.durability, learned.applied) == ("replica", True)
    copy.pause()
    appender.params = LogParams(wait_store_seconds=0.3)
    learned = await learn(replica, one)
    assert (learned.durability, learned.applied) == ("fsync", True)
    copy.kill()
    await until(lambda: (facts := replica.server_info()) is not None and not facts.replicas)
    with pytest.raises(StoreUnavailable, match=r"nothing was appended: ABOUND_DURABILITY is replica.*no connected"):
        await learn(replica, one)


@pytest.mark.parametrize("binary", [None, "redis-server"])
@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("appendonly", "no", "yes"), ("maxmemory-policy", "allkeys-lru", "noeviction")]
)
async def test_a_store_that_could_lose_the_log_from_now_on_is_told_nothing(
    start_server, start_replica, binary, name, wrong, right
):
    server = start_server(binary)
    replica = await start_replica(server)
    one = draft('{"a": 1}', "x")
    assert (await learn(replica, one)).applied

    await until(lambda: not warning(replica))
    with server.client() as client:
        client.config_set(name, wrong)
        await until(lambda: warning(replica))
        for refused in (
            learn(replica, one),
            replica.configure("default", {"d_max": 3}),
            replica.models.create("other", ModelConfig()),
        ):
            with pytest.raises(StoreUnavailable, match=f"nothing was appended.*CONFIG SET {name} {right}"):
                await refused
        assert await length(replica) == 1
        status = replica.status()
        assert status.ready
        assert f"CONFIG SET {name} {right}" in str(status.durability.warning)
        live = replica.model("default").live
        assert len(live.rank(one.records[: -len(pack_labels(["x"], Limits()))], 5).class_ids) == 1
        client.config_set(name, right)
    await until(lambda: not warning(replica))
    assert (await learn(replica, one)).ranks == [1]


async def test_what_everysec_may_lose_is_said(start_server: StartServer, start_replica: StartReplica) -> None:
    server = start_server(appendfsync="everysec")
    replica = await start_replica(server)
    durability = replica.status().durability
    assert durability[:2] == ("everysec", ("log",))
    assert "up to 2 s" in str(durability.warning)
    assert "CONFIG SET appendfsync always" in str(durability.warning)
