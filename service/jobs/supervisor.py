"""The keeper of jobs, in each worker: claims jobs, has them run, and sees to jobs that nobody does any more.

It does the jobs of a kind one after the other, and those of different kinds at one time: so a fit holds up no rebuild.

A job that runs, and whose process is gone or has been silent for ``lost_seconds`` of this keeper's own clock, is
**taken over**: from then on its former holder can change nothing. What it wrote is deleted, and it waits again, twice
as long each time; or it is cancelled, if it was told to stop; or it has failed, if it was begun often enough. One that
has committed can only be finished: it does not fail, and its record says why it waits. It goes before all that wait:
other jobs of its model may have to wait for it.

Now and then it takes out of the records what ended long ago. Any number of keepers may look at one time: who takes a
job over is decided by the store, and one that dies meanwhile is followed by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket

import structlog

from abound.core.errors import ArtifactsUnavailable, StoreUnavailable, UnknownJob
from abound.service.artifacts.artifact_store import PATIENCE_SECONDS, Artifacts
from abound.service.jobs import workers
from abound.service.jobs.context import clean
from abound.service.jobs.record import ENDED, KINDS, Job
from abound.service.jobs.repository import Jobs
from abound.service.jobs.rq_worker import Stable
from abound.service.model import adoption_lock
from abound.service.settings import Settings
from abound.service.store.client import Store
from abound.service.store.keys import ModelKeys
from abound.service.tasks import end

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
RETRY_SECONDS = 0.5
"""What a job waits that has to be begun again; twice as long each time, ``MOST_DOUBLINGS`` times."""

MOST_DOUBLINGS = 11
SWEEP_SECONDS = 60.0
STOP_SECONDS = 5.0
FORGOTTEN_AT_ONCE = 100

KILL_SPARE_SECONDS = 3.0
"""What a process gets beyond ``cancel_seconds`` to notice that it is to stop, or that its job is not its own."""


class JobKeeper:
    """Keeps the jobs of a store until it is stopped."""

    def __init__(self, settings: Settings, store: Store, jobs: Jobs, stable: Stable) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._settings = settings
        self._store = store
        self._jobs = jobs
        self._stable = stable
        self._kinds = [kind for kind in KINDS if kind in settings.worker_kinds.split(",")]
        self._seen: dict[str, tuple[object, float]] = {}
        self._overdue: dict[str, float] = {}
        self._artifacts: Artifacts | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Keep until ``stopping`` is set; the jobs that are at work then are begun again elsewhere."""
        await self._stable.connect()
        listening = asyncio.create_task(self._stable.listen())
        tasks = [asyncio.create_task(one) for one in (*map(self._do, self._kinds), self._look_again(), self._show())]
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([stopped, listening, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in (listening, *tasks):
                if task.done():
                    task.result()
        finally:
            await end(stopped, *tasks)
            self._stable.stop()
            await asyncio.wait([listening], timeout=STOP_SECONDS)
            await end(listening)
            with contextlib.suppress(StoreUnavailable, ArtifactsUnavailable):
                for job in await self._jobs.all("running"):
                    if self._holds(job):
                        await self._see_to(job, "the worker stopped", counts=False)
            with contextlib.suppress(StoreUnavailable):
                await workers.hide(self._jobs.store, self.id)

    async def _do(self, kind: str) -> None:
        """Do the jobs of a kind, one after the other."""
        while True:
            try:
                job = await self._jobs.claim(kind, self.id)
                if job is None:
                    await self._jobs.wait(kind)
                    continue
                how = await self._stable.run(kind, job.id, self.id)
                job = await self._jobs.get(job.id)
                if self._holds(job):
                    await self._jobs.note(job, gone=job.gone or how)
            except UnknownJob:
                continue
            except StoreUnavailable as error:  # a job that nobody runs falls silent
                log.warning("jobs cannot be claimed", kind=kind, reason=str(error))
                await asyncio.sleep(1.0)

    def _holds(self, job: Job) -> bool:
        return (job.holder or "").startswith(self.id)

    async def _show(self) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                room = self._jobs.params.room
                await workers.show(self._jobs.store, self.id, socket.gethostname(), self._kinds, room)
            await asyncio.sleep(workers.FRESH_SECONDS / 4)

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        swept = 0.0
        while True:
            try:
                await self._look()
                if loop.time() - swept > SWEEP_SECONDS:
                    await self._sweep()
                    swept = loop.time()
            except StoreUnavailable as error:
                log.warning("jobs cannot be looked at", reason=str(error))
                self._seen.clear()  # silence is not counted while nobody can be heard
                await asyncio.sleep(1.0)
            except ArtifactsUnavailable as error:
                log.warning("what a job wrote cannot be deleted", reason=str(error))
                await asyncio.sleep(1.0)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        """See to the jobs that run and have nobody, and to the processes that go on with what is not theirs."""
        running = await self._jobs.all("running")
        now = asyncio.get_running_loop().time()
        seen: dict[str, tuple[object, float]] = {}
        for job in running:
            sign = (job.holder, job.heartbeat)
            before, since = self._seen.get(job.id, (sign, now))
            seen[job.id] = (sign, since if before == sign else now)
            if job.gone is not None or now - seen[job.id][1] > self._jobs.params.lost_seconds:
                await self._see_to(job, job.gone or "its worker fell silent")
        self._seen = seen
        ours = {job.id for job in running if self._holds(job) and not job.cancelling}
        overdue = {}
        for kind, job_id in self._stable.running.items():
            if job_id not in ours:
                since = overdue[job_id] = self._overdue.get(job_id, now)
                if now - since > self._jobs.params.cancel_seconds + KILL_SPARE_SECONDS:
                    self._stable.kill(kind)
        self._overdue = overdue

    async def _see_to(self, job: Job, why: str, counts: bool = True) -> None:
        """Take over a job whose holder is gone, clean up behind it, and let it wait again or end it.

        ``counts``: whether this attempt counts.
        """
        taken = await self._jobs.take_over(job, f"{self.id}:0")
        if taken is None:
            return
        beating = asyncio.create_task(self._beat(taken))
        try:
            await clean(self._jobs, taken, await self._place())
            # An index that it was making for its model is not under way any more, and holds up nobody.
            await adoption_lock.let_go(self._store, ModelKeys(taken.model, taken.incarnation), taken.id)
        finally:
            await end(beating)
        in_vain = counts and taken.attempt >= self._jobs.params.attempts
        if taken.cancelling:
            await self._jobs.end(taken, "cancelled")
        elif in_vain and not taken.committed:
            await self._jobs.end(taken, "failed", error=f"{why}; it was begun {_times(taken.attempt)}")
            log.error("a job failed", job=job.id, method=job.method, reason=why, attempts=taken.attempt)
        else:
            if in_vain:
                why += f"; it was begun {_times(taken.attempt)}, and can only be finished"
            delay = self._delay(taken) if counts else 0.0
            await self._jobs.requeue(taken, why, counts=counts, delay=delay)
            log.warning("a job waits to be begun again", job=job.id, method=job.method, reason=why, seconds=delay)

    def _delay(self, job: Job) -> float:
        """For how long a job waits that has to be begun again; one that has committed holds up others at first."""
        doublings = job.attempt - (self._jobs.params.attempts if job.committed else 1)
        return RETRY_SECONDS * 2 ** min(doublings, MOST_DOUBLINGS) if doublings >= 0 else 0.0

    async def _beat(self, job: Job) -> None:
        with contextlib.suppress(StoreUnavailable):
            there = True
            while there:
                there = await self._jobs.beat(job)
                await asyncio.sleep(self._jobs.params.beat_seconds)

    async def _sweep(self) -> None:
        """Take out of the records what ended long ago, or is too much, and once more what it wrote."""
        jobs = [job for state in ENDED for job in await self._jobs.all(state, limit=10**9)]
        jobs.sort(key=lambda job: job.ended or 0.0, reverse=True)
        oldest = await self._jobs.now() - self._jobs.params.keep_seconds
        old = [job for place, job in enumerate(jobs) if place >= self._jobs.params.keep or (job.ended or 0.0) < oldest]
        for job in old[:FORGOTTEN_AT_ONCE]:
            await clean(self._jobs, job, await self._place())
            await self._jobs.forget(job)
        if old:
            log.info("forgot jobs that ended long ago", jobs=len(old[:FORGOTTEN_AT_ONCE]))

    async def _place(self) -> Artifacts | None:
        """The artifact store, joined."""
        place = self._settings.artifacts_place()
        if self._artifacts is None and place is not None:
            artifacts = Artifacts(place, patience=PATIENCE_SECONDS)
            await artifacts.join(self._store)
            self._artifacts = artifacts
        return self._artifacts


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"
