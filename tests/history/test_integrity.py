"""Damage that good snapshots hide, and adopted state files that are lost: both are found, with the way out."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from abound.artifacts.artifact_store import ArtifactStore
from abound.cli.main import app
from abound.history.archive import ArchiveContext, archive
from abound.history.garbage import FileCollector
from abound.history.history_manifest import History, HistoryParams, Segment, history_key
from abound.history.integrity import find_damage
from abound.history.replay import compact
from abound.history.retention import enforce_retention
from abound.history.verify import verify
from abound.log.catalog import read_catalog
from abound.log.events import APPLY_VERSION, AdoptEvent
from abound.log.stream import Element
from abound.replica.replica import Replica
from abound.snapshots import state_files
from abound.snapshots.state_image import MANIFEST, StateManifest
from abound.store.client import Store
from abound.store.lease import acquire
from abound_core.errors import AboundError, Corrupted
from abound_core.model.live_model import warmup
from abound_core.types import Offset
from tests.support.adoption_house import SMALL, House, digest_at, events, model_of
from tests.support.archived_model import Archived
from tests.support.replicas import until
from tests.support.valkey import Server


@pytest.fixture
async def house(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    warmup()
    monkeypatch.setenv("ABOUND_ARTIFACTS_URL", str(tmp_path))
    house = House(server, tmp_path)
    await house.open()
    yield house
    await house.close()


async def run(house: House, *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it says, also as an error."""
    done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--redis-url", house.server.url])
    error = done.exception if isinstance(done.exception, AboundError) else ""
    return done.exit_code, f"{done.stdout}{error}"


async def adopt(house: House, seed: int = 9) -> tuple[StateManifest, Offset]:
    """Adopt a model of something else; the index, and where."""
    after = (await house.elements())[-1][0]
    index = await house.index(model_of(30, seed), after)
    await house.append(*events(3, seed))
    (at,) = await house.append(AdoptEvent(f"of {seed}", index.id, index.offset, index.digest, "a test"))
    return index, at


async def snapshot(house: House, seed: int) -> None:
    await house.append(*events(20, seed))
    await compact(house.store, await house.living(), SMALL, artifacts=house.artifacts)


async def move(house: House) -> None:
    """Archive what no snapshot needs."""
    living = await house.living()
    async with acquire(house.store, living.keys) as lease:
        await archive(ArchiveContext(house.store, house.artifacts, living, lease, HistoryParams(segment_bytes=2000)))


async def flip_state_file(house: House, name: str) -> None:
    path = state_files.file_name((await house.living()).keys, name, "0")
    part = bytearray(await house.artifacts.get(path))
    part[len(part) // 2] ^= 1
    await house.artifacts.put(path, bytes(part))


async def test_a_start_waits_for_a_lost_state_file_and_names_the_way_out(house: House) -> None:
    await house.append(*events(20))
    index, at = await adopt(house)
    expected = await house.expected()
    await flip_state_file(house, index.id)
    stages: set[str] = set()
    stuck = Replica(Store(house.server.url, house.server.store_params), artifacts=ArtifactStore(str(house.folder)))
    starting = asyncio.create_task(stuck.start(lambda stage, done: stages.add(stage)))
    await until(lambda: "from a backup" in str(stuck.status().reason))
    await until(lambda: any("from a backup" in stage for stage in stages))
    reason = str(stuck.status().reason)
    assert index.id in reason
    assert str(at) in reason
    code, said = await run(house, "history", "show")
    assert (code, at.entry in said, index.id in said, "from a backup" in said) == (1, True, True, True)
    await flip_state_file(house, index.id)  # it is restored
    await asyncio.wait_for(starting, 60)
    assert await digest_at(stuck, at) == expected
    await stuck.stop()
    assert (await run(house, "history", "show"))[0] == 0


@pytest.mark.parametrize("of", ["index", "base", "manifest"])
async def test_damage_that_snapshots_hide_is_found_with_the_way_out(house: House, of: str) -> None:
    await house.append(*events(20))
    index, at = await adopt(house)
    for seed in (3, 4):
        await snapshot(house, seed)
    await move(house)
    living = await house.living()
    name = index.id
    if of == "base":
        async with acquire(house.store, living.keys) as lease:
            to = ArchiveContext(house.store, house.artifacts, living, lease, HistoryParams(keep_bytes=1))
            contents = await archive(to)
            assert contents is not None
            base = (await enforce_retention(to, contents)).base
        assert base is not None
        name = base.index
    assert (await run(house, "history", "show"))[0] == 0
    if of == "manifest":
        name = "manifest"
        await house.store.client.setrange(history_key(living.keys), 20, "damage")
    else:
        await flip_state_file(house, name)
    code, said = await run(house, "history", "show")
    assert (code, name in said, "history begin-anew" in said) == (1, True, True)
    assert of != "index" or at.entry in said
    with pytest.raises(Corrupted, match=rf"{name}.*`abound history (show|begin-anew)`"):
        await verify(house.store, "default", artifacts=house.artifacts, offline=True)
    assert (await run(house, "history", "begin-anew", "--yes"))[0] == 0
    assert (await run(house, "history", "show"))[0] == 0
    assert (await verify(house.store, "default", artifacts=house.artifacts, offline=True)).good


async def test_a_state_file_of_another_release_is_reported(house: House) -> None:
    await house.append(*events(20))
    index, _ = await adopt(house)
    path = state_files.file_name((await house.living()).keys, index.id, MANIFEST)
    changed = json.loads(await house.artifacts.get(path)) | {"format": 99}
    await house.artifacts.put(path, json.dumps(changed).encode())
    code, said = await run(house, "history", "show")
    assert (code, "has the format 99" in said, "run the release that wrote it" in said) == (1, True, True)


async def test_a_segment_that_the_worker_replaces_during_the_read_is_no_damage(
    model: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = HistoryParams(segment_bytes=14_000)
    before = await model.archive(params)
    read = History.elements

    async def overtaken(history: History, segment: Segment) -> list[Element]:
        if segment == before.segments[-1] and len(model.every) == 180:
            await model.grow(20, 7)
            await model.grow(20, 8)
            await model.archive(params)
            collector = FileCollector(model.store)
            for _ in range(2):
                await collector.collect(model.artifacts, await read_catalog(model.store))
        return await read(history, segment)

    monkeypatch.setattr(History, "elements", overtaken)
    assert await find_damage(model.store, model.artifacts, model.living) == []
    after = await model.contents()
    assert before.segments[-1] not in after.segments
    await model.artifacts.delete(after.segments[0].name)
    missing = await find_damage(model.store, model.artifacts, model.living)
    assert len(missing) == 1
    assert after.segments[0].name in missing[0]


@pytest.mark.parametrize("kind", ["damaged", "newer"])
async def test_an_unreadable_entry_of_the_log_is_named_with_the_way_out(house: House, kind: str) -> None:
    await house.append(*events(20))
    log = (await house.living()).keys.log
    payload = b"\x94nonsense" if kind == "damaged" else msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["new", 1]))
    entry = (await house.store.client.xadd(log, {"e": payload, "c": b"%08x" % zlib.crc32(payload)})).decode()
    code, said = await run(house, "history", "show")
    assert (code, entry in said, "run the release that wrote it" in said) == (1, True, kind == "newer")
    assert ("from a backup" in said, "history begin-anew" in said) == (kind == "damaged", kind == "damaged")
