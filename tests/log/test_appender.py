"""From a request to its entry in the log: groups, bounds, durability, and what a lost connection leaves unknown."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from abound.core.config import ModelConfig
from abound.core.errors import InvalidInstance, OutcomeUnknown, Overloaded, StoreUnavailable, TooLarge
from abound.core.instances.record import pack_labels
from abound.core.limits import Limits
from abound.service.api.routes.learn import _refuse_batch
from abound.service.log.append_group import LearnDraft, LearnOutcome
from abound.service.log.stream import LogParams
from abound.service.replica.replica import Replica, ReplicaParams
from abound.service.store.client import Store
from tests.support.fixtures import StartReplica
from tests.support.proxy import Proxy
from tests.support.streams import batch, draft, drafts
from tests.support.valkey import QUICK, Server, free_port


async def length(replica: Replica) -> int:
    n: int = await replica.store.client.xlen(replica.model("default").keys.log)
    return n


async def learn(replica: Replica, one: LearnDraft, **options: object) -> LearnOutcome:
    return (await replica.learn("default", [one], **options))[0]  # type: ignore[arg-type]


async def connected(replica: Replica) -> None:
    """Wait until a replica has its store again."""
    async with asyncio.timeout(5):
        while replica.status().log != "connected":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def proxy(server: Server, tmp_path: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "proxy", server.url.removeprefix("unix://"))
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def through(proxy: Proxy) -> AsyncIterator[Replica]:
    """A replica that reaches its store through a proxy."""
    replica = Replica(Store(proxy.url, QUICK))
    await replica.start()
    yield replica
    await replica.stop()


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


async def test_who_is_alone_waits_for_nobody_and_several_share_an_entry(
    server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await start_replica(server)
    appender, connection = replica.model("default").appender, replica._connection.raw
    assert appender is not None
    assert connection is not None
    commands: list[bytes] = []
    send = connection.send

    def seen(command: bytes, on_reply: Any, seconds: float, n: int = 1) -> None:
        if b"XADD" in command:
            commands.append(command)
        send(command, on_reply, seconds, n)

    monkeypatch.setattr(connection, "send", seen)

    def put(n: int) -> list[asyncio.Future[list[LearnOutcome]]]:
        return [appender.learn([one], "log", True, 5) for one in drafts(n)]

    assert (len(put(1)), len(commands)) == (1, 0)  # nobody knows yet whether more come
    await asyncio.gather(*put(2))
    assert len(commands) == 1
    await asyncio.gather(*put(1))
    assert len(commands) == 2
    alone = put(1)
    assert len(commands) == 3  # the one before it was alone: it is sent at once
    others = put(5)
    assert len(commands) == 3  # one entry at a time is under way
    await asyncio.gather(*alone, *others)
    assert len(commands) == 4  # the others are one entry
    several = put(5)
    assert len(commands) == 4
    await asyncio.gather(*several)
    assert len(commands) == 5
    assert replica.model("default").live.n_learned == 15


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
        late = await learn(replica, draft('{"a": 1}', "y"), timeout=0.1)
        with pytest.raises(OutcomeUnknown, match="not applied in time"):
            await learn(replica, draft('{"a": 1}', "z", key="k", body=b"h"), timeout=0.1)
    assert learned == LearnOutcome(learned.offset, 1, None, None, False, "log")
    assert late == LearnOutcome(late.offset, 1, None, None, False, "log")
    await replica.wait_for("default", late.offset, 1)
    assert model.live.n_learned >= 2


async def test_who_waits_for_the_log_is_not_told_more_when_applying_was_quicker(through: Replica, proxy: Proxy) -> None:
    proxy.lose_replies_to = b"XADD"  # so that applying is always quicker
    learned = await learn(through, draft('{"a": 1}', "x"), wait="log")
    assert learned == LearnOutcome(learned.offset, 1, None, None, False, "log")
    assert through.model("default").live.n_learned == 1


async def test_a_lost_reply_is_no_lost_event_and_no_event_twice(through: Replica, proxy: Proxy) -> None:
    proxy.lose_replies_to = b"XADD"
    learned = await learn(through, draft('{"a": 1}', "x"))
    assert learned.applied  # the follower met it
    assert await length(through) == 1
    await connected(through)
    assert (await learn(through, draft('{"a": 1}', "x"))).ranks == [1]


async def test_a_lost_command_is_of_unknown_outcome_and_not_sent_again(through: Replica, proxy: Proxy) -> None:
    proxy.lose_commands = b"XADD"
    with pytest.raises(OutcomeUnknown):
        await learn(through, draft('{"a": 1}', "x"), timeout=0.5)
    assert await length(through) == 0
    await connected(through)
    assert (await learn(through, draft('{"a": 1}', "y"))).applied
    assert await length(through) == 1


async def test_a_key_makes_sending_again_safe(through: Replica, proxy: Proxy) -> None:
    one = draft('{"a": 1}', "x", key="order 7", body=b"hash")
    proxy.lose_replies_to = b"XADD"
    first = await learn(through, one)
    await connected(through)
    assert await learn(through, one) == first
    assert through.model("default").live.n_learned == 1
    with pytest.raises(InvalidInstance, match="another body") as caught:
        await learn(through, replace(one, body=b"other"))
    assert caught.value.field == "key"
    several = await through.learn("default", [one, replace(one, body=b"other"), draft('{"b": 1}', "y")])
    assert [each.refused is not None for each in several] == [False, True, False]
    assert several[0] == first
    assert through.model("default").live.n_learned == 2


async def test_what_is_refused_for_its_key_is_let_go_of(server: Server, start_replica: StartReplica) -> None:
    def kept() -> int:
        gc.collect()
        errors = [error for error in gc.get_objects() if type(error) is InvalidInstance]
        return sum("another body" in str(error) for error in errors)

    replica = await start_replica(server)
    one = draft('{"a": 1}', "x", key="order 7", body=b"hash")
    await learn(replica, one)
    before = kept()
    for i in range(20):
        with pytest.raises(InvalidInstance, match="another body"):
            await learn(replica, replace(one, body=b"other %d" % i))
        with pytest.raises(InvalidInstance, match="another body"):
            _refuse_batch(await replica.learn("default", [one, replace(one, body=b"other %d" % i)]))
    await learn(replica, draft('{"b": 1}', "y"))
    assert kept() < before + 4


async def test_a_batch_with_a_key_is_learned_once_as_a_whole(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    first, second = await asyncio.gather(*(learn(replica, batch(100, key="b")) for _ in range(2)))
    assert first == second
    assert replica.model("default").live.n_learned == 100


async def test_two_replicas_cannot_both_learn_one_key(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    keyed = draft('{"a": 1}', "x", key="k", body=b"h")
    first, second = await asyncio.gather(learn(one, keyed), learn(other, keyed))
    assert first == second
    await one.wait_for("default", other.model("default").offset, 1)
    assert one.model("default").live.n_learned == other.model("default").live.n_learned == 1


async def test_without_a_store_nothing_is_taken(own_server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(own_server)
    await learn(replica, draft('{"a": 1}', "x"))
    own_server.kill()
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        await learn(replica, draft('{"a": 1}', "x"), timeout=1.0)
    with pytest.raises(StoreUnavailable, match="nothing was appended"):
        await learn(replica, draft('{"a": 1}', "x"))


async def test_a_store_that_hangs_does_not_hold_requests_for_ever(
    own_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(own_server)
    own_server.pause()
    first = asyncio.create_task(learn(replica, draft('{"a": 1}', "x"), timeout=0.3))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(learn(replica, draft('{"a": 1}', "y"), timeout=0.3))
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    own_server.resume()
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert isinstance(outcomes[1], Overloaded)
    await connected(replica)
    assert (await learn(replica, draft('{"a": 1}', "z"))).applied
    assert "y" not in [replica.model("default").live.label(i) for i in range(2)]


async def test_what_waits_is_bounded(own_server: Server, start_replica: StartReplica) -> None:
    params = ReplicaParams(log=LogParams(waiting_requests=5, waiting_bytes=100_000))
    replica = await start_replica(own_server, params)
    own_server.pause()
    tasks = [asyncio.create_task(learn(replica, one, timeout=0.5)) for one in drafts(8)]
    await asyncio.sleep(0.1)
    refused = [task for task in tasks if task.done()]
    assert len(refused) == 3
    for task in refused:
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


async def test_fsync_is_not_claimed_of_a_store_whose_waitaof_says_too_much(start_replica: StartReplica) -> None:
    """Valkey answers WAITAOF before it has synced, unless it syncs every command."""
    server = Server(appendfsync="everysec")
    try:
        replica = await start_replica(server)
        with pytest.raises(InvalidInstance, match="CONFIG SET appendfsync always"):
            await learn(replica, draft('{"a": 1}', "x"), durability="fsync")
        with server.client() as client:
            client.config_set("appendfsync", "always")
        async with asyncio.timeout(5):
            while (facts := replica.server_info()) is None or facts.appendfsync != "always":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await learn(replica, draft('{"a": 1}', "x"), durability="fsync")).durability == "fsync"
        await replica.stop()
    finally:
        server.close()


async def test_fsync_by_waiting(start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abound.service.store.server_info._waitaof_holds", lambda server: True)
    server = Server(appendfsync="everysec")
    try:
        replica = await start_replica(server)
        one = draft('{"a": 1}', "x")
        careful = asyncio.create_task(learn(replica, one, durability="fsync"))
        quick = await learn(replica, one)
        assert quick.durability == "log"
        assert (await careful).durability == "fsync"
        assert (await learn(replica, one, durability="fsync")).durability == "fsync"
        await replica.stop()
    finally:
        server.close()


async def test_fsync_is_not_claimed_after_the_policy_was_changed(
    own_server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service asks each second what the store is, and behind each append with ``fsync`` whether that is so."""
    monkeypatch.setattr("abound.service.store.reconnecting.INFO_SECONDS", 60.0)
    replica = await start_replica(own_server)
    one = draft('{"a": 1}', "x")
    for policy, level in (("always", "fsync"), ("everysec", "log"), ("always", "fsync")):
        with own_server.client() as client:
            client.config_set("appendfsync", policy)
        learned = await asyncio.gather(learn(replica, one, durability="fsync"), learn(replica, one))
        assert [one.durability for one in learned] == [level, "log"]


