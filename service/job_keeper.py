"""The keeper of jobs, in each worker: has the processes that do jobs, and sees to jobs that nobody does any more.

Several times a second it looks at the jobs that have not ended:

* One that waits, and whose id is in no queue, is put into it (the door died, the queue was lost). If processes ended
  before they had begun it, that takes twice as long each time, and at last it has failed.
* One that runs, and whose process is gone or has been silent for ``lost_seconds`` of this keeper's own clock, is
  **taken over**: from then on its former holder can change nothing. What it wrote is deleted, and it waits again; or
  it is cancelled, if it was told to stop; or it has failed, if it was begun often enough. One that has committed can
  only be finished: it does not fail, waits twice as long each time, and its record says why. It goes before all that
  wait: other jobs of its model may have to wait for it.

Now and then it takes out of the records what ended long ago. Any number of keepers may look at one time: who takes a
job over is decided by the store, and one that dies meanwhile is followed by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence

import structlog

from core.errors import ArtifactsUnavailable, StoreUnavailable
from service import pending, workplaces
from service.artifacts import PATIENCE_SECONDS, Artifacts
from service.catalog import ModelKeys
from service.child import Child
from service.ending import end
from service.job import ENDED, Job
from service.job_context import clean
from service.jobs import Jobs
from service.methods import METHODS
from service.queue import connect, enqueue, waiting
from service.settings import Settings
from service.store import Store

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
LOOKS_WITHOUT = 4
MOST_TRIES = 10
SWEEP_SECONDS = 60.0
STOP_SECONDS = 5.0
FORGOTTEN_AT_ONCE = 100

STABLE = "service.stable"


class JobKeeper:
    """Keeps the jobs of a store until it is stopped.

    Parameters
    ----------
    module : str
        What ``python -m`` runs to do jobs of one kind.
    """

    def __init__(self, settings: Settings, store: Store, jobs: Jobs, module: str = STABLE) -> None:
        self.id = f"keeper-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._settings = settings
        self._store = store
        self._jobs = jobs
        self._module = module
        self._client = connect(settings.jobs_store_url(), store.params.reply_seconds)
        wanted = settings.worker_kinds.split(",")
        self._kinds = sorted({method.kind for method in METHODS.values()} & set(wanted))
        self._seen: dict[str, tuple[object, float]] = {}
        self._absent: dict[str, int] = {}
        self._children: dict[str, Child] = {}
        self._artifacts: Artifacts | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Keep until ``stopping`` is set; the jobs that are at work then are begun again elsewhere."""
        self._children = {kind: self._child(kind) for kind in self._kinds}
        children = self._children.values()
        keeping = [asyncio.create_task(child.keep(), name=child.name) for child in children]
        tasks = [*keeping, asyncio.create_task(self._look_again()), asyncio.create_task(self._show())]
        try:
            stopped = asyncio.create_task(stopping.wait())
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await asyncio.gather(*(child.stop(STOP_SECONDS) for child in children))
            await end(stopped, *tasks)
            with contextlib.suppress(StoreUnavailable, ArtifactsUnavailable):
                await self._look()  # what was at work here waits again
            with contextlib.suppress(StoreUnavailable):
                await workplaces.hide(self._jobs.store, self.id)
            self._client.close()

    def _child(self, kind: str) -> Child:
        return Child(
            f"jobs ({kind})",
            self._module,
            ["--kind", kind],
            self._settings.child_environment(),
            [],
            changed=lambda: None,
            say=lambda sentence: log.warning(sentence),
            essential=False,
        )

    async def _show(self) -> None:
        while True:
            kinds = [kind for kind in self._kinds if self._children[kind].trouble is None]
            with contextlib.suppress(StoreUnavailable):
                await workplaces.show(self._jobs.store, self.id, socket.gethostname(), kinds, self._jobs.params.room)
            await asyncio.sleep(workplaces.FRESH_SECONDS / 4)

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
        """See to the jobs that have not ended."""
        running = await self._jobs.all("running")
        now = asyncio.get_running_loop().time()
        seen: dict[str, tuple[object, float]] = {}
        for job in running:
            sign = (job.holder, job.heartbeat)
            before, since = self._seen.get(job.id, (sign, now))
            seen[job.id] = (sign, since if before == sign else now)
            if job.gone is not None:
                await self._see_to(job, job.gone)
            elif now - seen[job.id][1] > self._jobs.params.lost_seconds:
                await self._see_to(job, "its worker fell silent")
        self._seen = seen
        queued = [job for job in await self._jobs.all("queued") if job.kind in self._kinds]
        await self._fill_queues(queued)
        await self._tell_trouble(queued)

    async def _see_to(self, job: Job, why: str) -> None:
        """Take over a job whose holder is gone, clean up behind it, and let it wait again or end it."""
        taken = await self._jobs.take_over(job, self.id)
        if taken is None:
            return
        beating = asyncio.create_task(self._beat(taken))
        try:
            await clean(self._jobs, taken, await self._place())
            # An index that it was making for its model is not under way any more, and holds up nobody.
            await pending.let_go(self._store, ModelKeys(taken.model, taken.incarnation), taken.id)
        finally:
            await end(beating)
        if taken.cancelling:
            await self._jobs.end(taken, "cancelled")
        elif taken.given_back or taken.attempt < self._jobs.params.attempts:
            if await self._jobs.requeue(taken, why, counts=not taken.given_back):
                await asyncio.to_thread(enqueue, self._client, job.kind, job.id, job.committed)
            log.warning("a job waits to be begun again", job=job.id, method=job.method, reason=why)
        elif taken.committed:
            await self._jobs.requeue(taken, f"{why}; it was begun {_times(taken.attempt)}, and can only be finished")
            log.error("a job that has taken effect is not finished", job=job.id, method=job.method, reason=why)
        else:
            await self._jobs.end(taken, "failed", error=f"{why}; it was begun {_times(taken.attempt)}")
            log.error("a job failed", job=job.id, method=job.method, reason=why, attempts=taken.attempt)

    async def _beat(self, job: Job) -> None:
        with contextlib.suppress(StoreUnavailable):
            there = True
            while there:
                there = await self._jobs.beat(job)
                await asyncio.sleep(self._jobs.params.beat_seconds)

    async def _fill_queues(self, queued: Sequence[Job]) -> None:
        """Put the ids of jobs that wait, and have been in no queue for several looks, into their queues."""
        absent: dict[str, int] = {}
        for kind in {job.kind for job in queued}:
            there = await asyncio.to_thread(waiting, self._client, kind)
            for job in queued:
                if job.kind != kind or job.id in there:
                    continue
                if job.unbegun >= self._jobs.params.attempts and not job.committed:
                    await self._jobs.end(job, "failed", error=f"{job.error}; that was tried {_times(job.unbegun)}")
                    log.error("a job failed", job=job.id, method=job.method, reason=job.error, tried=job.unbegun)
                    continue
                absent[job.id] = self._absent.get(job.id, 0) + 1
                if absent[job.id] > LOOKS_WITHOUT * 2 ** self._tries(job):
                    await asyncio.to_thread(enqueue, self._client, kind, job.id, job.committed)
                    absent[job.id] = 0
        self._absent = absent

    def _tries(self, job: Job) -> int:
        """How often it was tried in vain, for how long it waits."""
        return min(MOST_TRIES, job.unbegun + max(0, job.attempt + 1 - self._jobs.params.attempts))

    async def _tell_trouble(self, queued: Sequence[Job]) -> None:
        """Say what jobs wait for whose process does not start here, while no other worker is there for them."""
        for kind, child in self._children.items():
            stage = f"waiting for a worker: the process for {kind} jobs is being started again: {child.trouble}"
            untold = [job for job in queued if job.kind == kind and job.stage != stage]
            if child.trouble is not None and untold and not await workplaces.of_kind(self._jobs.store, kind):
                for job in untold:
                    await self._jobs.wait(job, stage)

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
