"""The job runner: the process of one claimed job.

The fork server (``service/jobs/rq_worker.py``) forks it.

How a job can end
-----------------
1. The method returns or fails: the job runner cleans up, writes the outcome into the record, and exits.
2. The job is cancelled: a thread of the job runner learns this from the next heartbeat. The method gets Cancelled
   from its next progress report or its next await. If it takes longer than ``cancel_seconds`` to stop, the job
   runner exits at once.
3. The job runner dies, or the method fails after the commit: the worker notices, cleans up and queues the job
   again. A worker that stops kills its job runners; these attempts do not count.
4. The worker dies: the kernel kills the job runner with its parent. Another worker notices the missing heartbeat
   and does the same.
5. The model is deleted: the job runner notices when it renews the pin or when the method commits. If the committed
   version is deleted, nothing is left to finish and the job fails.
6. The job runner was wrongly taken for dead: the next heartbeat says that the job has another holder, and the job
   runner exits.
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
"""Exit code of a job runner that left the record as it was."""

RENEW_SECONDS = pins.PIN_SECONDS / 60


def run(settings: Settings, job_id: str, holder: str) -> None:
    """Run a job that ``holder`` has claimed until it ends. Exits the process if the store cannot be reached."""
    try:
        uvloop.run(_run(settings, job_id, holder))
    except StoreUnavailable as error:
        log.warning(
            "a job was abandoned because the store cannot be reached; a worker will retry it",
            job=job_id,
            reason=str(error),
        )
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
    """The run of one job, from its claim to its end."""

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
        """Run the job. Raises StoreUnavailable if its end cannot be recorded; a worker recovers the job then."""
        job = self._job
        self._threads = ThreadPoolExecutor(thread_name_prefix="job")
        asyncio.get_running_loop().set_default_executor(self._threads)
        began = time.monotonic()
        log.info("started a job", job=job.id, method=job.method, model=job.model, attempt=job.attempt)
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
            await self._fail("the job ran out of memory")
        except BaseException as error:
            await self._fail(f"internal error: {type(error).__name__}: {error}"[:2000])
            log.exception("a job failed with an internal error", job=job.id, method=job.method)
        else:
            own = {name: outcome.pop(name, default) for name, default in (("metrics", {}), ("version", None))}
            await self._leave("succeeded", progress=1.0, stage="done", error=None, outcome=outcome, **own)
        finally:
            self._finished.set()
            beating.join(self._jobs.params.beat_seconds + 1.0)
        log.info("a job ended", job=job.id, method=job.method, seconds=round(time.monotonic() - began, 3))

    async def _method_outcome(self) -> Outcome:
        """Prepare the context and call the method."""
        from abound.service.jobs.methods import METHODS  # the fork server has imported it already

        method = METHODS.get(self._job.method)
        if method is None:
            raise Conflict(
                f"this worker does not know the method {self._job.method}; run the same release on all hosts"
            )
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
        """Renew the pin, and cancel the job if its model was deleted."""
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
        """End the job as failed. A committed job can only be finished, so the job supervisor queues it again."""
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
        except ArtifactsUnavailable as error:  # the job supervisor tries again
            await self._jobs.note(self._job, gone=str(error))
            return
        await self._jobs.end(self._job, state, **fields)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send heartbeats and learn from the answers whether to stop. Runs in its own thread."""
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
                log.warning("a job was taken over by another worker", job=self._job.id)
                _exit(ABANDONED)
            if told and until is None:
                until = time.monotonic() + params.cancel_seconds
                self._told_to_stop = True
                if self._context is not None:
                    self._context.stop()
                loop.call_soon_threadsafe(self._work.cancel)
            if until is not None and time.monotonic() > until:
                log.warning("a job did not stop in time; its process exits", job=self._job.id)
                _exit(ABANDONED)


def _exit(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)
