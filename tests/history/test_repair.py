"""`abound mend`: what it finds is what a start refuses, what it does lets the service start, and costs what it says."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from abound.core.config import ModelConfig
from abound.core.errors import CannotStart, Conflict, Corrupted
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.cli.main import app
from abound.service.history import repair as mending
from abound.service.history.garbage import collect_keys
from abound.service.history.repair import find_problems, repair_finding
from abound.service.history.replay import compact, rebuild
from abound.service.history.verify import verify
from abound.service.log import stream
from abound.service.log.catalog import CATALOG_KEY, CatalogModel, read_catalog
from abound.service.log.events import APPLY_VERSION, Entry, MarkEvent, encode
from abound.service.replica.replica import Replica
from abound.service.security.audit import newest_acts
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.store.client import Store
from abound.service.store.lease import LeaseLost, acquire
from tests.replica.test_replica import digests, teach, until
from tests.snapshots.test_snapshots import create
from tests.support.archived_model import Archived
from tests.support.fixtures import StartReplica
from tests.support.streams import flip
from tests.support.valkey import QUICK, Server

UNREADABLE = {"e": b"\x94nonsense", "c": b"%08x" % zlib.crc32(b"\x94nonsense")}


def command_in(reason: str) -> list[str]:
    """The words of the command that a message names."""
    found = re.search(r"`abound ([a-z -]+)`", reason)
    assert found, reason
    return found[1].split()


def run(server: Server, *words: str) -> tuple[int, str]:
    """Type a command; its exit code and what it says."""
    done = CliRunner().invoke(app, [*words, "--redis-url", server.url])
    return done.exit_code, done.output


async def broken_log(server: Server, start_replica: StartReplica) -> tuple[Replica, Offset]:
    """A replica that has met an entry that it cannot read; the last offset before it."""
    replica = await start_replica(server)
    before = await teach(replica)
    log = replica.model("default").keys.log
    await replica.store.client.xadd(log, UNREADABLE)
    later = await replica.store.client.xadd(log, good_entry())
    await until(lambda: not replica.status().ready)
    assert later
    return replica, before


def good_entry() -> dict[str, bytes]:
    payload, checksum = encode(Entry(APPLY_VERSION, b"somebody", 1, MarkEvent("later")))
    return {"e": payload, "c": checksum}


async def test_nothing_is_wrong_with_a_good_store(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await replica.models.create("news", ModelConfig(d_max=7))
    await teach(replica)
    assert await find_problems(replica.store, None) == []
    assert await asyncio.to_thread(run, server, "mend") == (0, "nothing is wrong\n")


async def test_an_unreadable_entry_is_mended_by_the_command_that_the_refusal_names(
    server: Server, start_replica: StartReplica
) -> None:
    replica, before = await broken_log(server, start_replica)
    words = command_in(replica.status().reason or "")
    code, said = await asyncio.to_thread(run, server, *words)
    assert code == 1
    assert "entry" in said
    assert "the events in it are given up" in said
    assert "abound mend --yes" in said
    code, said = await asyncio.to_thread(run, server, *words, "--yes", "--json")
    assert code == 0
    assert json.loads(said)["mended"] is True
    [act] = await newest_acts(replica.store)
    assert (act.action, act.outcome, act.details["kind"]) == ("store.mend", "done", "unreadable")
    assert act.details == json.loads(said)["findings"][0]
    one, other = await start_replica(server), await start_replica(server)
    assert one.status().ready
    assert one.model("default").live.n_learned == 50
    assert one.model("default").offset > before
    await one.wait_for("default", before, 1)
    await teach(other, 5, 3)
    assert len(await digests(other, one)) == 1
    assert await asyncio.to_thread(run, server, "mend") == (0, "nothing is wrong\n")


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
    await replica.stop()
    return Store(server.url, QUICK), living, lost


async def test_no_snapshot_has_what_was_given_up(server: Server, start_replica: StartReplica) -> None:
    store, living, lost = await damaged(server, start_replica)
    [finding] = await find_problems(store, None)
    assert (finding.kind, finding.entry) == ("unreadable", lost.entry)
    await repair_finding(store, finding)
    assert (await verify(store, "default", offline=True)).good
    late = await start_replica(server)
    assert late.model("default").live.n_learned == 20
    for seed in (4, 5):
        await teach(late, 10, seed)
        await compact(store, living, SnapshotParams())
    result = await verify(store, "default")
    assert (result.good, len(result.replicas)) == (True, 1)
    await store.close()


async def test_a_mend_that_something_came_in_between_has_let_go_of_no_snapshot(
    server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, living, _ = await damaged(server, start_replica)
    [finding] = await find_problems(store, None)
    before = await manifests.ids(store, living.keys)
    read = store.client.xrange
    sent: list[bytes] = []

    async def copying(*given: Any, **named: Any) -> Any:
        found = await read(*given, **named)
        if not found and not sent:  # the copy is whole
            sent.append(await store.client.xadd(living.keys.log, good_entry()))
        return found

    monkeypatch.setattr(store.client, "xrange", copying)
    with pytest.raises(Conflict, match="appended meanwhile"):
        await repair_finding(store, finding)
    assert sent
    assert await manifests.ids(store, living.keys) == before
    assert (await rebuild(store, living)).live.n_learned == 30
    await repair_finding(store, finding)
    assert len(await manifests.ids(store, living.keys)) == 1
    assert (await verify(store, "default", offline=True)).good
    await store.close()


async def test_nothing_is_mended_while_a_snapshot_is_made(server: Server, start_replica: StartReplica) -> None:
    """It may have what the entry said."""
    store, living, _ = await damaged(server, start_replica)
    [finding] = await find_problems(store, None)
    before = await manifests.ids(store, living.keys)
    async with acquire(store, living.keys):
        with pytest.raises(Conflict, match="another process works on"):
            await repair_finding(store, finding)
    assert await manifests.ids(store, living.keys) == before
    assert [one.entry for one in await find_problems(store, None)] == [finding.entry]
    await store.close()


async def test_who_made_a_snapshot_too_slowly_cannot_point_to_it_once_an_entry_was_mended(
    server: Server, start_replica: StartReplica
) -> None:
    store, living, _ = await damaged(server, start_replica)
    [finding] = await find_problems(store, None)
    async with acquire(store, living.keys) as slow:
        await store.client.delete(living.keys.key("lease"))  # it was stopped for longer than its lease lasts
        slow.lost = True
        await repair_finding(store, finding)
        with pytest.raises(LeaseLost):
            await slow.check()
    await store.close()


async def test_snapshots_that_alone_are_good_are_not_given_up_for_an_entry(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History is damaged, so what was before the entry can only be had from the snapshots past it."""
    monkeypatch.setenv("ABOUND_ARTIFACTS_URL", str(tmp_path))
    store, artifacts = Store(server.url, QUICK), ArtifactStore(str(tmp_path))
    await artifacts.join(store)
    model = Archived(store, artifacts, await create(store), [])
    for seed in range(3):
        await model.grow(30, seed)
    await model.archive()
    await model.grow(30, 3)
    await flip(store, model.living.keys.log, model.offset(70))
    with pytest.raises(Corrupted, match=rf"{model.offset(70).entry} .*cannot be moved.*`abound mend`.*begin-anew"):
        await model.archive()
    contents = await model.contents()
    assert contents.end < model.offset(70)
    await artifacts.put(contents.segments[-1].name, b"damaged")
    good = await rebuild(store, model.living, artifacts=artifacts)
    [finding] = await find_problems(store, artifacts)
    with pytest.raises(Conflict, match="begin-anew"):
        await repair_finding(store, finding, artifacts)
    words = ("history", "begin-anew", "--yes")
    assert (await asyncio.to_thread(run, server, *words))[0] == 0
    assert await find_problems(store, artifacts) == []
    result = await verify(store, "default", artifacts=artifacts, offline=True)
    assert (result.good, result.start) == (True, model.offset(89))
    assert (await rebuild(store, model.living, model.offset(-1), artifacts=artifacts)).live.n_learned == 120
    assert good.live.n_learned == 120
    assert (await stream.trim_of(store, model.living.keys.log)).n_entries == 89
    for seed in (4, 5):
        await model.grow(30, seed)
    contents = await model.archive()
    assert contents.n_entries == 150  # a mark of verifying among them
    assert contents.log_bytes == sum(stream.entry_size(fields) for _, fields in model.every[:150])
    assert await stream.trim_of(store, model.living.keys.log) == (contents.end, 150, contents.log_bytes)
    assert (await verify(store, "default", artifacts=artifacts, offline=True)).good
    await store.close()


