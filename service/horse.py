"""Doing jobs: ``python -m service.horse --kind KIND``, started by the worker, a process for each kind of jobs.

It loads the methods and the kernels once, then waits for ids (RQ) and forks a process for each job (RQ's "work
horse"), which so begins at once. The fork is safe because this process has one thread and computes nothing: no
kernel with threads runs before it.

The end of a job, in whatever way
---------------------------------
1. By itself: the horse cleans up, writes what came of it into the record, and ends.
2. Told to stop: a thread of the horse hears it with the next sign of life; the method meets Cancelled at its next
   word of progress, or at its next await. If that takes longer than ``cancel_seconds``, the horse ends at once.
3. The horse dies: this process notes it in the record, and the keeper of the worker cleans up and lets the job wait
   again. So it does when this process stops: the horse is killed, and that attempt does not count.
4. It ends before it has taken the job (what it is made of cannot be imported, memory is short): it, or this process,
   counts that in the record, and the keeper tries again, later each time, until the job has failed.
5. All die: the kernel kills the horse with its parent. Some keeper notices the silence, and does the same.
6. Taken for dead and not: the horse hears with its next sign of life that the job is not its own any more, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
import structlog
import uvloop
from rq.job import Job as RqJob
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker import Worker
from rq.worker_registration import clean_worker_registry

from core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Cancelled,
    CannotStart,
    ClusterUnavailable,
    Conflict,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownModel,
)
from service import pins
from service.artifacts import Artifacts
from service.catalog import Living, read_catalog
from service.ending import end
from service.job import Job, job_key
from service.job_changes import beat_of, change_of
from service.job_context import JobContext, clean
from service.jobs import JobParams, Jobs
from service.kernel_cache import place
from service.methods import METHODS, JobMethod, Outcome
from service.parentage import dies_with_parent
from service.process import end_with_parent, warm
from service.queue import Ticket, connect, queue_of
from service.report import REFUSED, Report, Reporter
from service.settings import Settings
from service.store import Store, StoreParams, reaching
from service.telemetry import configure_logging

log = structlog.get_logger(__name__)

ABANDONED = 7
"""Exit code of a horse that left a job as it was."""

LISTEN_SECONDS = 35
"""Bounds the wait on a connection that is dead and does not say so; RQ asks anew 15 seconds before."""

WATCH_SECONDS = 1

NICENESS = {"fit": 10}
"""What computes for long gives way to what answers on the same machine."""

SESSION_NICENESS = {"fit": 5}
"""Linux may weigh sessions against each other before it looks at the processes in them (``autogroup``), so a job has
one of its own. It is less nice than the process: on a machine that others keep busy as well, with 10 it had so little
that it did not hear the store's answers in time."""

KILL_SPARE_SECONDS = 3.0
RENEW_SECONDS = pins.PIN_SECONDS / 10


def run(job_id: str, holder: str) -> None:
    """Run a job to its end, in this process, which does nothing else. Ends the process when it must be given up."""
    settings = Settings.load()
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
        job = await jobs.claim(job_id, holder)
        if job is not None:
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
            await self._leave("cancelled")
        except (StoreUnavailable, OutcomeUnknown, ArtifactsUnavailable, ClusterUnavailable) as error:
            await self._jobs.note(job, gone=str(error))
        except AboundError as error:
            await self._leave("failed", error=str(error))
        except MemoryError:
            await self._leave("failed", error="there was not enough memory")
        except BaseException as error:
            await self._leave("failed", error=f"an error of the service: {type(error).__name__}: {error}"[:2000])
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
        method = METHODS.get(self._job.method)
        if method is None:
            raise Conflict(f"this worker does not know the method {self._job.method}; it is of another release")
        params = method.check(self._job.params)
        living = await self._living()
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

    async def _living(self) -> Living:
        living = (await read_catalog(self._store)).get(self._job.model)
        if living is None or living.keys.incarnation != self._job.incarnation:
            raise UnknownModel(f"the model {self._job.model} was deleted")
        return living

    async def _renew(self, context: JobContext) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StoreUnavailable):
                await context.renew_pin()

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
        client = connect(self._settings.jobs_store_url(), self._jobs.store.params.reply_seconds)
        until = None
        while not self._finished.wait(params.beat_seconds if until is None else 0.1):
            stage, progress = self._context.told if self._context else (None, 0.0)
            told: Any = 1
            if until is None:
                try:
                    with reaching():
                        told = client.eval(*_any(beat_of(self._job.id, self._job.holder or "", progress, stage)))
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


