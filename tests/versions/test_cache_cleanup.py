"""Copies of versions that are deleted go from every machine, and whoever forgets waits for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.file_cache import FileCache
from abound.log.catalog import DEFAULT_MODEL
from abound.replace.forget import delete_others
from abound.replace.replace import ReplaceContext
from abound.replica.replica import Replica
from abound.state import replica_status
from abound.store.client import Store
from abound.tasks import wait_until
from abound.versions import versions as versions
from abound.versions.cache_cleanup import COPIES_KEY
from abound_core.errors import NotReady, UnknownVersion
from tests.support.replicas import until
from tests.support.small_versions import write
from tests.versions.test_versions import fit


class Machines:
    """Machines that share an object store, each with a folder for copies."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def artifacts(self, machine: str) -> ArtifactStore:
        return ArtifactStore(self.url, FileCache(self.folder / machine, 2**20))

    def copies(self, machine: str) -> list[Path]:
        return sorted((self.folder / machine).glob("*.npy"))


@pytest.fixture
async def machines(store: Store, tmp_path: Path) -> AsyncIterator[Machines]:
    url = f"memory://copies/{tmp_path.name}-{os.getpid()}"
    yield Machines(url, tmp_path)
    artifacts = ArtifactStore(url)
    await artifacts.join(store)
    await artifacts.clear("default")


async def forgotten(replica: Replica, artifacts: ArtifactStore, seconds: float = 60.0) -> None:
    """What a job does once it has replaced a model to forget something."""
    given = {"name": DEFAULT_MODEL, "origin": replica.model(DEFAULT_MODEL).origin, "record": "job"}
    await delete_others(ReplaceContext(store=replica.store, artifacts=artifacts, prepare_seconds=seconds, **given))


async def test_copies_of_what_is_forgotten_go_from_every_machine(server, machines, start_replica):
    one = await start_replica(server, None, machines.artifacts("one"))
    other = await start_replica(server, None, machines.artifacts("other"))
    artifacts = ArtifactStore(machines.url)
    await artifacts.join(one.store)
    keys = one.model(DEFAULT_MODEL).keys
    bad, good = await write(artifacts, keys, fit("swnn")), await write(artifacts, keys, fit("frequency"))
    for replica in (one, other):
        for card in (bad, good):
            await replica.loaded_versions.get(replica.model(DEFAULT_MODEL), card.id)
    needed = {file.checksum for file in good.files}
    for machine in ("one", "other"):
        assert {path.stem for path in machines.copies(machine)} > needed
    await versions.delete(artifacts, keys, bad.id)
    await forgotten(one, artifacts)
    for machine in ("one", "other"):
        assert {path.stem for path in machines.copies(machine)} == needed
    await until(lambda: bad.id not in (one.model(DEFAULT_MODEL).versions or {}))
    with pytest.raises(UnknownVersion):
        await one.loaded_versions.get(one.model(DEFAULT_MODEL), bad.id)
    assert (await one.loaded_versions.get(one.model(DEFAULT_MODEL), good.id)).card == good


async def test_copies_of_what_was_deleted_before_go_as_well(server, machines, start_replica):
    """A machine that was away throws them away when it starts, any other when something is forgotten."""
    one = await start_replica(server, None, machines.artifacts("one"))
    artifacts, away = machines.artifacts("away"), ArtifactStore(machines.url)
    for joined in (artifacts, away):
        await joined.join(one.store)
    keys = one.model(DEFAULT_MODEL).keys
    card = await write(away, keys, fit("swnn"))
    await versions.load(artifacts, keys, card.id)
    await one.loaded_versions.get(one.model(DEFAULT_MODEL), card.id)
    await versions.delete(away, keys, card.id)
    assert machines.copies("one")
    assert machines.copies("away")
    await until(lambda: not one.model(DEFAULT_MODEL).versions)
    await forgotten(one, away)
    assert not machines.copies("one")
    assert machines.copies("away")
    await start_replica(server, None, machines.artifacts("away"))
    await until(lambda: not machines.copies("away"))


async def test_who_forgets_waits_for_every_replica(server, machines, start_replica):
    one = await start_replica(server, None, machines.artifacts("one"))
    artifacts, keys = ArtifactStore(machines.url), one.model(DEFAULT_MODEL).keys
    await artifacts.join(one.store)
    async with asyncio.timeout(60):
        while not (present := await one.replicas(DEFAULT_MODEL)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    other = msgspec.structs.replace(present[0], replica="other", swept_for=[])
    await replica_status.publish(one.store, [(keys, other)])
    with pytest.raises(NotReady, match="may still have copies of deleted versions: other"):
        await forgotten(one, artifacts, 1.5)

    async def is_asked() -> bool:
        return await one.store.client.exists(COPIES_KEY) == 1

    forgetting = asyncio.create_task(forgotten(one, artifacts))
    assert await wait_until(is_asked, 0.01, 60)
    await one.store.client.delete(COPIES_KEY)  # a failover loses what was asked for: it is asked again
    assert await wait_until(is_asked, 0.01, 60)
    await replica_status.withdraw(one.store, [keys], "other")
    await forgetting
