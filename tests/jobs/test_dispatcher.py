"""The keeper of jobs, in this process and without the processes that do them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from abound.artifacts.artifact_store import ArtifactStore
from abound.jobs import dispatcher
from abound.jobs.dispatcher import JobDispatcher
from abound.jobs.record import Job, new_id
from abound.jobs.repository import JobParams, JobRepository
from abound.settings import Settings
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions import versions as versions
from abound.versions.card import CARD
from abound_core.errors import Conflict, StoreUnavailable, UnknownJob
from tests.support.valkey import Server


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Settings:
    url = SecretStr(server.url)
    return Settings(redis_url=url, artifacts_url=SecretStr(str(tmp_path / "artifacts")), worker_kinds="none")


@asynccontextmanager
async def keeping(settings: Settings, jobs: JobRepository, n: int = 1) -> AsyncIterator[None]:
    """Keepers at work, which claim no jobs."""
    stopping = asyncio.Event()
    stables = [Stable(settings) for _ in range(n)]
    tasks = [asyncio.create_task(JobDispatcher(settings, jobs.store, jobs, stable).run(stopping)) for stable in stables]
    try:
        yield
    finally:
        stopping.set()
        await asyncio.gather(*tasks)


class Stable:
    """Runs nothing."""

    def __init__(self, settings: Settings) -> None:
        self.running: dict[str, str] = {}
        self._stopped = asyncio.Event()

    async def connect(self) -> None: ...

    async def listen(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()


async def submitted(jobs: JobRepository) -> Job:
    return await jobs.submit(Job(id=new_id(), state="queued", model="m", origin="1-0", method="steps", kind="replace"))


async def running(jobs: JobRepository, holder: str = "dead:1") -> Job:
    await submitted(jobs)
    job = await jobs.claim("replace", holder)
    assert job is not None
    return job


async def claimed_again(jobs: JobRepository, job: Job) -> Job:
    async with asyncio.timeout(60):
        while (again := await jobs.claim("replace", "dead:2")) is None:
            await jobs.wait("replace")
    assert again.id == job.id
    return again


async def reached(jobs: JobRepository, job: Job, state: str, seconds: float = 60.0) -> Job:
    async with asyncio.timeout(seconds):
        while (found := await jobs.get(job.id)).state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def test_what_has_taken_effect_stays_where_the_store_has_lost_the_commit(settings, store):
    """It failed over to a copy that lacks the commit; the artifact store lost nothing."""
    jobs = JobRepository(store, JobParams(beat_seconds=0.1, lost_seconds=0.5))
    artifacts = ArtifactStore(str(settings.artifacts_location()))
    await artifacts.join(store)
    job = await running(jobs)
    keys = ModelKeys(job.model, "1-0")
    version, begun = versions.folder(keys, "1"), versions.folder(keys, "2")
    for prefix in (version, begun):
        await jobs.add_owned_prefix(job, prefix)
        await artifacts.put(f"{prefix}/part", b"x")
    await artifacts.put(f"{version}/{CARD}", b"{}")
    async with keeping(settings, jobs):
        await reached(jobs, job, "queued")
    assert sorted(await artifacts.names(job.model)) == [f"{version}/{CARD}", f"{version}/part"]


@pytest.mark.parametrize("keepers", [1, 3])
async def test_a_silent_job_is_cleaned_up_and_waits_again(settings, store, monkeypatch, keepers):
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.5)
    jobs = JobRepository(store, JobParams(beat_seconds=0.1, lost_seconds=0.5, attempts=2))
    artifacts = ArtifactStore(str(settings.artifacts_location()))
    await artifacts.join(store)
    job = await running(jobs)
    await jobs.add_owned_prefix(job, "m/jobs/1")
    await artifacts.put("m/jobs/1/part", b"x")
    await artifacts.put("m/jobs/2/part", b"x")
    async with keeping(settings, jobs, keepers):
        waits = await reached(jobs, job, "queued")
        assert (waits.attempt, waits.holder) == (1, None)
        assert await artifacts.names("m") == ["m/jobs/2/part"]
        again = await claimed_again(jobs, job)
        assert again.started - waits.started > dispatcher.RETRY_SECONDS  # type: ignore[operator]
        failed = await reached(jobs, job, "failed")
        assert (failed.attempt, failed.error) == (2, "its worker sent no heartbeat; it was started 2 times")


async def test_the_attempts_of_a_job_outlast_a_short_outage(settings: Settings, store: Store) -> None:
    jobs = JobRepository(store, JobParams(attempts=3))
    job = await running(jobs)
    async with keeping(settings, jobs):
        for least in (8.0, 16.0):
            before = await store.now()
            await jobs.update(await jobs.get(job.id), gone="its process ended with exit code 1")
            waits = await reached(jobs, job, "queued")
            assert waits.due is not None
            assert waits.due - before > least
            await store.client.hdel(f"abound:jobs:job:{job.id}", "due")
            await claimed_again(jobs, job)


async def test_a_committed_job_does_not_fail_and_says_why_it_waits(settings, store, monkeypatch):
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.5)
    jobs = JobRepository(store, JobParams(attempts=2))
    job = await running(jobs)
    assert await jobs.commit(job)
    async with keeping(settings, jobs):
        for attempt in (1, 2, 3):
            with pytest.raises(Conflict, match="can no longer be cancelled"):
                await jobs.cancel(job.id, "not wanted")
            await jobs.update(await jobs.get(job.id), gone="its process was ended by SIGKILL")
            waits = await reached(jobs, job, "queued")
            assert waits.attempt == attempt
            assert waits.error.startswith("its process was ended by SIGKILL")
            assert (waits.due is None) == (attempt == 1)  # begun as often as others are, it waits
            if attempt == 1:
                assert await jobs.claim("replace", "dead:2") is not None
            else:
                assert waits.error.endswith(
                    f"it was started {attempt} times, and it is retried because it is committed"
                )
            if attempt == 2:
                await claimed_again(jobs, job)
    given_up = await jobs.cancel(job.id, "not wanted")
    assert (given_up.state, given_up.error) == ("cancelled", "not wanted")


async def test_silence_is_not_counted_while_the_store_is_away(settings: Settings, own_server: Server) -> None:
    store = Store(own_server.url)
    jobs = JobRepository(store, JobParams(beat_seconds=0.1, lost_seconds=2.0))
    job = await running(jobs)
    url = SecretStr(own_server.url)
    async with keeping(settings.model_copy(update={"redis_url": url}), jobs):
        assert await jobs.heartbeat(job)
        own_server.kill()
        await asyncio.sleep(2.5)
        own_server.start()
        async with asyncio.timeout(60):
            while not await _beats(jobs, job):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await jobs.get(job.id)).holder == "dead:1"
    await store.close()


async def _beats(jobs: JobRepository, job: Job) -> bool:
    try:
        return await jobs.heartbeat(job)
    except StoreUnavailable:
        return False


async def test_a_silent_job_that_was_to_stop_is_cancelled_and_one_at_work_left_alone(settings, store):
    jobs = JobRepository(store, JobParams(beat_seconds=0.1, lost_seconds=2.0))
    working, silent = await running(jobs), await running(jobs)
    await jobs.cancel(silent.id, "not wanted")
    async with keeping(settings, jobs):
        while not (await jobs.get(silent.id)).has_ended:
            assert await jobs.heartbeat(working)
            await asyncio.sleep(0.1)
    assert (await jobs.get(silent.id)).error == "not wanted"
    assert (await jobs.get(working.id)).holder == "dead:1"


async def test_ended_jobs_are_forgotten_the_oldest_first(settings: Settings, store: Store) -> None:
    jobs = JobRepository(store, JobParams(keep=2, keep_seconds=3600.0))
    ended = []
    for state in ("succeeded", "failed", "cancelled", "succeeded"):
        job = await running(jobs)
        await jobs.end(job, state)  # type: ignore[arg-type]
        ended.append(job.id)
    going = await running(jobs)
    async with keeping(settings, jobs), asyncio.timeout(60):
        while len(await jobs.all()) > 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [job.id for job in await jobs.all()] == [going.id, ended[3], ended[2]]
    with pytest.raises(UnknownJob):
        await jobs.get(ended[0])
    assert sum((await jobs.counts()).values()) == 3
    assert sum(total.n for total in await jobs.totals()) == 4  # what there ever was stays counted
    await store.client.hset(f"abound:jobs:job:{ended[3]}", "ended", "1.0")  # long ago
    async with keeping(settings, jobs), asyncio.timeout(60):
        while len(await jobs.all()) > 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [job.id for job in await jobs.all()] == [going.id, ended[2]]
