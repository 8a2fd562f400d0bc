"""The stable: ``python -m service.stable --kind KIND``, started by the worker, a process for each kind of jobs.

It loads the methods and the kernels once, then waits for ids (RQ) and forks a horse (``horse.py``) for each job (RQ's
"work horse"), which so begins at once. The fork is safe because this process has one thread and computes nothing: no
kernel with threads runs before it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from typing import Any

import redis
import structlog
from rq.job import Job as RqJob
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker import Worker
from rq.worker_registration import clean_worker_registry

from service import boot
from service.horse import ABANDONED
from service.job import job_key
from service.job_changes import change_of
from service.jobs import JobParams
from service.parentage import dies_with_parent
from service.queue import Ticket, connect, queue_of
from service.report import Report, Reporter
from service.settings import Settings
from service.store import StoreParams

log = structlog.get_logger(__name__)

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
            made, _ = client.eval(*change_of(job.id, ("running",), holder=holder, fields=fields))
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
            client.eval(*change_of(job.id, ("queued",), fields=fields))

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


def main() -> int:
    """Run the process; returns its exit code."""
    words = boot.parser("stable", __doc__)
    words.add_argument("--kind", required=True, help="which jobs to do")
    options = words.parse_args()

    def work(settings: Settings, reporter: Reporter) -> None:
        logging.getLogger("rq").setLevel(logging.WARNING)
        boot.warm(reporter)
        stable = Stable(options.kind, settings)
        gc.collect()
        gc.freeze()  # what is here stays shared with the horses
        reporter.say(Report(stage="working", progress=1.0, ready=True))
        stable.work(logging_level="WARNING")

    return boot.run("stable", options.status, work)


if __name__ == "__main__":
    sys.exit(main())
