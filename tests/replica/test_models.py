"""Models are created, configured and deleted on all replicas."""

import asyncio
import zlib

import msgspec
import pytest

from abound.history import replay
from abound.log.catalog import CATALOG_KEY, read_catalog
from abound.log.events import APPLY_VERSION, ConfigureEvent, Entry, MarkEvent, encode
from abound.log.stream import LogParams
from abound.replica.replica import Replica, ReplicaParams, appender_of
from abound.replica.storage_status import NO_ARTIFACTS
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store
from abound_core.config import ModelConfig
from abound_core.errors import CannotStart, NotReady, StoreUnavailable, UnknownModel
from abound_core.types import START
from tests.support.fixtures import StartReplica
from tests.support.replicas import digests, teach, until
from tests.support.streams import drafts
from tests.support.valkey import Server


async def test_the_default_model_is_there_from_the_start_and_only_once(server, start_replica):
    first, second = await asyncio.gather(start_replica(server), start_replica(server))
    assert first.models.names() == second.models.names() == ["default"]
    assert first.model("default").incarnation == second.model("default").incarnation
    assert first.model("default").offset == START
    durability = ("always", ("log", "fsync"), None)
    assert first.status() == ("ready", 1.0, True, None, "connected", None, None, durability, NO_ARTIFACTS)


async def test_models_come_and_go_everywhere(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    assert await one.models.create("news", ModelConfig(d_max=7))
    assert not await one.models.create("news", ModelConfig(d_max=8))
    assert (await other.models.find("news")).live.config.d_max == 7
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
    assert await one.store.client.keys(keys.pattern) == [keys.log]
    assert await one.store.client.xlen(keys.log) == 0
    assert await one.store.client.ttl(keys.log) > 0  # no late replica begins it again meanwhile
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


async def test_changes_that_contradict_each_other_stop_no_model(server: Server, start_replica: StartReplica) -> None:
    """Each is valid by itself; two replicas check and append them at the same time."""
    one, other = await start_replica(server), await start_replica(server)
    await asyncio.gather(
        one.configure("default", {"update": "sls"}), other.configure("default", {"memory": 500}), return_exceptions=True
    )
    await appender_of(one.model("default")).event(ConfigureEvent({"update": "sls", "memory": None}), 10)
    await appender_of(one.model("default")).event(ConfigureEvent({"memory": 500, "d_max": 3}), 10)
    await teach(one)
    assert len(await digests(one, other)) == 1
    late = await start_replica(server)
    for replica in (one, other, late):
        config = replica.model("default").live.config
        assert (config.update, config.memory, config.d_max) == ("sls", None, 25)
        assert replica.status().ready


async def test_a_replica_catches_up_with_what_another_one_acknowledged(server, start_replica):
    one, other = await start_replica(server), await start_replica(server)
    model = other.model("default")
    async with model.paused():  # nothing can be applied
        last = await teach(one)
        with pytest.raises(NotReady, match="is behind"):
            await other.catch_up("default", 1.0)
    await other.catch_up("default")
    assert model.offset == last
    server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            await other.catch_up("default", 0.2)
    finally:
        server.resume()


async def test_a_change_is_answered_once_every_replica_has_it(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)

    async def are_known() -> bool:  # it waits for those that it knows of
        return len(await one.replicas("default")) == 2

    await until(are_known)
    async with other.model("default").paused():
        changing = asyncio.create_task(one.configure("default", {"boolean": True}))
        await until(lambda: one.model("default").live.config.boolean)
        await asyncio.sleep(0.2)
        assert not changing.done()
    await changing
    assert other.model("default").live.config.boolean


async def is_refused(server: Server, why: str, params: ReplicaParams | None = None) -> None:
    replica = Replica(Store(server.url, server.store_params), params)
    with pytest.raises(CannotStart, match=why):
        await replica.start()
    await replica.stop()


async def test_a_store_that_cannot_reach_the_default_durability_is_refused(server, start_replica):
    await start_replica(server, ReplicaParams(durability="fsync"))
    why = "ABOUND_DURABILITY is replica, but the store has no connected replica"
    await is_refused(server, why, ReplicaParams(durability="replica"))


async def test_start_tells_how_far_it_is(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await replay.compact(replica.store, (await read_catalog(replica.store)).get("default"), SnapshotParams())
    for seed in range(100):
        await teach(replica, 1, seed)
    told: list[tuple[str, float]] = []
    other = Replica(Store(server.url, server.store_params), ReplicaParams(log=LogParams(read_bytes=1000)))
    await other.start(lambda stage, progress: told.append((stage, progress)))
    await other.stop()
    stages = list(dict.fromkeys(stage for stage, _ in told))
    last = "opening a connection to append over"
    assert stages == ["connecting", "loading snapshot of default", "replaying default", last]
    replaying = [progress for stage, progress in told if stage.startswith("replaying")]
    assert replaying == sorted(replaying)
    assert len(set(replaying)) > 3
    assert replaying[-1] == 1.0
    assert other.status().stage == "draining"


PAYLOAD = encode(Entry(APPLY_VERSION, b"somebody", 1, MarkEvent("token")))[0]
NEWER = msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["promote", 1]))
DAMAGED = {
    "checksum is wrong": {"e": PAYLOAD, "c": b"00000000"},
    "cannot be read": {"e": PAYLOAD[:5], "c": b"%08x" % zlib.crc32(PAYLOAD[:5])},
    "two fields": {"e": PAYLOAD},
    f"version {APPLY_VERSION + 1}": {"e": NEWER, "c": b"%08x" % zlib.crc32(NEWER)},
}


@pytest.mark.parametrize("what", DAMAGED)
async def test_an_entry_that_cannot_be_applied_stops_the_model_and_is_never_skipped(server, start_replica, what):
    replica = await start_replica(server)
    await replica.models.create("news", ModelConfig())
    await teach(replica)
    log = replica.model("default").keys.log
    entry_id = (await replica.store.client.xadd(log, DAMAGED[what])).decode()
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
    await replica.store.client.xadd(CATALOG_KEY, DAMAGED["checksum is wrong"])
    await until(lambda: not replica.status().ready)
    assert "catalog" in (replica.status().reason or "")
    await is_refused(server, "entry .* of the catalogue cannot be applied")


async def test_a_log_without_its_beginning_is_no_start(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    offset = await teach(replica, seed=2)
    await replica.store.client.xtrim(replica.model("default").keys.log, minid=offset.entry, approximate=False)
    await is_refused(server, "lost its beginning, and there is no history .*from a backup")
