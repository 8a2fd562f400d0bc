"""Replicas of one log: the same models, states and answers on all of them, through what a store may do."""

from __future__ import annotations

import asyncio
import itertools
import time
import zlib

import msgspec
import pytest

from abound.core.config import ModelConfig
from abound.core.errors import (
    CannotStart,
    Conflict,
    InvalidInstance,
    NotReady,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownModel,
)
from abound.core.model.entry_application import Unit
from abound.core.model.live_model import LiveModel
from abound.core.types import START, Offset
from abound.service.history import replay
from abound.service.log.catalog import CATALOG_KEY, read_catalog
from abound.service.log.events import APPLY_VERSION, Entry, LearnEvent, MarkEvent, encode
from abound.service.log.stream import LogParams
from abound.service.model import replica_status
from abound.service.replica.replica import Replica, ReplicaParams
from abound.service.replica.storage_status import NO_ARTIFACTS
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.store.client import Store
from tests.support.fixtures import StartReplica
from tests.support.streams import batch, draft, drafts
from tests.support.valkey import QUICK, Server, free_port


async def until(condition: object, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.01)


async def teach(replica: Replica, n: int = 50, seed: int = 1, name: str = "default") -> Offset:
    learned = await replica.learn(name, drafts(n, seed))
    return learned[-1].offset


async def digests(*replicas: Replica, name: str = "default") -> set[str | None]:
    """Their digests, once all have come as far as the first."""
    offset = replicas[0].model(name).offset
    for replica in replicas:
        await replica.wait_for(name, offset, 5)
    return {await replica.model(name).compute_digest() for replica in replicas}


async def test_the_default_model_is_there_from_the_start_and_only_once(
    server: Server, start_replica: StartReplica
) -> None:
    first, second = await asyncio.gather(start_replica(server), start_replica(server))
    assert first.models.names() == second.models.names() == ["default"]
    assert first.model("default").incarnation == second.model("default").incarnation
    assert first.model("default").offset == START
    durability = ("always", ("log", "fsync"), None)
    assert first.status() == ("ready", 1.0, True, None, "connected", None, None, durability, NO_ARTIFACTS)