async def test_a_level_is_claimed_only_when_it_is_reached(start_replica: StartReplica) -> None:
    port = free_port()
    primary = Server(port=str(port), **{"repl-diskless-sync-delay": "0"})
    copy = Server(replicaof=f"127.0.0.1 {port}")
    try:
        replica = await start_replica(primary, ReplicaParams(log=LogParams(wait_store_seconds=0.3)))
        for _ in range(100):
            if (facts := replica.server_info()) is not None and facts.replicas:
                break
            await asyncio.sleep(0.1)
        with primary.client() as client:
            while client.info("replication")["slave0"]["state"] != "online":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            client.set("written", "and copied")
            while not client.wait(1, 100):
                pass
        one = draft('{"a": 1}', "x")
        learned = await learn(replica, one, durability="replica")
        assert (learned.durability, learned.applied) == ("replica", True)
        copy.pause()
        learned = await learn(replica, one, durability="replica")
        assert (learned.durability, learned.applied) == ("fsync", True)
        copy.kill()
        for _ in range(50):
            if (facts := replica.server_info()) is not None and not facts.replicas:
                break
            await asyncio.sleep(0.1)
        with pytest.raises(InvalidInstance, match="no connected replica"):
            await learn(replica, one, durability="replica")
        await replica.stop()
    finally:
        copy.close()
        primary.close()