class Stable(Worker):
    """RQ's worker: takes ids from one queue and forks a horse for each. Listens to nobody but signals.

    What RQ would do beyond that (commands over pub/sub, registries of jobs, results, callbacks, retries) is left
    out: the record of a job is not RQ's.
    """

    job_class = Ticket

    def __init__(self, kind: str, settings: Settings) -> None:
        self._url = settings.jobs_store_url()
        self._seconds = settings.group(StoreParams).reply_seconds
        self._cancel_seconds = settings.group(JobParams).cancel_seconds + KILL_SPARE_SECONDS
        self._leaving = False
        self._told_at: float | None = None
        self._niceness = NICENESS.get(kind, 0), SESSION_NICENESS.get(kind, 0)
        client = connect(self._url, self._seconds)
        super().__init__(
            [queue_of(kind, client)],
            name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            connection=client,
            serializer=JSONSerializer,
            worker_ttl=LISTEN_SECONDS,
            job_monitoring_interval=WATCH_SECONDS,
            log_job_description=False,
        )

    # RQ's own names from here

    def _set_ip_address(self, connection: redis.Redis) -> None:
        self.ip_address = "unknown"

    def subscribe(self) -> None:
        """Take no commands, and have no thread that would."""

    def run_maintenance_tasks(self) -> None:
        """Take away what RQ noted for workers that are gone; their jobs are the keeper's business."""
        self.last_cleaned_at: Any = now()
        for queue in self.queues:
            clean_worker_registry(queue)
            registry = queue.started_job_registry
            self.connection.zremrangebyscore(registry.key, 0, time.time())
            self.connection.delete(queue.intermediate_queue_key)

    def fork_work_horse(self, job: RqJob, queue: Queue) -> None:
        """Fork the process of a job. It ends with this one, and is the first to go when memory is short."""
        arrange = dies_with_parent()
        self._told_at = None
        pid = os.fork()
        if pid == 0:
            arrange()
            os.setsid()
            _give_way(*self._niceness)
            _prefer_to_be_killed()
            assert isinstance(job, Ticket)
            job.holder = self._holder_of(os.getpid())
            self.main_work_horse(job, queue)
            os._exit(0)
        self._horse_pid = pid

    def monitor_work_horse(self, job: RqJob, queue: Queue) -> None:
        """Wait for the end of a horse, then end whatever it has started: that is in its session."""
        pid = self.horse_pid
        super().monitor_work_horse(job, queue)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def maintain_heartbeats(self, job: RqJob) -> None:
        """Kill a horse that did not hear that it is to stop, or that somebody else has its job."""
        with contextlib.suppress(redis.exceptions.RedisError):
            super().maintain_heartbeats(job)
            state, holder, cancelling = self.connection.hmget(job_key(job.id), "state", "holder", "cancelling")
            ours = holder == f'"{self._holder_of(self.horse_pid)}"'.encode()
            if state == b'"running"' and (cancelling == b"true" or not ours):
                self._told_at = self._told_at or time.monotonic()
                if time.monotonic() - self._told_at > self._cancel_seconds:
                    self.kill_horse()

    def handle_work_horse_killed(self, job: RqJob, retpid: int, ret_val: int, rusage: Any) -> None:
        """Note in the record that its process is gone, and why."""
        holder = self._holder_of(retpid)
        fields = {"gone": "the worker stopped" if self._leaving else _ending(ret_val), "given_back": self._leaving}
        with contextlib.suppress(redis.exceptions.RedisError):
            client = connect(self._url, self._seconds)
            made, _ = client.eval(*_any(change_of(job.id, ("running",), holder=holder, fields=fields)))
            if not made and not self._leaving and os.waitstatus_to_exitcode(ret_val) != ABANDONED:
                self._not_begun(job, _ending(ret_val))

    def handle_job_failure(
        self, job: RqJob, queue: Queue, started_job_registry: Any = None, exc_string: str = ""
    ) -> None:
        """Take the ticket away; what came of the job stands in its record."""
        with contextlib.suppress(redis.exceptions.RedisError), self.connection.pipeline() as pipe:
            self.cleanup_execution(job, pipeline=pipe)
            job.delete(pipeline=pipe, remove_from_queue=False)
            pipe.execute()

    def handle_exception(self, job: RqJob, *exc_info: Any) -> None:
        """What went wrong beside the job itself."""
        log.error("a job could not be begun", job=job.id, exc_info=exc_info)
        self._not_begun(job, f"{type(exc_info[1]).__name__}: {exc_info[1]}"[:1000])

    def _not_begun(self, job: RqJob, why: str) -> None:
        """Count in the record of a job that still waits that a process ended before it had taken it."""
        with contextlib.suppress(redis.exceptions.RedisError):
            client = connect(self._url, self._seconds)
            n = int(client.hget(job_key(job.id), "unbegun") or 0) + 1
            fields = {"unbegun": n, "stage": "waiting to be begun again", "error": f"it could not be begun: {why}"}
            client.eval(*_any(change_of(job.id, ("queued",), fields=fields)))

    def handle_warm_shutdown_request(self) -> None:
        """End the job that is at work; it is begun again elsewhere."""
        self._leaving = True
        if self.horse_pid:
            self.kill_horse()

    def _holder_of(self, pid: int) -> str:
        return f"{self.name}:{pid}"


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        what = f"its process was ended by {signal.Signals(number).name}"
        return f"{what}, perhaps because memory was short" if number == signal.SIGKILL else what
    return f"its process ended with exit code {os.WEXITSTATUS(status)}"


def _give_way(niceness: int, of_session: int) -> None:
    os.nice(niceness)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write(str(of_session))


def _prefer_to_be_killed() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")


def _any(words: list[str | bytes | int]) -> Any:
    """The client's types know text only."""
    return words


def _exit(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)


def methods_of(kind: str) -> dict[str, JobMethod]:
    """The methods that workers of a kind do."""
    return {name: method for name, method in METHODS.items() if method.kind == kind}


def main() -> int:
    """Run the process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.horse", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", required=True, help="which jobs to do")
    parser.add_argument("--status", type=int, help="the inherited pipe to the parent")
    options = parser.parse_args()
    place()
    if sys.platform != "linux" and options.status is not None:
        threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    reporter = Reporter(options.status)
    try:
        settings = Settings.load()
        configure_logging(settings.log_level, settings.log_format)
        logging.getLogger("rq").setLevel(logging.WARNING)
        warm(reporter)
        stable = Stable(options.kind, settings)
        gc.collect()
        gc.freeze()  # what is here stays shared with the horses
        reporter.say(Report(stage="working", progress=1.0, ready=True))
        stable.work(logging_level="WARNING")
    except CannotStart as error:
        reporter.say(Report(error=str(error)))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
