"""The horse: the process of one job, forked by the stable (``service/jobs/rq_worker.py``) once the worker has claimed
the job.

The end of a job, in whatever way
---------------------------------
1. By itself: the horse cleans up, writes what came of it into the record, and ends.
2. Told to stop: a thread of the horse hears it with the next sign of life; the method meets Cancelled at its next
   word of progress, or at its next await. If that takes longer than ``cancel_seconds``, the horse ends at once.
3. The horse dies, or the method fails after it has committed: the worker sees its end, cleans up and lets the job
   wait again. When the worker stops, it kills the horse, and that attempt does not count.
4. All die: the kernel kills the horse with its parent. Some worker notices the silence, and does the same.
5. Its model is deleted: the horse sees it with the next renewal of what is pinned, or when the method commits. Or the
   version that it has committed is: there is nothing left to finish, and the job has failed.
6. Taken for dead and not: the horse hears with its next sign of life that the job is not its own any more, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from abound.core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Cancelled,
    ClusterUnavailable,
    Conflict,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownModel,
    VersionGone,
)
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history import pins
from abound.service.jobs.context import JobContext, clean, living_of
from abound.service.jobs.record import Job, beat_of
from abound.service.jobs.repository import JobParams, Jobs
from abound.service.settings import Settings
from abound.service.store.client import Store, StoreParams, reaching, sync_client
from abound.service.tasks import end

if TYPE_CHECKING:
    from abound.service.jobs.methods import Outcome

log = structlog.get_logger(__name__)

ABANDONED = 7
"""Exit code of a horse that left a job as it was."""

RENEW_SECONDS = pins.PIN_SECONDS / 60


def run(settings: Settings, job_id: str, holder: str) -> None:
    """Run a job that ``holder`` has claimed to its end. Ends the process when it must be given up."""
    try:
        uvloop.run(_run(settings, job_id, holder))
    except StoreUnavailable as error:
        log.warning("a job was left as it was: the store is away", job=job_id, reason=str(error))
        _exit(ABANDONED)


async def _run(settings: Settings, job_id: str, holder: str) -> None:
    params = settings.group(StoreParams)
    store = Store(settings.store_url(), params)
    jobs = Jobs(Store(settings.jobs_store_url(), params), settings.group(JobParams))
    try:
        claimed = await jobs.get(job_id)
        if claimed.holder == holder and (job := await jobs.take_over(claimed, f"{holder}:{os.getpid()}")):
            await Running(settings, store, jobs, job).run()
    finally:
        await store.close()
        await jobs.store.close()


class Running:
    """One job, from its claim to its end."""

    def __init__(self, settings: Settings, store: Store, jobs: Jobs, job: Job) -> None:
        self._settings = settings
        self._store = store
        self._jobs = jobs
        self._job = job
        self._artifacts: Artifacts | None = None
        self._context: JobContext | None = None
        self._told_to_stop = False
        self._gone: UnknownModel | None = None
        self._finished = threading.Event()

    async def run(self) -> None:
        """Run it. StoreUnavailable when its end cannot be written down; somebody else finds it then."""
        job = self._job
        self._threads = ThreadPoolExecutor(thread_name_prefix="job")
        asyncio.get_running_loop().set_default_executor(self._threads)
        began = time.monotonic()
        log.info("began a job", job=job.id, method=job.method, model=job.model, attempt=job.attempt)
        self._work = asyncio.create_task(self._method_outcome())
        beating = threading.Thread(target=self._beat, args=(asyncio.get_running_loop(),), daemon=True)
        beating.start()
        try:
            outcome = await self._work
        except (asyncio.CancelledError, Cancelled):
            if self._gone is None:
                await self._leave("cancelled")
            else:
                await self._fail(str(self._gone), for_good=True)
        except (StoreUnavailable, OutcomeUnknown, ArtifactsUnavailable, ClusterUnavailable) as error:
            await self._jobs.note(job, gone=str(error))
        except AboundError as error:
            await self._fail(str(error), for_good=isinstance(error, UnknownModel | VersionGone))
        except MemoryError:
            await self._fail("there was not enough memory")
        except BaseException as error:
            await self._fail(f"an error of the service: {type(error).__name__}: {error}"[:2000])
            log.exception("a job failed by an error of the service", job=job.id, method=job.method)
        else:
            own = {name: outcome.pop(name, default) for name, default in (("metrics", {}), ("version", None))}
            await self._leave("succeeded", progress=1.0, stage="done", error=None, outcome=outcome, **own)
        finally:
            self._finished.set()
            beating.join(self._jobs.params.beat_seconds + 1.0)
        log.info("a job ended", job=job.id, method=job.method, seconds=round(time.monotonic() - began, 3))

    async def _method_outcome(self) -> Outcome:
        """Prepare the context and call the method."""
        from abound.service.jobs.methods import METHODS  # imported already where jobs are forked

        method = METHODS.get(self._job.method)
        if method is None:
            raise Conflict(f"this worker does not know the method {self._job.method}; it is of another release")
        params = method.check(self._job.params)
        living = await living_of(self._store, self._job)
        place = self._settings.artifacts_place()
        if place is not None:
            self._artifacts = Artifacts(place)
            await self._artifacts.join(self._store)
        context = JobContext(self._settings, self._store, self._artifacts, living, self._jobs, self._job)
        self._context = context
        if self._told_to_stop:
            context.stop()
        renewing = asyncio.create_task(self._renew(context))
        try:
            return await method.run(context, params, context.progress)
        finally:
            await end(renewing)
            await context.unpin()

    async def _renew(self, context: JobContext) -> None:
        """Renew what is pinned, and see whether the model is still there: nobody wants what comes of it else."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StoreUnavailable):
                await context.renew_pin()
                try:
                    await living_of(self._store, self._job)
                except UnknownModel as error:
                    if not context.committed:
                        self._gone = error
                        context.stop()
                        self._work.cancel()
                    return

    async def _fail(self, error: str, for_good: bool = False) -> None:
        """End the job as failed; one that has committed can only be finished, so the keeper lets it wait again."""
        committed = self._job.committed if self._context is None else self._context.committed
        if committed and not for_good:
            await self._jobs.note(self._job, gone=error)
        else:
            await self._leave("failed", error=error)

    async def _leave(self, state: Any, **fields: Any) -> None:
        """Wait until no thread of the method writes any more, clean up, then end the job."""
        method_threads, self._threads = self._threads, ThreadPoolExecutor(thread_name_prefix="end")
        asyncio.get_running_loop().set_default_executor(self._threads)
        await asyncio.to_thread(method_threads.shutdown)
        try:
            await clean(self._jobs, self._job, self._artifacts)
        except ArtifactsUnavailable as error:  # the keeper tries again
            await self._jobs.note(self._job, gone=str(error))
            return
        await self._jobs.end(self._job, state, **fields)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say again and again that the job is at work, and hear whether it is to stop; in a thread of its own."""
        params = self._jobs.params
        client = sync_client(self._settings.jobs_store_url(), self._jobs.store.params.reply_seconds)
        until = None
        while not self._finished.wait(params.beat_seconds if until is None else 0.1):
            stage, progress = self._context.told if self._context else (None, 0.0)
            told: Any = 1
            if until is None:
                try:
                    with reaching():
                        told = client.eval(*beat_of(self._job.id, self._job.holder or "", progress, stage))
                except StoreUnavailable:
                    continue
            if self._finished.is_set():
                return
            if told is None:
                log.warning("a job was taken over by somebody else", job=self._job.id)
                _exit(ABANDONED)
            if told and until is None:
                until = time.monotonic() + params.cancel_seconds
                self._told_to_stop = True
                if self._context is not None:
                    self._context.stop()
                loop.call_soon_threadsafe(self._work.cancel)
            if until is not None and time.monotonic() > until:
                log.warning("a job did not stop when it was told to", job=self._job.id)
                _exit(ABANDONED)


def _exit(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)
