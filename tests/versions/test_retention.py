"""What was begun and never finished goes, and nothing else does."""

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from abound.artifacts import write_marks
from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.file_cache import FileCache
from abound.datasets.repository import FOLDER, WRITING_KEY, DatasetRepository
from abound.jobs import fit as fitting
from abound.jobs.fit import fit_params
from abound.jobs.record import Job
from abound.jobs.record import new_id as job_id
from abound.jobs.repository import JobRepository
from abound.log.catalog import DEFAULT_MODEL, read_catalog
from abound.replace.forget import delete_others
from abound.replace.replace import ReplaceContext
from abound.replica.replica import Replica
from abound.state import replica_status
from abound.store.client import Store
from abound.tasks import wait_until
from abound.versions import activation
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound.versions.cache_cleanup import COPIES_KEY
from abound.versions.card import Card, new_id
from abound.versions.promotion import challengers
from abound.worker import Worker
from abound_core.errors import ArtifactsUnavailable, Cancelled, Conflict, NotReady, UnknownVersion, VersionDeleted
from tests.support.lab import Context, Lab, events
from tests.support.replicas import until
from tests.support.small_versions import fitted, place
from tests.support.small_versions import write as write_small
from tests.versions.test_versions import KEYS, fit, write


async def collect(store: Store, artifacts: ArtifactStore) -> int:
    return await versions.collect_garbage(store, artifacts, KEYS, JobRepository(store).committed_prefixes)


async def test_what_nobody_writes_any_more_is_swept(store: Store, artifacts: ArtifactStore) -> None:
    whole = await write(artifacts, fit("frequency"))
    begun = [new_id() for _ in range(2)]
    for name in begun:
        await artifacts.put(f"{versions.folder(KEYS, name)}/000-x.npy", b"x")
    async with versions.writing(store, KEYS, begun[0]):
        assert await collect(store, artifacts) == 1
        left = {name.split("/")[3] for name in await artifacts.names(versions.folder(KEYS))}
        assert left == {whole.id, begun[0]}
    assert await collect(store, artifacts) == 1
    assert await versions.ids(artifacts, KEYS) == [whole.id]
    assert (await versions.load(artifacts, KEYS, whole.id)).card == whole
    assert await collect(store, artifacts) == 0


async def test_a_committed_version_waits_for_its_job_until_that_has_ended(lab: Lab) -> None:
    """The store was full when its card was to be written."""
    keys, jobs = (await lab.living()).keys, JobRepository(lab.store)
    waiting, ended = [await write_small(lab.artifacts, keys, fitted("a"), whole=False) for _ in range(2)]
    for card in (ended, waiting):
        await jobs.submit(Job(id=job_id(), state="queued", model=keys.name, origin="1-0", method="m", kind="fit"))
        job = await jobs.claim("fit", "a worker")
        assert job is not None
        assert await jobs.commit(job, versions.folder(keys, card.id))
        if card is ended:
            assert await jobs.end(job, "cancelled")
        else:
            assert await jobs.requeue(job, "no space left on device", delay=640.0)
    await Worker(lab.store, artifacts=lab.artifacts).sweep(await read_catalog(lab.store))
    assert await versions.ids(lab.artifacts, keys, versions.READY) == [waiting.id]
    assert await activation.publish(lab.store, lab.artifacts, keys, waiting.id) == waiting
    assert (await versions.load(lab.artifacts, keys, waiting.id)).card == waiting


async def test_a_folder_that_cannot_be_read_loses_no_version(store, artifacts, monkeypatch):
    whole = await write(artifacts, fit("frequency"))
    folder = str(artifacts.path(versions.folder(KEYS, whole.id)))
    scandir, calls = os.scandir, itertools.count()

    def scan(path: Any = ".") -> Any:
        if str(path) == folder and next(calls) == 1:  # the second listing
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(ArtifactsUnavailable, match="Input/output error"):
        await collect(store, artifacts)
    assert (await versions.load(artifacts, KEYS, whole.id)).card == whole


async def test_nothing_is_deleted_while_a_version_is_activated(store: Store, artifacts: ArtifactStore) -> None:
    made = [await write(artifacts, fit("frequency"), created=float(second)) for second in (1, 2)]
    async with activation.fence(store, KEYS):
        assert await version_retention.retain(store, artifacts, KEYS, 1) == []
        with pytest.raises(Conflict):
            await version_retention.delete(store, artifacts, KEYS, made[0].id)
    assert await version_retention.retain(store, artifacts, KEYS, 1) == [made[0].id]
    assert await versions.ids(artifacts, KEYS) == [made[1].id]


