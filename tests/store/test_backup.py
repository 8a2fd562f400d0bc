"""A backup as docs/guides/backups.md tells it, and what is restored from it: real servers, copies of real files."""

import asyncio
import shutil
from pathlib import Path

import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.garbage import FileCollector
from abound.history.history import History
from abound.history.replay import replay
from abound.history.verify import verify
from abound.log.catalog import DEFAULT_MODEL, read_catalog
from abound.replica.replica import Replica
from abound.store.client import Store
from abound_core.errors import AboundError
from abound_core.types import START, Offset
from tests.support.lab import Lab, events
from tests.support.valkey import Server


async def grow(lab: Lab, seed: int) -> None:
    for half in (0, 1):
        await lab.append(*events(40, seed + half))
        await lab.snapshot()
    await lab.archive()


def copy(folder: Path, to: Path) -> None:
    """Copy what there is, and delete nothing that was copied before."""
    shutil.copytree(folder, to, dirs_exist_ok=True)


async def saved(lab: Lab) -> Path:
    """The file that BGSAVE writes."""
    client = lab.store.client
    before = await client.lastsave()
    await asyncio.sleep(1.1)  # it is told in whole seconds
    await client.bgsave()
    async with asyncio.timeout(60):
        while await client.lastsave() == before or (await client.info("persistence"))["rdb_bgsave_in_progress"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return lab.server.directory / "dump.rdb"


def restored(dump: Path) -> Server:
    """A store that has loaded a saved file, and keeps an append-only file from there on."""
    server = Server(appendonly="no", dbfilename="dump.rdb")
    server.kill()
    shutil.copy(dump, server.directory / "dump.rdb")
    server.start()
    with server.client() as client:
        client.config_set("appendonly", "yes")
    server.settings["appendonly"] = "yes"
    return server


async def test_what_is_restored_from_a_backup_is_what_was_there(lab, tmp_path, start_replica):
    backup, early = tmp_path / "backup", tmp_path / "early"
    living = await lab.living()
    await grow(lab, 1)
    copy(lab.folder, backup)  # most of it, which takes long
    copy(lab.folder, early)
    await grow(lab, 3)
    dump = shutil.copy(await saved(lab), tmp_path / "dump.rdb")
    model = await lab.replayed()
    expected, end = await model.compute_digest(), model.offset
    await grow(lab, 5)  # a segment that was small was made larger, and the small one goes
    collector = FileCollector(lab.store)
    for _ in range(3):
        await collector.collect(lab.artifacts, await read_catalog(lab.store))
    copy(lab.folder, backup)  # what came meanwhile

    for folder, is_whole in ((backup, True), (early, False)):
        server = restored(dump)
        store, artifacts = Store(server.url, server.store_params), ArtifactStore(str(folder))
        try:
            await store.check()  # its append-only file is written by then
            replica = Replica(Store(server.url, server.store_params), artifacts=ArtifactStore(str(folder)))
            await replica.start()
            assert replica.model(DEFAULT_MODEL).offset == end
            assert await replica.model(DEFAULT_MODEL).compute_digest() == expected
            await artifacts.join(store)
            contents = await History(store, artifacts, living.keys).manifest()
            assert START < contents.end < end
            if is_whole:
                assert (await verify(store, DEFAULT_MODEL, 20, artifacts)).from_start == expected
                async with Lab(server, folder) as there:
                    await grow(there, 7)
                    await replica.wait_for(DEFAULT_MODEL, (await there.elements())[-1][0], 60)
                    assert (await replay(store, living, from_start=True, artifacts=artifacts)).offset > end
            else:  # the wrong way round: what was written in between is not in it, and is missed
                with pytest.raises(AboundError, match=r"\.seg"):
                    await replay(store, living, from_start=True, artifacts=artifacts)
            await replica.stop()
            server.kill()
            server.start()
            again = await start_replica(server)
            assert again.model(DEFAULT_MODEL).offset >= Offset(*end)
            await again.stop()
        finally:
            await store.close()
            server.close()
