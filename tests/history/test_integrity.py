"""Damage that good snapshots hide, and state files that are lost: both are found, with the way out."""

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
from abound.history.history import Base, History, HistoryParams, Segment, history_key
from abound.history.integrity import find_damage
from abound.history.replay import compact
from abound.history.retention import enforce_retention
from abound.history.verify import verify
from abound.log.catalog import read_catalog
from abound.log.events import APPLY_VERSION
from abound.log.stream import Element
from abound.replica.replica import Replica
from abound.state import state_files
from abound.state.state_image import MANIFEST
from abound.store.client import Store
from abound.store.lease import acquire
from abound_core.errors import AboundError, CannotStart, Corrupted
from abound_core.model.live_model import warmup
from tests.support.archived_model import Archived
from tests.support.lab import SMALL, Lab, digest_at, events, model_of
from tests.support.refits import refitted
from tests.support.valkey import Server


@pytest.fixture
async def lab(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    warmup()
    monkeypatch.setenv("ABOUND_ARTIFACTS_URL", str(tmp_path))
    lab = Lab(server, tmp_path)
    await lab.open()
    yield lab
    await lab.close()


async def run(lab: Lab, *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it says, also as an error."""
    done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--redis-url", lab.server.url])
    error = done.exception if isinstance(done.exception, AboundError) else ""
    return done.exit_code, f"{done.stdout}{error}"


async def snapshot(lab: Lab, seed: int) -> None:
    await lab.append(*events(20, seed))
    await compact(lab.store, await lab.living(), SMALL, artifacts=lab.artifacts)


async def move(lab: Lab) -> None:
    """Archive what no snapshot needs."""
    living = await lab.living()
    async with acquire(lab.store, living.keys) as lease:
        await archive(ArchiveContext(lab.store, lab.artifacts, living, lease, HistoryParams(segment_bytes=2000)))


async def flip_state_file(lab: Lab, name: str) -> None:
    path = state_files.file_name((await lab.living()).keys, name, "0")
    part = bytearray(await lab.artifacts.get(path))
    part[len(part) // 2] ^= 1
    await lab.artifacts.put(path, bytes(part))


async def test_a_start_without_the_state_that_it_begins_with_names_the_way_out(lab: Lab) -> None:
    await lab.append(*events(20))
    base = await refitted(lab, model_of(30, 9))
    await flip_state_file(lab, base.index)
    stuck = Replica(Store(lab.server.url, lab.server.store_params), artifacts=ArtifactStore(str(lab.folder)))
    with pytest.raises(CannotStart, match=rf"{base.index}.*from a backup"):
        await stuck.start()
    await stuck.stop()
    code, said = await run(lab, "history", "show")
    assert (code, base.index in said, "from a backup" in said) == (1, True, True)
    await flip_state_file(lab, base.index)  # it is restored
    assert await digest_at(await lab.replica(), (await lab.elements())[-1][0]) is not None
    assert (await run(lab, "history", "show"))[0] == 0


@pytest.mark.parametrize("of", ["refit", "base", "manifest"])
async def test_damage_that_snapshots_hide_is_found_with_the_way_out(lab: Lab, of: str) -> None:
    await lab.append(*events(20))
    base: Base | None = await refitted(lab, model_of(30, 9))
    for seed in (3, 4):
        await snapshot(lab, seed)
    await move(lab)
    living = await lab.living()
    if of == "base":
        async with acquire(lab.store, living.keys) as lease:
            to = ArchiveContext(lab.store, lab.artifacts, living, lease, HistoryParams(keep_bytes=1))
            contents = await archive(to)
            assert contents is not None
            base = (await enforce_retention(to, contents)).base
    assert base is not None
    name = base.index
    assert (await run(lab, "history", "show"))[0] == 0
    if of == "manifest":
        name = "manifest"
        await lab.store.client.setrange(history_key(living.keys), 20, "damage")
    else:
        await flip_state_file(lab, name)
    code, said = await run(lab, "history", "show")
    assert (code, name in said, "history begin-anew" in said) == (1, True, True)
    with pytest.raises(Corrupted, match=rf"{name}.*`abound history (show|begin-anew)`"):
        await verify(lab.store, "default", artifacts=lab.artifacts, offline=True)
    assert (await run(lab, "history", "begin-anew", "--yes"))[0] == 0
    assert (await run(lab, "history", "show"))[0] == 0
    assert (await verify(lab.store, "default", artifacts=lab.artifacts, offline=True)).good


async def test_a_state_file_of_another_release_is_reported(lab: Lab) -> None:
    await lab.append(*events(20))
    base = await refitted(lab, model_of(30, 9))
    path = state_files.file_name((await lab.living()).keys, base.index, MANIFEST)
    changed = json.loads(await lab.artifacts.get(path)) | {"format": 99}
    await lab.artifacts.put(path, json.dumps(changed).encode())
    code, said = await run(lab, "history", "show")
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
async def test_an_unreadable_entry_of_the_log_is_named_with_the_way_out(lab: Lab, kind: str) -> None:
    await lab.append(*events(20))
    log = (await lab.living()).keys.log
    payload = b"\x94nonsense" if kind == "damaged" else msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["new", 1]))
    entry = (await lab.store.client.xadd(log, {"e": payload, "c": b"%08x" % zlib.crc32(payload)})).decode()
    code, said = await run(lab, "history", "show")
    assert (code, entry in said, "run the release that wrote it" in said) == (1, True, kind == "newer")
    assert ("from a backup" in said, "history begin-anew" in said) == (kind == "damaged", kind == "damaged")
