"""The job records in the store, and the operations that change them.

    abound:jobs:all                   ids by submission time
    abound:jobs:state:<state>         ids by the time at which they entered the state
    abound:jobs:job:<id>              the record, a hash
    abound:jobs:job:<id>:wrote        artifact prefixes that the job owns until it commits
    abound:jobs:wake:<kind>           tokens that wake workers, one for each job queued recently
    abound:jobs:totals                number of ended jobs and their seconds, by method and state

Every change is one Lua script for one state and one holder (``abound/jobs/record.py``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from abound.jobs.record import (
    JOBS,
    STATES,
    Job,
    State,
    change_command,
    claim_command,
    commit_command,
    heartbeat_command,
    is_id,
    job_key,
)
from abound.processes.memory import free_memory
from abound.store.client import Store, store_errors
from abound_core.errors import Conflict, Overloaded, UnknownJob

ALL_KEY = f"{JOBS}:all"
TOTALS_KEY = f"{JOBS}:totals"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParams:
    """Bounds of jobs.

    Attributes
    ----------
    queued : int
        Maximum number of jobs in the queue; further ones are refused.
    attempts : int
        How often a job is started before it fails because its worker died. Committed jobs never fail for this
        reason.
    beat_seconds : float
        Interval of the heartbeat of a running job, which also tells the job whether to stop.
    lost_seconds : float
        A job without a heartbeat for this long is taken for dead.
    cancel_seconds : float
        How long a cancelled job may take to stop before it is killed.
    keep : int
        Number of ended jobs to keep; the oldest are deleted first.
    keep_seconds : float
        How long an ended job is kept.
    memory_bytes : int
        Most memory that the process of a job may allocate; 0: what is free on the worker's machine when it starts.
    threads : int
        Threads that a fit computes with; 0: one for each core but one.
    """

    queued: int = 100
    attempts: int = 3
    beat_seconds: float = 1.0
    lost_seconds: float = 15.0
    cancel_seconds: float = 5.0
    keep: int = 1000
    keep_seconds: float = 30 * 86_400.0
    memory_bytes: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        for name in ("queued", "attempts", "keep", "beat_seconds", "lost_seconds", "cancel_seconds", "keep_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")
        if self.lost_seconds < 3 * self.beat_seconds:
            raise ValueError("lost_seconds must be at least three times beat_seconds")
        for name in ("memory_bytes", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0")

    @property
    def n_threads(self) -> int:
        return self.threads or max(1, (os.cpu_count() or 2) - 1)

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a job may allocate now on this machine; None if the system does not report free memory."""
        return self.memory_bytes or free_memory()


class JobTotal(msgspec.Struct, frozen=True):
    method: str
    state: str
    n: int  # jobs of the method that ended in the state
    seconds: float  # their total running time