async def test_what_was_appended_meanwhile_is_never_lost(server: Server, start_replica: StartReplica) -> None:
    replica, _ = await broken_log(server, start_replica)
    [finding] = await find_problems(replica.store, None)
    client, log = replica.store.client, replica.model("default").keys.log
    length, ends = await client.xlen(log), set()
    for _ in range(5):
        mending = asyncio.create_task(repair_finding(replica.store, finding))
        for _ in range(100):  # not for as long as it takes: it has to read all of them
            if mending.done():
                break
            await client.xadd(log, good_entry())
            length += 1
        try:
            await mending
            ends.add("mended")
        except Conflict as error:
            ends.add(str(error))
        assert await client.xlen(log) == length
    assert ends <= {"mended", "something was appended meanwhile; stop the service and run `abound mend` again"}
    await repair_finding(replica.store, finding)
    assert await find_problems(replica.store, None) == []


async def test_a_copy_that_is_swept_meanwhile_never_becomes_the_log(
    server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, _ = await broken_log(server, start_replica)
    [finding] = await find_problems(replica.store, None)
    client, log = replica.store.client, replica.model("default").keys.log
    before, xrange, swept = await client.xrange(log), client.xrange, False

    async def sweeping(key: bytes, *words: object) -> object:
        nonlocal swept
        if await client.exists(stream.repaired_key(log)) and not swept:
            swept = True
            await collect_keys(replica.store, await read_catalog(replica.store))
        return await xrange(key, *words)

    with monkeypatch.context() as patch:
        patch.setattr(mending, "READ_ENTRIES", 1)
        patch.setattr(client, "xrange", sweeping)
        with pytest.raises(Conflict, match="run `abound mend` again"):
            await repair_finding(replica.store, finding)
    assert swept
    assert await client.xrange(log) == before
    assert not await client.exists(stream.repaired_key(log))
    await repair_finding(replica.store, finding)
    assert await client.xlen(log) == len(before)


async def test_a_model_without_a_base_goes_on_from_what_is_left(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    for seed in range(5):
        offset = await teach(replica, 10, seed)
    log = replica.model("default").keys.log
    await replica.store.client.xtrim(log, minid=offset.entry, approximate=False)
    again = Replica(Store(server.url, QUICK))
    with pytest.raises(CannotStart, match="lost its beginning") as caught:
        await again.start()
    await again.stop()
    code, said = await asyncio.to_thread(run, server, *command_in(str(caught.value)), "--yes")
    assert (code, "1 entries that its log still has" in said) == (0, True)
    late = await start_replica(server)
    assert late.model("default").live.n_learned == 10
    assert late.model("default").offset == offset


async def test_a_catalog_entry_that_made_a_model_is_made_again(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    await replica.models.create("news", ModelConfig(d_max=7))
    await teach(replica, name="news")
    keys = replica.model("news").keys
    digest = await replica.model("default").compute_digest()
    await replica.stop()
    store = Store(server.url, QUICK)
    elements = await store.client.xrange(CATALOG_KEY)
    await store.client.delete(CATALOG_KEY)
    for entry_id, fields in elements:
        damaged = UNREADABLE if entry_id.decode() == keys.incarnation else fields
        await store.client.xadd(CATALOG_KEY, damaged, id=entry_id)
    refused = Replica(Store(server.url, QUICK))
    with pytest.raises(CannotStart, match=r"of the catalog cannot be applied") as caught:
        await refused.start()
    await refused.stop()
    code, said = await asyncio.to_thread(run, server, *command_in(str(caught.value)), "--yes")
    assert (code, "the model news is created there again" in said) == (0, True)
    late = await start_replica(server)
    assert late.models.names() == ["default", "news"]
    assert late.model("news").live.n_learned == 50
    assert await late.model("default").compute_digest() == digest
    await store.close()


async def test_a_catalog_entry_of_nothing_comes_to_say_nothing(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    await replica.store.client.xadd(CATALOG_KEY, UNREADABLE)
    code, said = await asyncio.to_thread(run, server, "mend", "--yes")
    assert (code, "the entry has no effect" in said) == (0, True)
    late = await start_replica(server)
    assert late.models.names() == ["default"]
    assert late.model("default").live.n_learned == 50


async def test_what_a_newer_release_wrote_is_not_touched(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    await teach(replica)
    newer = msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["unheard of", 1]))
    await replica.store.client.xadd(replica.model("default").keys.log, {"e": newer, "c": b"%08x" % zlib.crc32(newer)})
    await until(lambda: not replica.status().ready)
    assert "run the release that wrote it" in (replica.status().reason or "")
    before = await replica.store.client.xrange(replica.model("default").keys.log)
    code, said = await asyncio.to_thread(run, server, "mend")
    assert (code, "run the release that wrote it" in said) == (1, True)
    assert (await asyncio.to_thread(run, server, "mend", "--yes"))[0] == 1
    assert await replica.store.client.xrange(replica.model("default").keys.log) == before
    assert (await read_catalog(replica.store)).get("default") is not None
