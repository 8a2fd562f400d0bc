"""A store that has lost what it had is not taken for a new one: it is refused, with numbers and with ways out."""

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from abound.artifacts.artifact_store import ArtifactStore
from abound.cli.main import app
from abound.history import high_water
from abound.history.archive import restart_history
from abound.history.high_water import HighWaterRecorder
from abound.log.catalog import CATALOG_KEY, Catalog, read_catalog
from abound.log.events import APPLY_VERSION, CatalogEntry, ModelDeleted
from abound.processes.embedded_store import EmbeddedStore
from abound.settings import Settings
from abound.state.snapshots import delete_incarnation
from abound.store.client import Store
from abound_core.errors import ArtifactsUnavailable, CannotStart, Corrupted
from abound_core.types import Offset
from tests.support.lab import Archived
from tests.support.replicas import teach, until
from tests.support.streams import append, create, fields_of
from tests.support.valkey import PATIENT, Server


class Place:
    """A store and its artifact store, as the processes of a service use them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.store = Store(url, PATIENT)
        self.artifacts = ArtifactStore(str(folder))
        self.settings = Settings.load(redis_url=url, artifacts_url=str(folder))
        self.catalog = Catalog()

    async def check(self) -> None:
        await high_water.check(self.settings, self.store)

    async def refusal(self) -> str:
        with pytest.raises(CannotStart) as caught:
            await self.check()
        return str(caught.value)

    async def record(self, recorder: HighWaterRecorder | None = None, times: int = 2) -> HighWaterRecorder:
        """Record what the store has now: what the first time reads, the second one writes."""
        self.catalog = await read_catalog(self.store)
        recorder = recorder or HighWaterRecorder(self.store, self.artifacts, lambda: self.catalog, self.is_writer)
        for _ in range(times):
            await recorder.record()
        return recorder

    async def is_writer(self) -> bool:
        return True

    async def learn(self, n: int, name: str = "default") -> bytes:
        """Append entries to a model, which is created if there is none; return the key of its log."""
        living = (await read_catalog(self.store)).get(name) or await create(self.store, name)
        await append(self.store, living, n, 1)
        return living.keys.log

    async def delete(self, name: str) -> None:
        living = (await read_catalog(self.store)).get(name)
        deleted = CatalogEntry(APPLY_VERSION, ModelDeleted(name, living.keys.incarnation))
        await self.store.client.xadd(CATALOG_KEY, fields_of(deleted))
        await delete_incarnation(self.store, living.keys)

    @property
    def marks(self) -> Path:
        [folder] = Path(self.artifacts.url).iterdir()
        return folder / high_water.FILE


@pytest.fixture
async def place(server: Server, tmp_path: Path) -> Any:
    place = Place(server.url, tmp_path / "artifacts")
    yield place
    await place.store.close()


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The data directory of a store that was killed after 20 entries of one model and 10 of another."""
    data = tmp_path / "data"
    embedded = EmbeddedStore(data)
    place = Place(embedded.start(), data / "artifacts")
    await place.check()
    await place.artifacts.join(place.store)
    await place.learn(20)
    await place.learn(10, "news")
    await place.record()
    await place.store.close()
    embedded.process.kill()
    embedded.stop()
    return data


def files(data: Path, folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.glob(f"{folder}/*.aof")}


async def checked(data: Path) -> str | None:
    """Return why a start is refused, or None."""
    with EmbeddedStore(data) as url:
        place = Place(url, data / "artifacts")
        try:
            await place.check()
        except CannotStart as error:
            return str(error)
        finally:
            await place.store.close()
    return None


def cut(data: Path, part: float) -> None:
    [log] = data.glob("appendonlydir/*.incr.aof")
    os.truncate(log, int(log.stat().st_size * part))


EMPTY = (
    r"it is new, and the artifact store has the folder \w+ of another store; the catalogue .*"
    r"the model default ends at 0-0 \(0 entries\) and had reached .* \(20 entries\)"
)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda data: cut(data, 0.9),
            r"the model news ends at [\d-]+ \(\d entries\) and had reached .* \(10 entries\)",
        ),
        (
            lambda data: cut(data, 0.5),
            r"the catalogue .*the model default ends at [\d-]+ \(1?\d entries\) and had reached .* \(20 entries\); "
            r"the log of the model news ends at 0-0 \(0 entries\) and had reached .* \(10 entries\)",
        ),
        (lambda data: cut(data, 0), EMPTY),
        (lambda data: shutil.rmtree(data / "appendonlydir"), EMPTY),
    ],
    ids=["cut", "half", "emptied", "removed"],
)
async def test_a_lost_file_is_refused_with_the_numbers_and_the_ways_out(data, damage, says):
    damage(data)
    for _ in range(2):  # the start of the store alone changes nothing
        reason = await checked(data) or ""
        assert re.search(says, reason)
        assert "Restore it from a backup" in reason
        assert "abound store accept-loss" in reason
    words = ["store", "accept-loss", "--data-dir", str(data)]
    assert CliRunner().invoke(app, words).exit_code == 2  # it is not confirmed
    assert await checked(data) is not None
    said = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--yes"])
    assert (said.exit_code, "given up: " in said.output) == (0, True)
    assert await checked(data) is None


async def test_a_lost_manifest_is_refused_and_the_rest_is_moved_aside(data: Path) -> None:
    (data / "appendonlydir" / "appendonly.aof.manifest").unlink()
    left = files(data, "appendonlydir")
    with pytest.raises(CannotStart, match="abound store accept-loss"):
        EmbeddedStore(data).start()
    words = ["store", "accept-loss", "--yes", "--data-dir", str(data)]
    assert (await asyncio.to_thread(CliRunner().invoke, app, words)).exit_code == 0
    assert files(data, "appendonlydir-lost-*") == left
    assert await checked(data) is None