class JobRepository:
    """The records of all jobs in one store. Every method raises StoreUnavailable if the store cannot be reached."""

    def __init__(self, store: Store, params: JobParams | None = None) -> None:
        self.store = store
        self.params = params or JobParams()

    async def submit(self, job: Job) -> Job:
        """Queue a new job and return its record; if a job with this id exists, return that one.

        Raises Overloaded if too many jobs are queued.
        """
        fields = {name: value for name, value in msgspec.structs.asdict(job).items() if name not in _SET_BY_CHANGE}
        _, why = await self._change(
            job.id, ("none",), "queued", stamp="created", most=self.params.queued, fields=fields
        )
        if why == "full":
            raise Overloaded(
                f"{self.params.queued} jobs are waiting already; the job was not accepted, try again later",
                retry_after=30.0,
            )
        return await self.get(job.id)

    async def get(self, job_id: str) -> Job:
        if is_id(job_id):
            with store_errors():
                fields = await self.store.client.hgetall(job_key(job_id))
            if fields:
                return _decode(fields)
        raise UnknownJob(f"there is no job {job_id[:64]!r}")

    async def all(self, state: str | None = None, model: str | None = None, limit: int = 1000) -> list[Job]:
        """Return up to ``limit`` jobs, newest first, optionally of one state and one model."""
        key = f"{JOBS}:state:{state}" if state else ALL_KEY
        with store_errors():
            ids = await self.store.client.zrevrange(key, 0, -1)
        found: list[Job] = []
        for first in range(0, len(ids), 200):
            with store_errors():
                async with self.store.client.pipeline(transaction=False) as pipe:
                    for job_id in ids[first : first + 200]:
                        pipe.hgetall(job_key(job_id.decode()))
                    records = await pipe.execute()
            jobs = [_decode(fields) for fields in records if fields]
            found += [job for job in jobs if (not state or job.state == state) and (not model or job.model == model)]
            if len(found) >= limit:
                break
        return found[:limit]

    async def cancel(self, job_id: str, why: str) -> Job:
        """Cancel a queued job, or ask a running one to stop. An ended job stays as it is.

        Raises Conflict if the job has committed and can only be finished. A committed job that is queued after its
        last attempt can still be cancelled.
        """
        job = await self.get(job_id)
        while not job.has_ended:
            if job.committed and not self._has_no_attempts_left(job):
                raise Conflict(f"the job {job_id} is about to take effect and can no longer be cancelled")
            if job.state == "queued" and await self.end(job, "cancelled", error=why):
                break
            if job.state == "running" and await self.update(job, unless="committed", cancelling=True, error=why):
                break
            job = await self.get(job_id)
        return await self.get(job_id)

    def _has_no_attempts_left(self, job: Job) -> bool:
        return job.state == "queued" and job.attempt >= self.params.attempts

    async def claim(self, kind: str, holder: str) -> Job | None:
        if not holder:
            raise ValueError("a running job must have a holder")
        fields = {"progress": 0.0, "stage": None, "gone": None, "error": None, "due": None}
        with store_errors():
            made, job_id = await self.store.client.eval(*claim_command(kind, holder, fields))
        return await self.get(job_id.decode()) if made else None

    async def wait(self, kind: str) -> None:
        seconds = min(1.0, self.store.params.reply_seconds / 2)
        with store_errors():
            await self.store.client.blpop([f"{JOBS}:wake:{kind}"], timeout=seconds)

    async def update(self, job: Job, unless: str = "", **fields: Any) -> bool:
        """Set fields of a running job; return whether they were set.

        Nothing is set if the job has another holder by now, or if its field ``unless`` is true.
        """
        made, _ = await self._change(job.id, ("running",), holder=job.holder, unless=unless, fields=fields)
        return made

    async def commit(self, job: Job, *prefixes: str) -> bool:
        """Commit a job. Returns False and changes nothing if it should stop, or has another holder by now."""
        with store_errors():
            return bool(await self.store.client.eval(*commit_command(job.id, job.holder or "", prefixes)))

    async def take_over(self, job: Job, holder: str) -> Job | None:
        """Make ``holder`` the holder of a job whose holder is gone. Return None if the job changed hands or ended."""
        return await self.get(job.id) if await self.update(job, holder=holder) else None

    async def heartbeat(self, job: Job) -> bool:
        """Send a heartbeat for a job; return False if the job has another holder by now."""
        with store_errors():
            answer = await self.store.client.eval(*heartbeat_command(job.id, job.holder or "", job.progress, job.stage))
        return answer is not None

    async def end(self, job: Job, state: State, **fields: Any) -> bool:
        """End a job if it still has the state and the holder that ``job`` says; return whether it was ended.

        Its uncommitted artifacts must be deleted first.
        """
        given = {"cancelling": False, "gone": None, **fields}
        made, _ = await self._change(job.id, (job.state,), state, holder=job.holder, stamp="ended", fields=given)
        return made

    async def requeue(self, job: Job, why: str, counts: bool = True, delay: float = 0.0) -> bool:
        """Queue a running job again whose holder is gone, after ``delay`` seconds; return whether it was queued.

        ``counts``: the attempt counts.
        """
        fields: dict[str, Any] = {
            "due": await self.store.now() + delay if delay else None,
            "holder": None,
            "gone": None,
            "stage": "waiting for the next attempt",
            "error": why,
            "progress": 0.0,
        }
        if not counts:
            fields["attempt"] = job.attempt - 1
        made, _ = await self._change(job.id, ("running",), "queued", holder=job.holder, fields=fields)
        return made

    # artifacts that a job owns

    async def add_owned_prefix(self, job: Job, prefix: str) -> None:
        """Note that the job owns all artifacts below ``prefix``, before the first of them is written.

        Uncommitted ones are deleted before the job leaves ``running``; if a process dies in between, another one
        repeats that.
        """
        with store_errors():
            await self.store.client.sadd(f"{job_key(job.id)}:wrote", prefix)

    async def owned_prefixes(self, job_id: str) -> list[str]:
        with store_errors():
            return sorted(prefix.decode() for prefix in await self.store.client.smembers(f"{job_key(job_id)}:wrote"))

    async def committed_prefixes(self) -> set[str]:
        """Return the prefixes that jobs have committed which have not ended."""
        return {prefix for job in await self.all(limit=10**9) if not job.has_ended for prefix in job.kept}

    # statistics

    async def counts(self) -> dict[str, int]:
        with store_errors():
            async with self.store.client.pipeline(transaction=False) as pipe:
                for state in STATES:
                    pipe.zcard(f"{JOBS}:state:{state}")
                return dict(zip(STATES, await pipe.execute(), strict=True))

    async def totals(self) -> list[JobTotal]:
        with store_errors():
            found = await self.store.client.hgetall(TOTALS_KEY)
        texts = {name.decode(): value.decode() for name, value in found.items()}
        names = sorted({name.rpartition("|")[0] for name in texts})
        return [
            JobTotal(name.split("|")[0], name.split("|")[1], int(texts[f"{name}|n"]), float(texts[f"{name}|seconds"]))
            for name in names
            if f"{name}|n" in texts and f"{name}|seconds" in texts
        ]

    async def delete(self, job: Job) -> None:
        with store_errors():
            async with self.store.client.pipeline(transaction=True) as pipe:
                pipe.delete(job_key(job.id), f"{job_key(job.id)}:wrote")
                pipe.zrem(ALL_KEY, job.id)
                pipe.zrem(f"{JOBS}:state:{job.state}", job.id)
                await pipe.execute()

    async def _change(self, job_id: str, *given: Any, **named: Any) -> tuple[bool, str]:
        with store_errors():
            made, said = await self.store.client.eval(*change_command(job_id, *given, **named))
        return bool(made), said.decode()


_SET_BY_CHANGE = frozenset(("state", "created", "started", "ended", "heartbeat"))


def _decode(fields: Mapping[bytes, bytes]) -> Job:
    texts = b",".join(msgspec.json.encode(name.decode()) + b":" + value for name, value in fields.items())
    return msgspec.json.decode(b"{" + texts + b"}", type=Job)
