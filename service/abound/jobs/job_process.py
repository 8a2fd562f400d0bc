"""The process of one claimed job, forked by the fork server (``abound/jobs/fork_server.py``).

However it ends, the artifacts of an uncommitted job are deleted, and an unfinished job is queued again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import pins
from abound.jobs.context import JobContext, delete_uncommitted, model_of
from abound.jobs.record import Job, heartbeat_command
from abound.jobs.repository import JobParams, JobRepository
from abound.processes.memory import format_bytes, limit_memory
from abound.settings import Settings
from abound.store.client import Store, StoreParams, store_errors, sync_client
from abound.tasks import cancel_and_wait
from abound_core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Cancelled,
    Conflict,
    NotReady,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownModel,
    VersionDeleted,
)

if TYPE_CHECKING:
    from abound.jobs.methods import Outcome

log = structlog.get_logger(__name__)

EXIT_ABANDONED = 7  # of a job process that left the record as it was

RENEW_SECONDS = pins.PIN_SECONDS / 60


def run(settings: Settings, job_id: str, holder: str) -> None:
    """Run a job that ``holder`` has claimed until it ends. Exits the process if the store cannot be reached."""
    limit = settings.group(JobParams).memory_limit
    limit_memory(limit)
    try:
        uvloop.run(_run(settings, job_id, holder, limit))
    except StoreUnavailable as error:
        log.warning(
            "a job was abandoned because the store cannot be reached; a worker will retry it",
            job=job_id,
            reason=str(error),
        )
        _exit(EXIT_ABANDONED)


async def _run(settings: Settings, job_id: str, holder: str, limit: int | None) -> None:
    store = Store(settings.store_url(), settings.group(StoreParams))
    jobs = JobRepository(store, settings.group(JobParams))
    try:
        claimed = await jobs.get(job_id)
        if claimed.holder == holder and (job := await jobs.take_over(claimed, f"{holder}:{os.getpid()}")):
            await JobProcess(settings, store, jobs, job, limit).run()
    finally:
        await store.close()


class JobProcess:
    """The run of one job, from its claim to its end. ``limit``: bytes that the process may allocate."""

    def __init__(
        self, settings: Settings, store: Store, jobs: JobRepository, job: Job, limit: int | None = None
    ) -> None:
        self._settings = settings
        self._store = store
        self._jobs = jobs
        self._job = job
        self._limit = limit
        self._artifacts: ArtifactStore | None = None
        self._context: JobContext | None = None
        self._told_to_stop = False
        self._model_deleted: UnknownModel | None = None
        self._finished = threading.Event()

    async def run(self) -> None:
        """Run the job. Raises StoreUnavailable if its end cannot be recorded; a worker recovers the job then."""
        job = self._job
        self._threads = ThreadPoolExecutor(thread_name_prefix="job")
        asyncio.get_running_loop().set_default_executor(self._threads)
        began = time.monotonic()
        log.info("started a job", job=job.id, method=job.method, model=job.model, attempt=job.attempt)
        self._work = asyncio.create_task(self._method_outcome())
        beating = threading.Thread(target=self._send_heartbeats, args=(asyncio.get_running_loop(),), daemon=True)
        beating.start()
        try:
            outcome = await self._work
        except (asyncio.CancelledError, Cancelled):
            if self._model_deleted is None:
                await self._finish("cancelled")
            else:
                await self._fail(str(self._model_deleted), for_good=True)
        except (StoreUnavailable, OutcomeUnknown, ArtifactsUnavailable, NotReady) as error:
            # A worker notices, cleans up and queues the job again.
            await self._jobs.update(job, gone=str(error))
        except AboundError as error:
            # A deleted model or version leaves nothing to finish, even after the commit.
            await self._fail(str(error), for_good=isinstance(error, UnknownModel | VersionDeleted))
        except BaseException as error:
            if _is_lack_of_memory(error):
                limit_memory(None)  # the traceback holds the arrays, and writing the record takes memory too
                await self._fail(out_of_memory(self._jobs.params, self._limit))
                return
            await self._fail(f"internal error: {type(error).__name__}: {error}"[:2000])
            log.exception("a job failed with an internal error", job=job.id, method=job.method)
        else:
            own = {name: outcome.pop(name, default) for name, default in (("metrics", {}), ("version", None))}
            await self._finish("succeeded", progress=1.0, stage="done", error=None, outcome=outcome, **own)
        finally:
            self._finished.set()
            beating.join(self._jobs.params.beat_seconds + 1.0)
        log.info("a job ended", job=job.id, method=job.method, seconds=round(time.monotonic() - began, 3))

    async def _method_outcome(self) -> Outcome:
        from abound.jobs.methods import METHODS  # the fork server has imported it already

        method = METHODS.get(self._job.method)
        if method is None:
            raise Conflict(
                f"this worker does not know the method {self._job.method}; run the same release on all hosts"
            )
        params = method.check(self._job.params)
        living = await model_of(self._store, self._job)
        place = self._settings.artifacts_location()
        if place is not None:
            self._artifacts = ArtifactStore(place)
            await self._artifacts.join(self._store)
        context = JobContext(self._settings, self._store, self._artifacts, living, self._jobs, self._job)
        self._context = context
        if self._told_to_stop:
            context.stop()
        renewing = asyncio.create_task(self._renew(context))
        try:
            return await method.run(context, params, context.progress)
        finally:
            await cancel_and_wait(renewing)
            await context.unpin()

    async def _renew(self, context: JobContext) -> None:
        """Renew the pin, and cancel the job if its model was deleted."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StoreUnavailable):
                await context.renew_pin()
                try:
                    await model_of(self._store, self._job)
                except UnknownModel as error:
                    if not context.committed:
                        self._model_deleted = error
                        context.stop()
                        self._work.cancel()
                    return

    async def _fail(self, error: str, for_good: bool = False) -> None:
        """End the job as failed. A committed job can only be finished, so the job dispatcher queues it again."""
        committed = self._job.committed if self._context is None else self._context.committed
        if committed and not for_good:
            await self._jobs.update(self._job, gone=error)
        else:
            await self._finish("failed", error=error)

    async def _finish(self, state: Any, **fields: Any) -> None:
        """Wait until no thread of the method writes any more, clean up, then end the job."""
        method_threads, self._threads = self._threads, ThreadPoolExecutor(thread_name_prefix="end")
        asyncio.get_running_loop().set_default_executor(self._threads)
        await asyncio.to_thread(method_threads.shutdown)
        try:
            await delete_uncommitted(self._jobs, self._job, self._artifacts)
        except ArtifactsUnavailable as error:  # the job dispatcher tries again
            await self._jobs.update(self._job, gone=str(error))
            return
        await self._jobs.end(self._job, state, **fields)

    def _send_heartbeats(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send heartbeats, in a thread of its own, and learn from the answers whether to stop.

        If they stop, because the process or its worker has died, another worker recovers the job.
        """
        params = self._jobs.params
        client = sync_client(self._settings.store_url(), self._store.params.reply_seconds)
        until = None
        while not self._finished.wait(params.beat_seconds if until is None else 0.1):
            stage, progress = self._context.reported if self._context else (None, 0.0)
            told: Any = 1
            if until is None:
                try:
                    with store_errors():
                        told = client.eval(*heartbeat_command(self._job.id, self._job.holder or "", progress, stage))
                except (StoreUnavailable, MemoryError):
                    continue
            if self._finished.is_set():
                return
            # This process was wrongly taken for dead.
            if told is None:
                log.warning("a job was taken over by another worker", job=self._job.id)
                _exit(EXIT_ABANDONED)
            # The method gets Cancelled from its next progress report or await, or else the process exits below.
            if told and until is None:
                until = time.monotonic() + params.cancel_seconds
                self._told_to_stop = True
                if self._context is not None:
                    self._context.stop()
                loop.call_soon_threadsafe(self._work.cancel)
            if until is not None and time.monotonic() > until:
                log.warning("a job did not stop in time; its process exits", job=self._job.id)
                _exit(EXIT_ABANDONED)


def _is_lack_of_memory(error: BaseException) -> bool:
    no_mapping = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or no_mapping or "can't start new thread" in str(error)


def out_of_memory(params: JobParams, limit: int | None) -> str:
    if params.memory_bytes:
        said = f"{format_bytes(params.memory_bytes)}: set ABOUND_JOBS_MEMORY_BYTES to more"
    else:
        free = "all that was free" if limit is None else f"the {format_bytes(limit)} that were free at its start"
        said = f"{free}: run a worker on a machine with more"
    return f"out of memory: the job may allocate {said}, or choose a method or parameters that need less"


def _exit(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)