async def test_a_store_that_refuses_to_write_has_taken_nothing(start_replica: StartReplica) -> None:
    server = Server()
    try:
        replica = await start_replica(server)
        with server.client() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(StoreUnavailable, match="refused to append: OOM"):
                await learn(replica, draft('{"a": 1}', "x"))
            client.config_set("maxmemory", 0)
        assert (await learn(replica, draft('{"a": 1}', "x"))).applied
        await replica.stop()
    finally:
        server.close()


@pytest.mark.parametrize("binary", [None, "redis-server"])
@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("appendonly", "no", "yes"), ("maxmemory-policy", "allkeys-lru", "noeviction")]
)
async def test_a_store_that_could_lose_the_log_from_now_on_is_told_nothing(
    start_replica: StartReplica, binary: str | None, name: str, wrong: str, right: str
) -> None:
    if binary is not None and shutil.which(binary) is None:
        pytest.skip(f"there is no {binary} here")
    server = Server(binary)
    try:
        replica = await start_replica(server)
        one = draft('{"a": 1}', "x")
        assert (await learn(replica, one)).applied

        async def warned(expected: bool) -> None:
            async with asyncio.timeout(5):
                while (durability := replica.status().durability) is None or expected != bool(durability.warning):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        await warned(False)
        with server.client() as client:
            client.config_set(name, wrong)
            await warned(True)
            for refused in (
                learn(replica, one),
                learn(replica, one, durability="fsync"),
                replica.configure("default", {"d_max": 3}),
                replica.models.create("other", ModelConfig()),
            ):
                with pytest.raises(StoreUnavailable, match=f"nothing was appended.*CONFIG SET {name} {right}"):
                    await refused
            assert await length(replica) == 1
            status = replica.status()
            assert status.ready
            assert status.durability is not None
            assert f"CONFIG SET {name} {right}" in str(status.durability.warning)
            live = replica.model("default").live
            assert len(live.rank(one.records[: -len(pack_labels(["x"], Limits()))], 5).class_ids) == 1
            client.config_set(name, right)
        await warned(False)
        assert (await learn(replica, one)).ranks == [1]
        await replica.stop()
    finally:
        server.close()