async def test_replicas_of_one_log_are_the_same(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    await asyncio.gather(*(teach(replica, 30, seed) for seed, replica in enumerate([one, other, one, other])))
    await teach(one, 1)
    late = await start_replica(server)
    assert one.model("default").live.n_learned == 121
    assert len(await digests(one, other, late)) == 1


async def test_what_the_service_learns_is_what_the_library_learns(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    library = LiveModel(ModelConfig(), (3, 4))
    for one in drafts(100):
        learned = (await replica.learn("default", [one]))[0]
        applying = library.begin(one.records, 1, [Unit(1)], learned.offset).finish()
        assert learned.ranks == applying.ranks.tolist()
        assert learned.updated == applying.updated.tolist()
    for _ in library.digest_steps():
        pass
    assert library.digest() == await replica.model("default").compute_digest()


async def test_a_long_batch_lets_others_have_their_turn(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    model = replica.model("default")
    seen = set()
    learning = asyncio.create_task(replica.learn("default", [batch(2000)]))
    while not learning.done():
        seen.add((model.offset.position, model.live.n_learned))
        await asyncio.sleep(0)
    assert len(seen) > 30
    assert all(n_learned in (0, position + 1) for position, n_learned in seen)
    assert model.offset.position == 1999


async def test_models_come_and_go_everywhere(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    assert await one.models.create("news", ModelConfig(d_max=7))
    assert not await one.models.create("news", ModelConfig(d_max=8))
    await until(lambda: "news" in other.models.names())
    assert other.model("news").live.config.d_max == 7
    await teach(other, 10, name="news")
    incarnation = one.model("news").incarnation
    keys = one.model("news").keys
    await one.models.delete("news")
    assert one.models.names() == ["default"]
    with pytest.raises(UnknownModel, match="'news'"):
        one.model("news")
    with pytest.raises(UnknownModel):
        await one.learn("news", drafts(1))
    await until(lambda: other.models.names() == ["default"])
    assert await one.store.client.keys(keys.pattern) == []
    assert await other.models.create("news", ModelConfig())
    await until(lambda: "news" in one.models.names())
    assert one.model("news").incarnation > incarnation
    assert one.model("news").live.n_learned == 0


async def test_deleting_the_default_model_makes_a_new_one(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    await teach(one)
    before = one.model("default").incarnation
    await one.models.delete("default")
    assert one.model("default").live.n_learned == 0
    assert one.model("default").incarnation > before
    await teach(one, seed=2)
    await until(lambda: other.model("default").live.n_learned == 50)
    assert len(await digests(one, other)) == 1


async def test_a_store_that_cannot_reach_the_default_durability_is_refused(
    server: Server, start_replica: StartReplica
) -> None:
    await start_replica(server, ReplicaParams(durability="fsync"))
    replica = Replica(Store(server.url, QUICK), ReplicaParams(durability="replica"))
    with pytest.raises(CannotStart, match="ABOUND_DURABILITY is replica, but the store has no connected replica"):
        await replica.start()
    await replica.stop()


async def test_creating_at_one_time_creates_once(server: Server, start_replica: StartReplica) -> None:
    replicas = [await start_replica(server) for _ in range(2)]
    created = await asyncio.gather(*(replica.models.create("news", ModelConfig()) for replica in replicas * 3))
    assert sum(created) == 1


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "é", "x" * 65, ".hidden", "a/b", "a\n"])
async def test_a_name_that_could_be_mistaken_is_refused(server: Server, start_replica: StartReplica, name: str) -> None:
    replica = await start_replica(server)
    with pytest.raises(InvalidInstance, match="name"):
        await replica.models.create(name, ModelConfig())


async def test_a_change_of_configuration_reaches_all_at_one_offset(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    await teach(one)
    assert (await one.configure("default", {"d_max": 3, "margin": 0.5})).d_max == 3
    await teach(one, seed=2)
    assert len(await digests(one, other)) == 1
    assert other.model("default").live.config.margin == 0.5
    with pytest.raises(Conflict, match="boolean"):
        await one.configure("default", {"boolean": True})
    with pytest.raises(InvalidInstance, match="d_max"):
        await one.configure("default", {"d_max": -1})


async def test_read_your_writes_on_another_replica(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    for n in range(1, 20):
        offset = (await one.learn("default", [batch(3, seed=n)]))[0].offset
        await other.wait_for("default", offset._replace(position=2), 5)
        assert other.model("default").live.n_learned >= 3 * n
    end = one.model("default").offset
    for beyond in (end._replace(position=3), end._replace(sequence=end.sequence + 1), Offset(2**63, 0, 0)):
        with pytest.raises(InvalidInstance, match="beyond the end") as caught:
            await other.wait_for("default", beyond, 5)
        assert caught.value.field == "min_offset"


async def test_waiting_for_an_offset_is_bounded(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    async with other.model("default")._turn:  # it cannot apply anything
        offset = await teach(one)
        with pytest.raises(NotReady, match="behind"):
            await other.wait_for("default", offset, 0.1)
    await other.wait_for("default", offset, 1)


async def test_a_mark_is_answered_by_all_with_one_digest(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    await teach(one)
    offset = await one.mark("default", "token")
    await teach(one, seed=2)
    keys = one.model("default").keys
    async with asyncio.timeout(5):
        while len(said := await replica_status.mark_digests(one.store, keys, "token")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert {marked.replica for marked in said} == {one.id, other.id}
    assert {marked.offset for marked in said} == {str(offset)}
    living = (await read_catalog(one.store)).get("default")
    assert living is not None
    rebuilt = await replay.rebuild(one.store, living, offset)
    assert {marked.digest for marked in said} == {await rebuilt.compute_digest()}
    assert 0 < await one.store.client.ttl(keys.key("marks:token")) <= replica_status.MARK_SECONDS


async def test_replicas_describe_themselves(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    offset = await teach(one)

    async def described() -> dict[str, replica_status.PublishedStatus]:
        return {said.replica: said for said in await one.replicas("default")}

    async with asyncio.timeout(8):
        while True:
            said = await described()
            if len(said) == 2 and all(each.digest_offset == str(offset) for each in said.values()):
                break
            await asyncio.sleep(0.1)
    assert said[one.id].digest == said[other.id].digest == await one.model("default").compute_digest()
    assert said[other.id].lag == 0
    assert said[other.id].log_bytes == one.model("default").log_bytes > 0
    await other.stop()
    assert (await described()).keys() == {one.id}


async def test_a_store_that_is_away_leaves_answers_and_comes_back(
    own_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(own_server)
    await teach(replica)
    before = await replica.model("default").compute_digest()
    own_server.kill()
    await until(lambda: replica.status().log == "cut off")
    with pytest.raises(StoreUnavailable):
        await teach(replica)
    assert replica.status().ready
    assert (replica.status().since or 0) >= 0
    assert replica.model("default").live.stats()["learned"] == 50
    with pytest.raises(NotReady, match="cut off"):
        await replica.wait_for("default", Offset(2**63, 0, 0), 1)
    own_server.start()
    await until(lambda: replica.status().log == "connected")
    assert await replica.model("default").compute_digest() == before
    await teach(replica, seed=2)
    assert len(await digests(replica, await start_replica(own_server))) == 1


async def test_acknowledged_events_outlive_a_crash_of_the_store(
    own_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(own_server)
    acknowledged: list[Offset] = []
    over = asyncio.Event()

    async def client(number: int) -> None:
        for one in itertools.cycle(drafts(50, number)):
            if over.is_set():
                return
            try:
                acknowledged.append((await replica.learn("default", [one], timeout=2.0))[0].offset)
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.02)

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    await asyncio.sleep(0.5)
    own_server.kill()
    await asyncio.sleep(0.2)
    own_server.start()
    await asyncio.sleep(0.5)
    over.set()
    await asyncio.gather(*clients)
    with own_server.client() as store:
        entries = store.xrange(replica.model("default").keys.log)
    in_log = set()
    for entry_id, fields in entries:
        at = Offset.of_entry(entry_id)
        event = msgspec.msgpack.decode(fields[b"e"], type=Entry).event
        assert isinstance(event, LearnEvent)
        in_log |= {at._replace(position=position) for position in range(event.n)}
    assert len(acknowledged) == len(set(acknowledged)) > 100
    assert set(acknowledged) <= in_log
    await until(lambda: replica.status().log == "connected")
    assert len(await digests(replica, await start_replica(own_server))) == 1
    assert replica.model("default").live.n_learned == len(in_log)


async def test_a_tail_that_the_store_lost_is_dropped_here_too(own_server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(own_server)
    await teach(replica)
    log = replica.model("default").keys.log
    lost = await teach(replica, seed=2)
    own_server.kill()
    own_server.start()
    with own_server.client() as client:
        entries = client.xrange(log)
        client.delete(log)
        for entry_id, fields in entries:
            if entry_id != lost.entry.encode():
                client.xadd(log, fields, id=entry_id)
    await until(lambda: replica.model("default").live.n_learned == 50)
    await until(lambda: replica.status().log == "connected" and replica.status().ready)
    await teach(replica, seed=3)
    assert len(await digests(replica, await start_replica(own_server))) == 1


async def test_entries_too_large_for_one_reply_get_through(own_server: Server, start_replica: StartReplica) -> None:
    """The server itself ends a connection to which it owes more than a megabyte."""
    params = ReplicaParams(log=LogParams(read_bytes=400_000))
    one = await start_replica(own_server, params)
    model = one.model("default")
    large = draft("{" + ", ".join(f'"{i:0500}": 1' for i in range(200)) + "}", "x")
    with own_server.client() as client:
        client.config_set("client-output-buffer-limit", "normal 1000000 0 0")
        pipe = client.pipeline(transaction=True)
        for i in range(500):
            records = large.records if i >= 450 else draft('{"a": 1}', "y").records
            payload, checksum = encode(Entry(APPLY_VERSION, b"somebody", i, LearnEvent(records, 1, [Unit(1)])))
            pipe.xadd(model.keys.log, {"e": payload, "c": checksum})
        pipe.execute()
    await until(lambda: model.live.n_learned == 500, 20)
    other = await start_replica(own_server, params)
    assert other.model("default").live.n_learned == 500
    assert len(await digests(one, other)) == 1


async def test_another_entry_in_the_place_of_the_last_one_is_noticed(
    own_server: Server, start_replica: StartReplica
) -> None:
    """A failover to a copy that had not the last entry, and went on without it."""
    replica = await start_replica(own_server)
    await teach(replica)
    model = replica.model("default")
    offset = model.offset
    own_server.kill()
    own_server.start()
    with own_server.client() as client:
        client.delete(model.keys.log)
        other = draft('{"other": 1}', "other")
        payload, checksum = encode(Entry(APPLY_VERSION, b"somebody", 1, LearnEvent(other.records, 1, [Unit(1)])))
        client.xadd(model.keys.log, {"e": payload, "c": checksum}, id=offset.entry)
    await until(lambda: model.live.n_learned == 1)
    assert model.live.label(0) == "other"


async def test_how_long_the_store_is_away_counts_from_when_it_went(
    own_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(own_server)
    assert replica.status().since is None
    own_server.kill()
    await asyncio.sleep(1.5)  # nobody asks meanwhile
    assert 0.7 < (replica.status().since or 0.0) < 5
    own_server.start()
    await until(lambda: replica.status().since is None)


async def test_nothing_is_read_from_a_server_that_was_made_a_copy(start_replica: StartReplica) -> None:
    """A failover by hand: the connection outlives it, and the log behind it is another one from some moment on."""
    ports = free_port(), free_port()
    primary = Server(port=str(ports[0]))
    copy = Server(port=str(ports[1]), replicaof=f"127.0.0.1 {ports[0]}")
    try:
        with primary.client() as old, copy.client() as new:
            replica = await start_replica(primary)
            model = replica.model("default")
            log = model.keys.log
            await teach(replica, 5)
            await until(lambda: new.xlen(log) == old.xlen(log), 20)
            new.execute_command("REPLICAOF", "NO", "ONE")
            await teach(replica, 3, 2)  # the new primary never gets it
            async with model.paused():  # the follower is busy with an entry, and not with waiting for one
                old.xadd(log, entry(7))
                await until(lambda: model.has_waiting_entry)
                old.execute_command("REPLICAOF", "127.0.0.1", str(ports[1]))
                for seed in range(6):
                    new.xadd(log, entry(seed))
                await until(lambda: old.xlen(log) == new.xlen(log), 20)
            await until(lambda: replica.status().log == "cut off")
            new.xadd(log, entry(8))
            await asyncio.sleep(1.5)
            assert (replica.status().ready, model.live.n_learned) == (True, 9)
            old.execute_command("REPLICAOF", "NO", "ONE")
            await until(lambda: replica.status().log == "connected" and model.live.n_learned == 12, 10)
            assert len(await digests(replica, await start_replica(primary))) == 1
    finally:
        copy.close()
        primary.close()


def entry(seed: int) -> dict[str | bytes, bytes]:
    """The fields of an entry with one instance."""
    payload, checksum = encode(
        Entry(APPLY_VERSION, b"somebody", seed, LearnEvent(drafts(1, seed)[0].records, 1, [Unit(1)]))
    )
    return {"e": payload, "c": checksum}


async def test_a_store_that_lost_everything_is_started_anew(own_server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(own_server)
    await replica.models.create("news", ModelConfig())
    await teach(replica)
    own_server.kill()
    for path in (own_server.directory / "appendonlydir").iterdir():
        path.unlink()
    own_server.start()
    other = await start_replica(own_server)
    await until(lambda: replica.status().log == "connected" and replica.models.names() == ["default"])
    assert replica.model("default").incarnation == other.model("default").incarnation
    assert replica.model("default").live.n_learned == 0
    await teach(replica)
    assert len(await digests(replica, other)) == 1


async def test_requests_in_flight_end_when_their_tail_is_lost(own_server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(own_server)
    async with replica.model("default")._turn:
        learning = asyncio.create_task(replica.learn("default", drafts(3), timeout=0.5))
        await asyncio.sleep(0.1)
    assert len(await learning) == 3


def damaged(kind: str) -> dict[str, bytes]:
    payload = encode(Entry(APPLY_VERSION, b"somebody", 1, MarkEvent("token")))[0]
    if kind == "checksum":
        return {"e": payload, "c": b"00000000"}
    if kind == "bytes":
        return {"e": payload[:5], "c": b"%08x" % zlib.crc32(payload[:5])}
    if kind == "fields":
        return {"e": payload}
    newer = msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["adopt", 1]))
    return {"e": newer, "c": b"%08x" % zlib.crc32(newer)}


@pytest.mark.parametrize(
    ("kind", "what"),
    [("checksum", "checksum is wrong"), ("bytes", "cannot be read"), ("fields", "two fields"), ("newer", "version 3")],
)
async def test_an_entry_that_cannot_be_applied_stops_the_model_and_is_never_skipped(
    server: Server, start_replica: StartReplica, kind: str, what: str
) -> None:
    replica = await start_replica(server)
    await replica.models.create("news", ModelConfig())
    await teach(replica)
    log = replica.model("default").keys.log
    entry_id = (await replica.store.client.xadd(log, damaged(kind))).decode()
    await until(lambda: not replica.status().ready)
    reason = replica.status().reason or ""
    assert entry_id in reason
    assert what in reason
    with pytest.raises(NotReady, match=entry_id):
        await teach(replica)
    assert replica.model("default").live.n_learned == 50
    await teach(replica, name="news")  # the others go on
    again = await start_replica(server)
    assert not again.status().ready
    assert entry_id in (again.status().reason or "")
    assert again.model("news").live.n_learned == 50


async def test_a_damaged_catalog_is_no_start(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await replica.store.client.xadd(CATALOG_KEY, damaged("checksum"))
    await until(lambda: not replica.status().ready)
    assert "catalog" in (replica.status().reason or "")
    other = Replica(Store(server.url, QUICK))
    with pytest.raises(CannotStart, match=r"entry .* of the catalog cannot be applied"):
        await other.start()
    await other.stop()


async def test_a_log_without_its_beginning_is_no_start(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    offset = await teach(replica, seed=2)
    await replica.store.client.xtrim(replica.model("default").keys.log, minid=offset.entry, approximate=False)
    other = Replica(Store(server.url, QUICK))
    with pytest.raises(CannotStart, match=r"lost its beginning, and there is no history .*from a backup"):
        await other.start()
    await other.stop()


async def test_start_tells_how_far_it_is(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    for seed in range(30):
        await teach(replica, 5, seed)
    living = (await read_catalog(replica.store)).get("default")
    assert living is not None
    await replay.compact(replica.store, living, SnapshotParams())
    for seed in range(100):
        await teach(replica, 1, seed)
    told: list[tuple[str, float]] = []
    other = Replica(Store(server.url, QUICK), ReplicaParams(log=LogParams(read_bytes=1000)))
    await other.start(lambda stage, progress: told.append((stage, progress)))
    await other.stop()
    stages = list(dict.fromkeys(stage for stage, _ in told))
    last = "opening a connection to append over"
    assert stages == ["warming", "connecting", "loading snapshot of default", "replaying default", last]
    replaying = [progress for stage, progress in told if stage.startswith("replaying")]
    assert replaying == sorted(replaying)
    assert len(set(replaying)) > 3
    assert replaying[-1] == 1.0
    assert other.status().stage == "draining"


async def test_draining_takes_nothing_and_answers_on(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    replica.drain()
    assert not replica.status().ready
    with pytest.raises(NotReady, match="draining"):
        await teach(replica)
    assert replica.model("default").live.n_learned == 50
