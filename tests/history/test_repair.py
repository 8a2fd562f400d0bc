"""`abound mend`: it finds what a start refuses, names the way out, and replaces an unreadable entry of a log."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from abound.core.config import ModelConfig
from abound.core.errors import CannotStart, Conflict
from abound.core.types import Offset
from abound.service.cli.main import app
from abound.service.history.integrity import Damage
from abound.service.history.repair import find_problems, replace_entry
from abound.service.history.replay import compact, rebuild
from abound.service.history.verify import verify
from abound.service.log import stream
from abound.service.log.catalog import CATALOG_KEY, CatalogModel, read_catalog
from abound.service.log.events import APPLY_VERSION, Entry, MarkEvent, encode
from abound.service.replica.replica import Replica
from abound.service.security.audit import newest_acts
from abound.service.snapshots import snapshots
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.store.client import Store
from abound.service.store.lease import acquire
from tests.support.fixtures import StartReplica
from tests.support.replicas import digests, teach, until
from tests.support.streams import flip
from tests.support.valkey import Server

UNREADABLE = {"e": b"\x94nonsense", "c": b"%08x" % zlib.crc32(b"\x94nonsense")}


def run(server: Server, *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    done = CliRunner().invoke(app, [*words, "--redis-url", server.url])
    return done.exit_code, done.stdout


def good_entry() -> dict[str, bytes]:
    payload, checksum = encode(Entry(APPLY_VERSION, b"other", 1, MarkEvent("later")))
    return {"e": payload, "c": checksum}


async def refusal(server: Server) -> str:
    """Return why a start is refused."""
    refused = Replica(Store(server.url, server.store_params))
    with pytest.raises(CannotStart) as caught:
        await refused.start()
    await refused.stop()
    return str(caught.value)


async def test_nothing_is_wrong_with_a_good_store(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await replica.models.create("news", ModelConfig(d_max=7))
    await teach(replica)
    assert await asyncio.to_thread(run, server, "mend") == (0, "nothing is wrong\n")


async def test_an_unreadable_entry_is_replaced_by_the_command_that_the_refusal_names(
    server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(server)
    before = await teach(replica)
    log = replica.model("default").keys.log
    await replica.store.client.xadd(log, UNREADABLE)
    await replica.store.client.xadd(log, good_entry())
    await until(lambda: not replica.status().ready)
    assert re.search(r"entry .* cannot be applied.*`abound mend`", replica.status().reason or "")
    code, said = await asyncio.to_thread(run, server, "mend")
    assert (code, "the events in it are lost" in said, "abound mend --yes" in said) == (1, True, True)
    code, said = await asyncio.to_thread(run, server, "mend", "--yes", "--json")
    assert (code, json.loads(said)["mended"]) == (0, True)
    [act] = await newest_acts(replica.store)
    assert (act.action, act.outcome, act.details) == ("store.mend", "done", json.loads(said)["findings"][0])
    one, other = await start_replica(server), await start_replica(server)
    assert one.model("default").live.n_learned == 50
    assert one.model("default").offset > before
    await teach(other, 5, 3)
    assert len(await digests(other, one)) == 1
    assert await asyncio.to_thread(run, server, "mend") == (0, "nothing is wrong\n")


@pytest.fixture
async def damaged(server: Server, start_replica: StartReplica) -> tuple[Store, CatalogModel, Offset]:
    """A store with a snapshot before and one past an entry that is damaged, the model, and where that is."""
    replica = await start_replica(server)
    living = (await read_catalog(replica.store)).get("default")
    assert living is not None
    await teach(replica, 10, 1)
    await compact(replica.store, living, SnapshotParams())
    lost = await teach(replica, 10, 2)
    await teach(replica, 10, 3)
    await compact(replica.store, living, SnapshotParams())
    await flip(replica.store, living.keys.log, lost)
    return replica.store, living, lost


Damaged = tuple[Store, CatalogModel, Offset]


async def damage_newest_snapshot(store: Store, living: CatalogModel) -> None:
    newest = (await snapshots.ids(store, living.keys))[0]
    await store.client.delete(snapshots.file_key(living.keys, newest, 0))


async def test_an_entry_that_a_snapshot_contains_is_not_given_up(
    server: Server, damaged: Damaged, start_replica: StartReplica
) -> None:
    store, living, lost = damaged
    before = await store.client.xrange(living.keys.log)
    code, said = await asyncio.to_thread(run, server, "mend", "--yes")
    assert (code, lost.entry in said, "history begin-anew" in said) == (1, True, True)
    [finding] = await find_problems(store, None)
    with pytest.raises(Conflict, match="begin-anew"):
        await replace_entry(store, None, finding._replace(entry=lost.entry))
    assert await store.client.xrange(living.keys.log) == before
    assert (await start_replica(server)).model("default").live.n_learned == 30


async def test_damaged_snapshots_past_a_replaced_entry_go(
    server: Server, damaged: Damaged, start_replica: StartReplica
) -> None:
    store, living, lost = damaged
    await damage_newest_snapshot(store, living)
    [finding] = await find_problems(store, None)
    assert (finding.model, finding.entry) == ("default", lost.entry)
    async with acquire(store, living.keys):  # a snapshot that is being made may contain the entry
        with pytest.raises(Conflict, match="another process works on"):
            await replace_entry(store, None, finding)
    assert len(await snapshots.ids(store, living.keys)) == 2
    await replace_entry(store, None, finding)
    assert len(await snapshots.ids(store, living.keys)) == 1
    assert (await verify(store, "default", offline=True)).good
    assert (await start_replica(server)).model("default").live.n_learned == 20


async def test_a_log_of_large_entries_is_copied_a_few_at_a_time(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, living, lost = damaged
    await damage_newest_snapshot(store, living)
    payload, checksum = encode(Entry(APPLY_VERSION, b"other", 1, MarkEvent("m" * 2**20)))
    for _ in range(40):
        await store.client.xadd(living.keys.log, {"e": payload, "c": checksum})
    read = store.client.xrange
    sizes = []

    async def measured(*given: Any) -> Any:
        found = await read(*given)
        sizes.append(sum(len(fields[b"e"]) for _, fields in found))
        return found

    length = await store.client.xlen(living.keys.log)
    monkeypatch.setattr(store.client, "xrange", measured)
    await replace_entry(store, None, Damage("default", lost.entry, ""))
    assert await store.client.xlen(living.keys.log) == length
    assert sum(sizes) > 40 * 2**20
    assert max(sizes) < 10 * 2**20


async def append(store: Store, log: bytes) -> None:
    await store.client.xadd(log, good_entry())


async def collect_copy(store: Store, log: bytes) -> None:
    await store.client.delete(stream.repaired_key(log))


async def take_lease(store: Store, log: bytes) -> None:
    fence = log.removesuffix(b"log") + b"fence"
    assert await store.client.getset(fence, "99:other")


@pytest.mark.parametrize("meanwhile", [append, collect_copy, take_lease])
async def test_a_copy_never_becomes_the_log_after_a_change(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Store, bytes], Awaitable[None]]
) -> None:
    store, living, _ = damaged
    await damage_newest_snapshot(store, living)
    [finding] = await find_problems(store, None)
    names, length = await snapshots.ids(store, living.keys), await store.client.xlen(living.keys.log)
    read = store.client.xrange
    copied = False

    async def changing(key: bytes, *given: Any) -> Any:
        nonlocal copied
        found = await read(key, *given)
        if not found and not copied:
            copied = True
            await meanwhile(store, living.keys.log)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(store.client, "xrange", changing)
        with pytest.raises(Conflict, match="appended meanwhile"):
            await replace_entry(store, None, finding)
    assert copied
    assert await store.client.xlen(living.keys.log) == length + (meanwhile is append)
    assert await snapshots.ids(store, living.keys) == names
    assert not await store.client.exists(stream.repaired_key(living.keys.log))
    await store.client.delete(living.keys.key("lease"))
    await replace_entry(store, None, finding)
    assert (await rebuild(store, living)).live.n_learned == 20


async def test_for_a_log_without_its_beginning_a_backup_is_named(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    for seed in range(5):
        offset = await teach(replica, 10, seed)
    await replica.store.client.xtrim(replica.model("default").keys.log, minid=offset.entry, approximate=False)
    assert re.search("lost its beginning.*backup", await refusal(server))
    code, said = await asyncio.to_thread(run, server, "mend", "--yes")
    assert (code, "lost its beginning" in said, "from a backup" in said) == (1, True, True)


async def test_for_an_unreadable_catalog_a_backup_is_named(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    await replica.store.client.xadd(CATALOG_KEY, UNREADABLE)
    before = await replica.store.client.xrange(CATALOG_KEY)
    reason = await refusal(server)
    assert re.search("of the catalog cannot be applied.*from a backup", reason)
    assert await asyncio.to_thread(run, server, "mend", "--yes") == (1, f"{reason}\n")
    assert await replica.store.client.xrange(CATALOG_KEY) == before


async def test_what_a_newer_release_wrote_is_not_touched(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    log = replica.model("default").keys.log
    newer = msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["unheard of", 1]))
    await replica.store.client.xadd(log, {"e": newer, "c": b"%08x" % zlib.crc32(newer)})
    await until(lambda: not replica.status().ready)
    assert "run the release that wrote it" in (replica.status().reason or "")
    before = await replica.store.client.xrange(log)
    code, said = await asyncio.to_thread(run, server, "mend", "--yes")
    assert (code, "run the release that wrote it" in said, "Make a copy" in said) == (1, True, False)
    assert await replica.store.client.xrange(log) == before
