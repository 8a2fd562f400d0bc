"""A log or catalog that cannot be read stops a model or the start, and is never skipped."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from abound.log.catalog import CATALOG_KEY
from abound.log.events import APPLY_VERSION, Entry, MarkEvent, encode
from abound.replica.replica import Replica
from abound.store.client import Store
from abound_core.config import ModelConfig
from abound_core.errors import (
    CannotStart,
    NotReady,
)
from tests.support.fixtures import StartReplica
from tests.support.replicas import teach, until
from tests.support.valkey import Server

PAYLOAD = encode(Entry(APPLY_VERSION, b"somebody", 1, MarkEvent("token")))[0]
NEWER = msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["promote", 1]))
DAMAGED = {
    "checksum is wrong": {"e": PAYLOAD, "c": b"00000000"},
    "cannot be read": {"e": PAYLOAD[:5], "c": b"%08x" % zlib.crc32(PAYLOAD[:5])},
    "two fields": {"e": PAYLOAD},
    f"version {APPLY_VERSION + 1}": {"e": NEWER, "c": b"%08x" % zlib.crc32(NEWER)},
}


@pytest.mark.parametrize("what", DAMAGED)
async def test_an_entry_that_cannot_be_applied_stops_the_model_and_is_never_skipped(
    server: Server, start_replica: StartReplica, what: str
) -> None:
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
    other = Replica(Store(server.url, server.store_params))
    with pytest.raises(CannotStart, match=r"entry .* of the catalog cannot be applied"):
        await other.start()
    await other.stop()


async def test_a_log_without_its_beginning_is_no_start(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    offset = await teach(replica, seed=2)
    await replica.store.client.xtrim(replica.model("default").keys.log, minid=offset.entry, approximate=False)
    other = Replica(Store(server.url, server.store_params))
    with pytest.raises(CannotStart, match=r"lost its beginning, and there is no history .*from a backup"):
        await other.start()
    await other.stop()
