"""The job dispatcher of a worker: claims jobs, runs them, and recovers jobs whose holder is gone.

Any number of dispatchers may run at the same time. The store decides which of them takes a job over; if that one
dies, another one follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.times import PATIENCE_SECONDS
from abound.jobs.context import delete_uncommitted
from abound.jobs.fork_server import ForkServer
from abound.jobs.record import ENDED, Job
from abound.jobs.repository import JobRepository
from abound.settings import Settings
from abound.store.client import Store
from abound.tasks import cancel_and_wait
from abound_core.errors import ArtifactsUnavailable, StoreUnavailable, UnknownJob

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.25
RETRY_SECONDS = 10.0  # before the next attempt; doubles, so that a short outage does not use up the attempts

MOST_DOUBLINGS = 6
SWEEP_SECONDS = 60.0
STOP_SECONDS = 5.0
FORGOTTEN_AT_ONCE = 100

KILL_SPARE_SECONDS = 3.0  # beyond ``cancel_seconds``, for a job process to notice that it should stop


class JobDispatcher:
    def __init__(self, settings: Settings, store: Store, jobs: JobRepository, fork_server: ForkServer) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._settings = settings
        self._store = store
        self._jobs = jobs
        self._fork_server = fork_server
        self._seen: dict[str, tuple[object, float]] = {}
        self._overdue: dict[str, float] = {}
        self._artifacts: ArtifactStore | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until ``stopping`` is set. Jobs that are running then are queued again for another worker."""
        await self._fork_server.connect()
        listening = asyncio.create_task(self._fork_server.listen())
        tasks = [
            asyncio.create_task(one)
            for one in (
                # one job of each kind at a time, so that a fit does not delay a refit
                *map(self._run_kind, self._settings.job_kinds),
                self._check_jobs_repeatedly(),
            )
        ]
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([stopped, listening, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in (listening, *tasks):
                if task.done():
                    task.result()
        finally:
            await cancel_and_wait(stopped, *tasks)
            self._fork_server.stop()
            await asyncio.wait([listening], timeout=STOP_SECONDS)
            await cancel_and_wait(listening)
            with contextlib.suppress(StoreUnavailable, ArtifactsUnavailable):
                for job in await self._jobs.all("running"):
                    if self._holds(job):
                        await self._recover(job, "the worker stopped", counts=False)

    async def _run_kind(self, kind: str) -> None:
        while True:
            try:
                job = await self._jobs.claim(kind, self.id)
                if job is None:
                    await self._jobs.wait(kind)
                    continue
                how = await self._fork_server.run(kind, job.id, self.id)
                job = await self._jobs.get(job.id)
                if self._holds(job):
                    await self._jobs.update(job, gone=job.gone or how)
            except UnknownJob:
                continue
            except StoreUnavailable as error:  # a job that was claimed but not run gets no heartbeat and is recovered
                log.warning("jobs cannot be claimed; trying again", kind=kind, reason=str(error))
                await asyncio.sleep(1.0)

    def _holds(self, job: Job) -> bool:
        return (job.holder or "").startswith(self.id)

    async def _check_jobs_repeatedly(self) -> None:
        loop = asyncio.get_running_loop()
        swept = 0.0
        while True:
            try:
                await self._check_jobs()
                if loop.time() - swept > SWEEP_SECONDS:
                    await self._delete_old_records()
                    swept = loop.time()
            except StoreUnavailable as error:
                log.warning("running jobs cannot be checked; trying again", reason=str(error))
                self._seen.clear()  # heartbeats cannot be seen now, so none counts as missing
                await asyncio.sleep(1.0)
            except ArtifactsUnavailable as error:
                log.warning("the artifacts of a job cannot be deleted; trying again", reason=str(error))
                await asyncio.sleep(1.0)
            await asyncio.sleep(POLL_SECONDS)

    async def _check_jobs(self) -> None:
        """Recover running jobs without a holder; kill processes whose job is cancelled or has another holder."""
        running = await self._jobs.all("running")
        now = asyncio.get_running_loop().time()
        seen: dict[str, tuple[object, float]] = {}
        for job in running:
            sign = (job.holder, job.heartbeat)
            before, since = self._seen.get(job.id, (sign, now))
            seen[job.id] = (sign, since if before == sign else now)
            # Its process gave it up, or sent no heartbeat for ``lost_seconds`` of this dispatcher's own clock.
            if job.gone is not None or now - seen[job.id][1] > self._jobs.params.lost_seconds:
                await self._recover(job, job.gone or "its worker sent no heartbeat")
        self._seen = seen
        ours = {job.id for job in running if self._holds(job) and not job.cancelling}
        overdue = {}
        for kind, job_id in self._fork_server.running.items():
            if job_id not in ours:
                since = overdue[job_id] = self._overdue.get(job_id, now)
                if now - since > self._jobs.params.cancel_seconds + KILL_SPARE_SECONDS:
                    self._fork_server.kill(kind)
        self._overdue = overdue

    async def _recover(self, job: Job, why: str, counts: bool = True) -> None:
        """Take over a job whose holder is gone, clean up, and queue or end it. ``counts``: the attempt counts."""
        # From here on its former holder can change nothing.
        taken = await self._jobs.take_over(job, f"{self.id}:0")
        if taken is None:
            return
        beating = asyncio.create_task(self._send_heartbeats(taken))
        try:
            await delete_uncommitted(self._jobs, taken, await self._artifact_store())
        finally:
            await cancel_and_wait(beating)
        in_vain = counts and taken.attempt >= self._jobs.params.attempts
        if taken.cancelling:
            await self._jobs.end(taken, "cancelled")
        elif in_vain and not taken.committed:
            await self._jobs.end(taken, "failed", error=f"{why}; it was started {_times(taken.attempt)}")
            log.error("a job failed", job=job.id, method=job.method, reason=why, attempts=taken.attempt)
        else:
            # A committed job can only be finished. It is claimed before all other queued jobs, because jobs of its
            # model may wait for it.
            if in_vain:
                why += f"; it was started {_times(taken.attempt)}, and it is retried because it is committed"
            delay = self._delay(taken) if counts else 0.0
            await self._jobs.requeue(taken, why, counts=counts, delay=delay)
            log.warning("a job is queued again", job=job.id, method=job.method, reason=why, seconds=delay)

    def _delay(self, job: Job) -> float:
        # The first retries of a committed job have no delay, because other jobs may wait for it.
        doublings = job.attempt - (self._jobs.params.attempts if job.committed else 1)
        return RETRY_SECONDS * 2 ** min(doublings, MOST_DOUBLINGS) if doublings >= 0 else 0.0

    async def _send_heartbeats(self, job: Job) -> None:
        with contextlib.suppress(StoreUnavailable):
            there = True
            while there:
                there = await self._jobs.heartbeat(job)
                await asyncio.sleep(self._jobs.params.beat_seconds)

    async def _delete_old_records(self) -> None:
        """Delete the records of jobs that ended long ago or exceed the bound, and delete their artifacts once more."""
        jobs = [job for state in ENDED for job in await self._jobs.all(state, limit=10**9)]
        jobs.sort(key=lambda job: job.ended or 0.0, reverse=True)
        oldest = await self._store.now() - self._jobs.params.keep_seconds
        old = [job for place, job in enumerate(jobs) if place >= self._jobs.params.keep or (job.ended or 0.0) < oldest]
        for job in old[:FORGOTTEN_AT_ONCE]:
            await delete_uncommitted(self._jobs, job, await self._artifact_store())
            await self._jobs.delete(job)
        if old:
            log.info("deleted the records of old jobs", jobs=len(old[:FORGOTTEN_AT_ONCE]))

    async def _artifact_store(self) -> ArtifactStore | None:
        place = self._settings.artifacts_location()
        if self._artifacts is None and place is not None:
            self._artifacts = ArtifactStore(place, patience=PATIENCE_SECONDS)
        if self._artifacts is not None and not self._artifacts.id:
            await self._artifacts.join(self._store)
        return self._artifacts


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"
