"""A store that has lost what it had is not taken for a new one: it is refused, with numbers and with ways out."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from abound.core.config import ModelConfig
from abound.core.errors import CannotStart
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.asyncio_tasks import cancel_and_wait
from abound.service.cli.main import app
from abound.service.history.high_water import HighWaterMarks
from abound.service.processes.embedded_store import HIGH_WATER_FILE, EmbeddedStore
from abound.service.replica.replica import Replica
from abound.service.snapshots import schedule
from abound.service.store.client import Store
from abound.service.worker import Worker
from tests.support.fixtures import StartReplica
from tests.support.replicas import teach, until
from tests.support.valkey import PATIENT, Server


async def ended(store: Store, marks: HighWaterMarks, artifacts: ArtifactStore | None = None) -> None:
    """A worker that has come to its end."""
    worker = Worker(store, artifacts=artifacts, marks=marks)
    running = asyncio.create_task(worker.run())
    worker.stop()
    await running


async def taught(url: str, data: Path | None, artifacts: ArtifactStore | None, seed: int = 0, n: int = 50) -> None:
    """A service at this store, from its start to its end, that learns."""
    store = Store(url, PATIENT)
    await HighWaterMarks(store, data, artifacts).check()
    replica = Replica(store, artifacts=artifacts)
    await replica.start()
    await teach(replica, n, seed)
    await replica.stop()
    store = Store(url, PATIENT)
    await ended(store, HighWaterMarks(store, data, artifacts), artifacts)
    await store.close()


async def checked(url: str, data: Path | None, artifacts: ArtifactStore | None = None) -> None:
    store = Store(url, PATIENT)
    try:
        await HighWaterMarks(store, data, artifacts).check()
    finally:
        await store.close()


def logs(data: Path, pattern: str = "**/*.aof") -> dict[str, bytes]:
    """What the files of a store hold, by their names."""
    return {path.name: path.read_bytes() for path in data.glob(pattern)}


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The data directory of an embedded store that has learned, in many entries, and stopped."""
    data = tmp_path / "data"
    with EmbeddedStore(data) as url:
        for seed in range(4):
            await taught(url, data, None, seed, 10)
    return data


async def test_a_store_that_lacks_nothing_is_good(data: Path) -> None:
    with EmbeddedStore(data) as url:
        await checked(url, data)
        await taught(url, data, None, 5)  # further than the marks
        await checked(url, data)


async def test_a_log_that_is_cut_off_is_refused_with_the_numbers(data: Path) -> None:
    [log] = (data / "appendonlydir").glob("*.incr.aof")
    written = log.read_bytes()
    log.write_bytes(written[: len(written) // 2])
    lacks = r"the model default ends at .* \(\d entries\) .* had reached .* \(\d entries\)"
    with EmbeddedStore(data) as url, pytest.raises(CannotStart, match=lacks):
        await checked(url, data)


@pytest.mark.parametrize("command", ["verify --offline", "mend --yes", "store rewrite", "keys list"])
async def test_commands_refuse_a_log_that_is_cut_off(data: Path, command: str) -> None:
    [log] = (data / "appendonlydir").glob("*.incr.aof")
    written = log.read_bytes()
    log.write_bytes(written[: len(written) // 2])
    ran = await asyncio.to_thread(CliRunner().invoke, app, [*command.split(), "--data-dir", str(data)])
    assert isinstance(ran.exception, CannotStart)
    assert re.search("the model default ends at .* had reached .*: abound store accept-loss", str(ran.exception))


@pytest.mark.parametrize("lost", ["appendonlydir/appendonly.aof.manifest", "appendonlydir"])
async def test_a_log_that_is_gone_is_refused_and_what_is_left_stays(data: Path, lost: str) -> None:
    gone = data / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    before = logs(data)
    with pytest.raises(CannotStart, match="abound store accept-loss"):
        EmbeddedStore(data).start()
    assert logs(data) == before
    runner = CliRunner()
    where = ["--data-dir", str(data), "--artifacts-url", str(data / "artifacts")]
    assert runner.invoke(app, ["store", "accept-loss", *where]).exit_code == 2  # it is not confirmed
    with pytest.raises(CannotStart):
        EmbeddedStore(data).start()
    said = await asyncio.to_thread(runner.invoke, app, ["store", "accept-loss", "--yes", *where])
    assert (said.exit_code, "given up: the model default ends at 0-0" in said.output) == (0, True)
    with EmbeddedStore(data) as url:
        await checked(url, data)
        await taught(url, data, None)
    assert logs(data, "appendonlydir-lost-*/*.aof") == before
    with EmbeddedStore(data) as url:  # what was learned after that is there
        await checked(url, data)


async def test_what_is_kept_in_the_data_directory_is_whole_or_what_was_before(data: Path) -> None:
    (data / HIGH_WATER_FILE).write_bytes(b"torn")
    with EmbeddedStore(data) as url:
        await checked(url, data)
        await taught(url, data, None)
    assert (data / HIGH_WATER_FILE).read_bytes().startswith(b'{"catalog"')
    assert logs(data, ".*.part") == {}


async def test_a_model_that_was_deleted_is_not_missed(
    tmp_path: Path, server: Server, start_replica: StartReplica
) -> None:
    artifacts = ArtifactStore(str(tmp_path))
    replica = await start_replica(server, artifacts=artifacts)
    await replica.models.create("news", ModelConfig())
    await teach(replica, name="news")
    await ended(replica.store, HighWaterMarks(replica.store, None, artifacts), artifacts)
    await replica.models.delete("news")
    await checked(server.url, None, artifacts)


async def test_an_emptied_store_is_refused_by_what_the_artifact_store_keeps(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = ArtifactStore(str(tmp_path))
    await taught(server.url, None, artifacts)
    with server.client() as client:
        client.flushall()
    monkeypatch.setenv("ABOUND_ARTIFACTS_URL", str(tmp_path))
    for command in (["verify", "--offline"], ["mend", "--yes"]):
        ran = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--redis-url", server.url])
        assert "the store has lost data" in str(ran.exception)
    with pytest.raises(CannotStart, match=r"the model default ends at 0-0 \(0 entries\).* the artifact store, folder"):
        await checked(server.url, None, artifacts)
    accept = ["store", "accept-loss", "--yes", "--redis-url", server.url]
    said = await asyncio.to_thread(CliRunner().invoke, app, accept)
    assert said.exit_code == 0
    await taught(server.url, None, artifacts)
    await checked(server.url, None, artifacts)


async def test_a_tail_that_is_lost_past_the_newest_snapshot_is_no_reason_to_refuse(
    tmp_path: Path, server: Server, start_replica: StartReplica
) -> None:
    """As a failover to a server that had not all of it loses one."""
    artifacts = ArtifactStore(str(tmp_path))
    replica = await start_replica(server, artifacts=artifacts)
    await teach(replica, 20, 1)
    store = Store(server.url, server.store_params)
    worker = Worker(store, artifacts=artifacts)
    running = asyncio.create_task(worker.run())
    while not await schedule.live_workers(store):  # noqa: ASYNC110  it is in the store
        await asyncio.sleep(0.01)
    await replica.request_snapshot("default")
    await until(lambda: any(tmp_path.glob(f"*/{HIGH_WATER_FILE}")))
    await cancel_and_wait(running)  # no end of its own: nothing is written down after the snapshot
    log = replica.model("default").keys.log
    whole = await store.client.dump(log)
    await teach(replica, 20, 2)
    await replica.stop()
    await store.client.restore(log, 0, whole, replace=True)
    await store.close()
    await checked(server.url, None, ArtifactStore(str(tmp_path)))
