"""The record of jobs: every change happens in the state, and for the holder, that it is meant for, else not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from abound.history import pins
from abound.jobs import dispatcher
from abound.jobs.context import JobContext
from abound.jobs.dispatcher import JobDispatcher
from abound.jobs.record import Job, new_id
from abound.jobs.repository import JobParams, JobRepository
from abound.log.catalog import CATALOG_KEY
from abound.log.events import APPLY_VERSION, CatalogEntry, ModelDeleted
from abound.settings import Settings
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions import versions as versions
from abound.versions.card import CARD
from abound_core.errors import Conflict, StoreUnavailable, UnknownJob, UnknownModel
from abound_core.types import Offset
from tests.support.replicas import until
from tests.support.streams import create, fields_of
from tests.support.valkey import Server


def asked(**fields: object) -> Job:
    given = {"model": "default", "origin": "1-0", "method": "steps", "kind": "replace", "params": {"n": 1}}
    return Job(id=new_id(), state="queued", **(given | fields))  # type: ignore[arg-type]


@pytest.fixture
def jobs(store: Store) -> JobRepository:
    return JobRepository(store, JobParams(queued=3, attempts=2))


async def claimed(jobs: JobRepository, holder: str = "a:1", **fields: object) -> Job:
    job = await jobs.submit(asked(**fields))
    held = await jobs.claim("replace", holder)
    assert held.id == job.id
    return held


async def test_a_job_goes_from_queued_to_its_end(jobs: JobRepository) -> None:
    given = asked(params={"names": ["ä", 'b"'], "n": None}, reason="why not")
    job = await jobs.submit(given)
    assert (job.state, job.params, job.reason, job.attempt) == ("queued", given.params, "why not", 0)
    assert job.created is not None
    assert (job.started, job.ended, job.heartbeat) == (None, None, None)
    running = await jobs.claim("replace", "a:1")
    assert (running.state, running.attempt, running.holder) == ("running", 1, "a:1")
    assert await jobs.claim("replace", "b:1") is None
    assert await jobs.counts() == {"queued": 0, "running": 1, "succeeded": 0, "failed": 0, "cancelled": 0}
    assert await jobs.end(running, "succeeded", progress=1.0, metrics={"P@1": 0.5}, version="v1")
    done = await jobs.get(job.id)
    assert (done.state, done.metrics, done.version, done.has_ended) == ("succeeded", {"P@1": 0.5}, "v1", True)
    assert done.created <= done.started <= done.ended  # type: ignore[operator]
    (total,) = await jobs.totals()
    assert (total.method, total.state, total.n) == ("steps", "succeeded", 1)
    assert total.seconds == pytest.approx(done.ended - done.started, abs=1e-5)  # type: ignore[operator]
    assert not await jobs.end(running, "failed")  # it has ended


async def test_only_the_holder_changes_a_job_that_runs(jobs: JobRepository) -> None:
    job = await claimed(jobs, "a:1")
    assert await jobs.heartbeat(job)
    taken = await jobs.take_over(job, "keeper")
    assert taken is not None
    assert not await jobs.heartbeat(job)
    assert not await jobs.end(job, "succeeded")
    assert not await jobs.update(job, stage="late")
    assert not await jobs.commit(job)
    assert await jobs.take_over(job, "another") is None
    assert await jobs.requeue(taken, "its worker fell silent")
    assert not await jobs.requeue(taken, "once more")
    again = await jobs.claim("replace", "b:1")
    assert (again.attempt, again.stage) == (2, None)


async def test_a_job_of_a_model_that_is_gone_does_not_commit(jobs: JobRepository) -> None:
    living = await create(jobs.store)
    kept, gone = [await claimed(jobs, origin=living.origin) for _ in range(2)]
    contexts = [JobContext(Settings(), jobs.store, None, living, jobs, job) for job in (kept, gone)]
    await contexts[0].commit("here")
    deleted = CatalogEntry(APPLY_VERSION, ModelDeleted("default", living.keys.incarnation))
    await jobs.store.client.xadd(CATALOG_KEY, fields_of(deleted))
    with pytest.raises(UnknownModel, match="default was deleted"):
        await contexts[1].commit("here")
    assert [(await jobs.get(job.id)).committed for job in (kept, gone)] == [True, False]
    assert [one.committed for one in contexts] == [True, False]


async def test_an_attempt_that_was_taken_for_dead_lets_go_of_nothing_that_the_next_one_pins(jobs):
    living = await create(jobs.store)
    first = await claimed(jobs, "a:1", origin=living.origin)
    late = JobContext(Settings(), jobs.store, None, living, jobs, first)
    await late.pin(Offset(3, 0, 0))
    taken = await jobs.take_over(first, "keeper")
    assert taken is not None
    await jobs.requeue(taken, "its worker fell silent")
    second = await jobs.claim("replace", "b:1")
    assert second is not None
    context = JobContext(Settings(), jobs.store, None, living, jobs, second)
    await context.pin(Offset(5, 0, 0))
    await late.unpin()
    assert await pins.oldest(jobs.store, living.keys) == Offset(5, 0, 0)
    await context.unpin()
    assert await pins.oldest(jobs.store, living.keys) is None


async def test_the_oldest_job_of_a_kind_is_claimed_and_one_that_has_committed_before_it(jobs: JobRepository) -> None:
    jobs.params = JobParams()
    committed = await claimed(jobs)
    assert await jobs.commit(committed)
    fit, *waiting = [await jobs.submit(asked(kind=kind)) for kind in ("fit", "replace", "replace", "replace")]
    await jobs.requeue(committed, "its worker fell silent")
    found = [await jobs.claim("replace", f"a:{i}") for i in range(5)]
    assert [one and one.id for one in found] == [committed.id, *(one.id for one in waiting), None]
    assert (await jobs.get(fit.id)).state == "queued"


async def test_a_job_that_is_to_wait_is_not_claimed_before_and_holds_up_no_other(jobs: JobRepository) -> None:
    first = await claimed(jobs)
    await jobs.requeue(first, "its worker fell silent", delay=60)
    second = await claimed(jobs)
    assert second.id != first.id
    assert await jobs.claim("replace", "b:1") is None
    await jobs.store.client.hset(f"abound:jobs:job:{first.id}", "due", str(await jobs.store.now()))
    again = await jobs.claim("replace", "b:1")
    assert (again.id, again.due) == (first.id, None)


async def test_a_worker_is_woken_when_a_job_is_queued(jobs: JobRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    blpop = jobs.store.client.blpop
    monkeypatch.setattr(jobs.store.client, "blpop", lambda keys, timeout: blpop(keys, timeout=60))
    waiting = asyncio.create_task(jobs.wait("replace"))
    await asyncio.sleep(0)
    await jobs.submit(asked())
    async with asyncio.timeout(20):
        await waiting


async def test_of_two_that_race_one_wins(jobs: JobRepository) -> None:
    job = await jobs.submit(asked())
    held = await asyncio.gather(*(jobs.claim("replace", f"a:{i}") for i in range(10)))
    assert len([one for one in held if one is not None]) == 1
    record = await jobs.get(job.id)
    ended = await asyncio.gather(*(jobs.end(record, "failed", error=str(i)) for i in range(10)))
    assert sum(ended) == 1


async def test_what_waits_is_cancelled_and_what_runs_is_told(jobs: JobRepository) -> None:
    waiting = await jobs.submit(asked())
    cancelled = await jobs.cancel(waiting.id, "nobody wants it")
    assert (cancelled.state, cancelled.error) == ("cancelled", "nobody wants it")
    assert await jobs.claim("replace", "a:1") is None
    job = await claimed(jobs)
    told = await jobs.cancel(job.id, "too slow")
    assert (told.state, told.cancelling, told.error) == ("running", True, "too slow")
    assert not await jobs.commit(job)
    await jobs.end(job, "cancelled")
    assert (await jobs.get(job.id)).error == "too slow"
    again = await jobs.cancel(job.id, "once more")
    assert (again.state, again.error) == ("cancelled", "too slow")


async def test_a_commit_and_a_cancel_never_both_happen(jobs: JobRepository) -> None:
    for _ in range(20):
        job = await claimed(jobs)
        committed, cancelled = await asyncio.gather(
            jobs.commit(job), jobs.cancel(job.id, "now"), return_exceptions=True
        )
        assert (committed is True) == isinstance(cancelled, Conflict)
        await jobs.end(job, "cancelled")


async def test_what_a_job_wrote_is_noted_until_it_is_committed(jobs: JobRepository) -> None:
    job = await claimed(jobs)
    await jobs.add_owned_prefix(job, "m/1")
    await jobs.add_owned_prefix(job, "m/2")
    await jobs.commit(job, "m/1")
    assert await jobs.owned_prefixes(job.id) == ["m/2"]
    assert (await jobs.get(job.id)).kept == ["m/1"]
    late = await claimed(jobs)
    await jobs.add_owned_prefix(late, "m/3")
    await jobs.cancel(late.id, "no")
    assert not await jobs.commit(late, "m/3")
    assert await jobs.owned_prefixes(late.id) == ["m/3"]
    assert not (await jobs.get(late.id)).committed


async def test_an_ended_job_is_forgotten_whole(jobs: JobRepository) -> None:
    job = await claimed(jobs)
    await jobs.add_owned_prefix(job, "m/1")
    await jobs.end(job, "failed", error="no")
    await jobs.delete(await jobs.get(job.id))
    with pytest.raises(UnknownJob):
        await jobs.get(job.id)
    assert await jobs.all() == []
    kept = {b"abound:jobs:totals", b"abound:jobs:wake:replace"}
    assert set(await jobs.store.client.keys("*")) == kept


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


async def running(jobs: JobRepository) -> Job:
    return await claimed(jobs, "dead:1", model="m")


async def claimed_again(jobs: JobRepository, job: Job) -> Job:
    async with asyncio.timeout(60):
        while (again := await jobs.claim("replace", "dead:2")) is None:
            await jobs.wait("replace")
    assert again.id == job.id
    return again


async def reached(jobs: JobRepository, job: Job, state: str) -> Job:
    async def is_reached() -> Job | None:
        found = await jobs.get(job.id)
        return found if found.state == state else None

    return await until(is_reached)


async def test_what_has_taken_effect_stays_where_the_store_has_lost_the_commit(settings, store, artifacts):
    """It failed over to a copy that lacks the commit; the artifact store lost nothing."""
    jobs = JobRepository(store, JobParams(beat_seconds=0.1, lost_seconds=0.5))
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
async def test_a_silent_job_is_cleaned_up_and_waits_again(settings, store, artifacts, monkeypatch, keepers):
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.5)
    jobs = JobRepository(store, JobParams(beat_seconds=0.1, lost_seconds=0.5, attempts=2))
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
        await until(lambda: _beats(jobs, job))
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


async def has_at_most(jobs: JobRepository, n: int) -> bool:
    return len(await jobs.all()) <= n


async def test_ended_jobs_are_forgotten_the_oldest_first(settings: Settings, store: Store) -> None:
    jobs = JobRepository(store, JobParams(keep=2, keep_seconds=3600.0))
    ended = []
    for state in ("succeeded", "failed", "cancelled", "succeeded"):
        job = await running(jobs)
        await jobs.end(job, state)  # type: ignore[arg-type]
        ended.append(job.id)
    going = await running(jobs)
    async with keeping(settings, jobs):
        await until(partial(has_at_most, jobs, 3))
    assert [job.id for job in await jobs.all()] == [going.id, ended[3], ended[2]]
    with pytest.raises(UnknownJob):
        await jobs.get(ended[0])
    assert sum((await jobs.counts()).values()) == 3
    assert sum(total.n for total in await jobs.totals()) == 4  # what there ever was stays counted
    await store.client.hset(f"abound:jobs:job:{ended[3]}", "ended", "1.0")  # long ago
    async with keeping(settings, jobs):
        await until(partial(has_at_most, jobs, 2))
    assert [job.id for job in await jobs.all()] == [going.id, ended[2]]