async def test_an_append_under_way_claims_nothing_of_a_store_that_was_found_unsafe(
    server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(server)
    appender, info = replica.model("default").appender, replica.server_info()
    assert appender is not None
    assert info is not None
    learned = appender.learn([draft('{"a": 1}', "x")], "log", True, 5)
    await asyncio.sleep(0)  # it is sent
    replica._connection.info = info._replace(aof=False)
    with pytest.raises(OutcomeUnknown, match=r"may get lost.*CONFIG SET appendonly yes"):
        await learned
    assert await length(replica) == 1


async def test_a_lost_reply_is_made_up_for_only_where_the_log_is_kept(own_server: Server, tmp_path: Path) -> None:
    """The follower has met the event; what it is in keeps no file any more."""
    proxy = Proxy(tmp_path / "proxy", own_server.url.removeprefix("unix://"))
    await proxy.start()
    replica = Replica(Store(proxy.url, QUICK))
    await replica.start()
    with own_server.client() as client:
        client.config_set("appendonly", "no")
    proxy.lose_replies_to = b"XADD"
    with pytest.raises(OutcomeUnknown):
        await learn(replica, draft('{"a": 1}', "x"), timeout=1.0)
    assert replica.model("default").live.n_learned == 1
    await replica.stop()
    await proxy.stop()


async def test_a_store_is_looked_at_while_a_long_entry_is_applied(start_replica: StartReplica) -> None:
    server = Server()
    try:
        replica = await start_replica(server)
        await learn(replica, draft('{"a": 1}', "x"))
        async with replica.model("default")._turn:
            await asyncio.sleep(2.5)  # a digest is due and waits for its turn
            with server.client() as client:
                client.config_set("maxmemory-policy", "allkeys-lru")
            async with asyncio.timeout(4):
                while (facts := replica.server_info()) is None or facts.danger is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await replica.stop()
    finally:
        server.close()


async def test_what_everysec_may_lose_is_said(start_replica: StartReplica) -> None:
    server = Server(appendfsync="everysec")
    try:
        replica = await start_replica(server)
        durability = replica.status().durability
        assert durability is not None
        assert durability[:2] == ("everysec", ("log",))
        assert "up to 2 s" in str(durability.warning)
        assert "CONFIG SET appendfsync always" in str(durability.warning)
        await replica.stop()
    finally:
        server.close()


async def test_a_store_that_has_become_a_copy_is_left_for_the_primary(
    own_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(own_server)
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await learn(replica, draft('{"a": 1}', "x"))
        before = {one["id"] for one in client.client_list() if one["name"] == "abound-append"}
        client.execute_command("REPLICAOF", "NO", "ONE")
        await connected(replica)
        assert (await learn(replica, draft('{"a": 1}', "x"))).applied
        after = {one["id"] for one in client.client_list() if one["name"] == "abound-append"}
    assert after
    assert not after & before


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