@pytest.mark.parametrize("way", ["delete", "retain"])
async def test_what_is_entered_while_it_is_deleted_keeps_no_place(store, artifacts, monkeypatch, way):
    """After it was looked at whether it is a challenger."""
    cards = [await write(artifacts, fit("frequency"), created=float(second)) for second in (1, 2)]
    clear = artifacts.clear

    async def late(folder: str) -> None:
        await challengers.enter(store, KEYS, cards[0].id, "at the same time")
        await clear(folder)

    monkeypatch.setattr(artifacts, "clear", late)
    if way == "delete":
        await version_retention.delete(store, artifacts, KEYS, cards[0].id)
    else:
        assert await version_retention.retain(store, artifacts, KEYS, 1) == [cards[0].id]
    assert await versions.ids(artifacts, KEYS) == [cards[1].id]
    assert await challengers.list_challengers(store, KEYS) == []


async def test_what_was_deleted_before_it_is_entered_keeps_no_place(store: Store, artifacts: ArtifactStore) -> None:
    card = await write(artifacts, fit("frequency"))
    await version_retention.enter_challenger(store, artifacts, KEYS, card.id, "it is there")
    assert [one.version for one in await challengers.list_challengers(store, KEYS)] == [card.id]
    await artifacts.clear(versions.folder(KEYS, card.id))
    with pytest.raises(UnknownVersion):
        await version_retention.enter_challenger(store, artifacts, KEYS, card.id, "it is gone")
    assert await challengers.list_challengers(store, KEYS) == []


async def test_files_of_data_sets_that_nothing_points_to_are_swept(store: Store, artifacts: ArtifactStore) -> None:
    known = DatasetRepository(store)
    for name in ("lost", "busy"):
        await artifacts.put(f"{FOLDER}/{name}.jsonl", b"x")
    async with write_marks.hold_write_mark(store, WRITING_KEY, "busy.jsonl"):
        assert await known.collect_garbage(artifacts) == 1
        assert await artifacts.names(FOLDER) == [f"{FOLDER}/busy.jsonl"]
    assert await known.collect_garbage(artifacts) == 1


async def begin(artifacts: ArtifactStore, **given: Any) -> Card:
    return await write(artifacts, fit("frequency"), whole=False, **given)


async def test_what_is_not_published_is_not_seen(store: Store, artifacts: ArtifactStore) -> None:
    begun = await begin(artifacts)
    assert await versions.ids(artifacts, KEYS) == []
    with pytest.raises(UnknownVersion):
        await activation.activate(place(store, artifacts, KEYS), begun.id, "a test")
    for _ in range(2):
        assert await activation.publish(store, artifacts, KEYS, begun.id) == begun
    assert [card.id for card in await versions.cards(artifacts, KEYS)] == [begun.id]
    assert await versions.ids(artifacts, KEYS, versions.READY) == []
    assert (await versions.load(artifacts, KEYS, begun.id)).card == begun


async def test_what_was_taken_away_is_not_published(store: Store, artifacts: ArtifactStore) -> None:
    begun = await begin(artifacts)
    await artifacts.clear(versions.folder(KEYS, begun.id))
    with pytest.raises(VersionDeleted, match="was deleted before its job ended"):
        await activation.publish(store, artifacts, KEYS, begun.id)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_job_commits_before_its_version_is_seen(lab: Lab, cancelled: bool) -> None:
    await lab.teach(*events(80))
    living, seen = await lab.living(), list[list[str]]()
    context = Context(lab, living)

    async def commit(*prefixes: str) -> None:
        seen.append(await versions.ids(lab.artifacts, living.keys))
        if cancelled:
            raise Cancelled("the job was told to stop")

    context.commit = commit  # type: ignore[method-assign]
    if cancelled:
        with pytest.raises(Cancelled):
            await fit_again(context)
    else:
        seen.append([(await fit_again(context))["version"]])
    assert seen[0] == []
    assert await versions.ids(lab.artifacts, living.keys) == seen[-1]


async def fit_again(context: Context) -> dict[str, Any]:
    return await fitting.fit(cast(Any, context), fit_params("frequency")(), context.progress)


async def test_a_job_that_died_after_it_committed_goes_on(lab: Lab) -> None:
    living = await lab.living()
    begun = await write_small(lab.artifacts, living.keys, fitted("a"), whole=False)
    context = Context(lab, living, committed=True, kept=[versions.folder(living.keys, begun.id)])
    for _ in range(2):
        assert (await fit_again(context))["version"] == begun.id
        assert await versions.ids(lab.artifacts, living.keys) == [begun.id]


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
    bad, good = await write_small(artifacts, keys, fit("swnn")), await write_small(artifacts, keys, fit("frequency"))
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
    card = await write_small(away, keys, fit("swnn"))
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
    present = await until(lambda: one.replicas(DEFAULT_MODEL))
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