@pytest.mark.parametrize("command", ["verify --offline", "history show", "store rewrite", "keys list"])
async def test_commands_refuse_a_log_that_is_cut_off(data: Path, command: str) -> None:
    cut(data, 0.5)
    ran = await asyncio.to_thread(CliRunner().invoke, app, [*command.split(), "--data-dir", str(data)])
    assert isinstance(ran.exception, CannotStart)
    assert re.search("the model default ends at .* had reached .*: abound store accept-loss", str(ran.exception))


async def test_marks_that_cannot_be_read_refuse_the_start(place: Place) -> None:
    log = await place.learn(10)
    await place.record()
    for content in (b"", b"\x00garbage", b'{"catalog": "yesterday"}'):
        place.marks.write_bytes(content)
        assert f"{high_water.FILE} in the artifact store, is damaged" in await place.refusal()
    await place.store.client.xtrim(log, maxlen=5, approximate=False)
    with pytest.raises(Corrupted, match="the next start will be refused"):  # nor are they replaced
        await place.record()
    assert "is damaged" in await place.refusal()


async def test_without_marks_history_shows_a_loss(model: Archived, server: Server) -> None:
    place = Place(server.url, Path(model.artifacts.url))
    await model.archive()
    await place.check()
    last = (await model.contents()).segments[-1].first
    for entry, _ in await place.store.client.xrange(model.living.keys.log):
        await place.store.client.xdel(model.living.keys.log, entry)
    assert f"the model default ends at 0-0 (119 entries) and had reached {last}" in await place.refusal()
    await place.store.client.delete(CATALOG_KEY)
    assert "the catalogue of models ends at 0-0" in await place.refusal()
    await place.store.close()


@pytest.mark.parametrize("at", [4, 9], ids=["inside", "at the end"])
async def test_an_entry_deleted_from_a_log_is_missed(place: Place, at: int) -> None:
    log = await place.learn(10)
    await place.record()
    names = [name for name, _ in await place.store.client.xrange(log)]
    await place.store.client.xdel(log, names[at])
    assert re.search(rf"\(9 entries\) and had reached {names[-1].decode()} \(10 entries\)", await place.refusal())


async def test_an_empty_store_beside_the_folder_of_another_is_refused_before_the_first_mark(place: Place) -> None:
    await place.artifacts.join(place.store)
    await place.store.client.flushall()
    assert f"has the folder {place.artifacts.id} of another store" in await place.refusal()


async def test_a_tail_lost_since_the_reading_before_is_no_reason_to_refuse(place: Place) -> None:
    """A failover to a server that had not all of it loses one, and so may a crash without ``appendfsync always``."""
    log = await place.learn(10)
    recorder = await place.record()
    await place.learn(5)
    await place.record(recorder, times=1)
    for entry, _ in await place.store.client.xrevrange(log, count=5):
        await place.store.client.xdel(log, entry)
    await place.check()


async def test_a_deleted_and_a_recreated_model_are_not_missed(place: Place) -> None:
    await place.learn(10)
    await place.learn(10, "news")
    await place.record()
    await place.delete("news")
    await place.check()
    await place.learn(1, "news")
    await place.check()


async def test_history_and_a_new_start_of_it_lower_no_mark(model: Archived, server: Server) -> None:
    place = Place(server.url, Path(model.artifacts.url))
    recorder = await place.record()
    await model.archive()
    await place.check()
    await model.grow(10, 5)
    await place.record(recorder)
    async with model.archiving() as to:
        await restart_history(to)
    await place.check()
    await place.store.close()


async def test_a_restored_copy_of_the_store_is_good_beside_marks_that_were_copied_before_it(place: Place) -> None:
    log = await place.learn(10)
    recorder = await place.record()
    copied = place.marks.read_bytes()
    await place.learn(5)
    dump = await place.store.client.dump(log)
    await place.learn(5)
    await place.record(recorder)
    await place.store.client.restore(log, 0, dump, replace=True)
    assert "(15 entries) and had reached" in await place.refusal()
    place.marks.write_bytes(copied)
    await place.check()


async def test_a_start_does_not_wait_for_an_artifact_store_that_is_away(place, monkeypatch):
    log = await place.learn(10)
    await place.record()
    await place.store.client.delete(log)

    async def away(*_: object) -> None:
        raise ArtifactsUnavailable("it is away")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(ArtifactStore, "get", away)
        await place.check()
        with pytest.raises(ArtifactsUnavailable):
            await place.record()
    assert [line["reason"] for line in logs] == ["it is away"]
    with pytest.raises(Corrupted, match="the next start will be refused"):  # it is back, and the marks stay
        await place.record()
    assert "(0 entries) and had reached" in await place.refusal()


async def test_a_replica_writes_marks_soon_after_an_event_and_at_its_end(place, server, monkeypatch, start_replica):
    monkeypatch.setattr(high_water, "RECORD_SECONDS", 0.05)
    replica = await start_replica(server, artifacts=ArtifactStore(place.artifacts.url))

    def is_marked(last: Offset) -> bool:
        return f'"last":"{last.entry}"' in place.marks.read_text()

    last = await teach(replica)
    await until(lambda: any(place.marks.parent.glob(high_water.FILE)) and is_marked(last))
    monkeypatch.setattr(high_water, "RECORD_SECONDS", 3600.0)
    last = await teach(replica)
    await replica.stop()
    assert is_marked(last)
