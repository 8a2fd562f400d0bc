"""Jobs: the durable records of all there are, and the only ways in which they change.

    abound:jobs:all                   ids by when they were asked for
    abound:jobs:state:<state>         ids by state, by when they came to it
    abound:jobs:job:<id>              the record, a hash
    abound:jobs:job:<id>:wrote        names in the artifact store that are the job's own until it commits
    abound:jobs:wake:<kind>           a token for each job that was queued of late
    abound:jobs:totals                how many ended how, and their seconds, by method

1. Every change is one script of the store (``service/jobs/record.py``), for one state and one holder: of two that race
one
   wins.
2. What a job writes is noted before it is written, and what it did not commit is taken away before the job leaves
   ``running``. Whoever dies between the two is followed by one who does it again.
3. The records are the queue. A worker claims the oldest queued job of a kind, and is woken when one is queued.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from abound.core.errors import Conflict, Overloaded, UnknownJob
from abound.service.jobs.record import JOBS, STATES, Job, State, beat_of, change_of, claim_of, commit_of, is_id, job_key
from abound.service.processes.memory import free_memory
from abound.service.store.client import Store, reaching

ALL_KEY = f"{JOBS}:all"
TOTALS_KEY = f"{JOBS}:totals"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParams:
    """Bounds of jobs.

    Attributes
    ----------
    queued : int
        Most jobs that wait; more are refused.
    attempts : int
        How often a job is begun whose worker dies, before it counts as failed. One that has committed does not.
    beat_seconds : float
        How often a job at work says so, and hears whether it is to stop.
    lost_seconds : float
        A job that has not said so for this long is taken for dead.
    cancel_seconds : float
        What a cancelled job gets to stop by itself before it is killed.
    keep : int
        Ended jobs that are kept; the oldest go first.
    keep_seconds : float
        How long an ended job is kept.
    memory_bytes : int
        Most that one job may need; 0: what the worker's machine has free.
    threads : int
        That a fit computes with; 0: one for each core but one.
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
    def computing(self) -> int:
        """On how many threads a fit computes on this machine."""
        return self.threads or max(1, (os.cpu_count() or 2) - 1)

    @property
    def room(self) -> int | None:
        """Most bytes that one job may need on this machine; None where that cannot be known."""
        return self.memory_bytes or free_memory()


class Total(msgspec.Struct, frozen=True):
    """Jobs of one method that ended in one state, and how long they ran in all, in seconds."""

    method: str
    state: str
    n: int
    seconds: float


class Jobs:
    """The records of all jobs in one store. Every method raises StoreUnavailable when the store is away."""

    def __init__(self, store: Store, params: JobParams | None = None) -> None:
        self.store = store
        self.params = params or JobParams()

    async def submit(self, job: Job) -> Job:
        """Keep a new job, queued; the one that there is, when one has its id. Overloaded when too many wait."""
        fields = {name: value for name, value in msgspec.structs.asdict(job).items() if name not in _SET_BY_CHANGE}
        _, why = await self._change(
            job.id, ("none",), "queued", stamp="created", most=self.params.queued, fields=fields
        )
        if why == "full":
            raise Overloaded(f"{self.params.queued} jobs are waiting already; nothing was taken", retry_after=30.0)
        return await self.get(job.id)

    async def get(self, job_id: str) -> Job:
        """The record; UnknownJob when there is none."""
        if is_id(job_id):
            with reaching():
                fields = await self.store.client.hgetall(job_key(job_id))
            if fields:
                return _decode(fields)
        raise UnknownJob(f"there is no job {job_id[:64]!r}")

    async def all(self, state: str | None = None, model: str | None = None, limit: int = 1000) -> list[Job]:
        """Jobs, newest first, at most ``limit``; of one state, of one model."""
        key = f"{JOBS}:state:{state}" if state else ALL_KEY
        with reaching():
            ids = await self.store.client.zrevrange(key, 0, -1)
        found: list[Job] = []
        for first in range(0, len(ids), 200):
            with reaching():
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
        """Cancel a job that waits; tell one that runs to stop. One that has ended stays as it is.

        Raises
        ------
        UnknownJob
        Conflict
            It has gone so far that it can only be finished; unless that has failed often enough, and it waits.
        """
        job = await self.get(job_id)
        while not job.has_ended:
            if job.committed and not self._waits_in_vain(job):
                raise Conflict(f"the job {job_id} is about to take effect and can no longer be cancelled")
            if job.state == "queued" and await self.end(job, "cancelled", error=why):
                break
            if job.state == "running" and await self.note(job, unless="committed", cancelling=True, error=why):
                break
            job = await self.get(job_id)
        return await self.get(job_id)

    def _waits_in_vain(self, job: Job) -> bool:
        return job.state == "queued" and job.attempt >= self.params.attempts

    async def claim(self, kind: str, holder: str) -> Job | None:
        """Take the next queued job of a kind to run it; None when there is none that is due."""
        if not holder:
            raise ValueError("somebody must hold a job that runs")
        fields = {"progress": 0.0, "stage": None, "gone": None, "error": None, "due": None}
        with reaching():
            made, job_id = await self.store.client.eval(*claim_of(kind, holder, fields))
        return await self.get(job_id.decode()) if made else None

    async def wait(self, kind: str) -> None:
        """Wait until a job of a kind is queued, for a second at most."""
        seconds = min(1.0, self.store.params.reply_seconds / 2)
        with reaching():
            await self.store.client.blpop([f"{JOBS}:wake:{kind}"], timeout=seconds)

    async def note(self, job: Job, unless: str = "", **fields: Any) -> bool:
        """Set fields of a job that runs, if it still has the same holder and the field ``unless`` is not true."""
        made, _ = await self._change(job.id, ("running",), holder=job.holder, unless=unless, fields=fields)
        return made

    async def commit(self, job: Job, *prefixes: str) -> bool:
        """From here a job can no longer be cancelled, and these prefixes are not its own any more.

        False, and nothing of it, when the job is to stop, or is no longer this holder's.
        """
        with reaching():
            return bool(await self.store.client.eval(*commit_of(job.id, job.holder or "", prefixes)))

    async def take_over(self, job: Job, holder: str) -> Job | None:
        """Become the holder of a job whose holder is gone; None when it has another one by now, or has ended."""
        return await self.get(job.id) if await self.note(job, holder=holder) else None

    async def beat(self, job: Job) -> bool:
        """Say that a job has somebody who sees to it; False when that is somebody else."""
        with reaching():
            answer = await self.store.client.eval(*beat_of(job.id, job.holder or "", job.progress, job.stage))
        return answer is not None

    async def end(self, job: Job, state: State, **fields: Any) -> bool:
        """End a job if it is in the state, and with the holder, that ``job`` says. What it wrote must be dealt with."""
        given = {"cancelling": False, "gone": None, **fields}
        made, _ = await self._change(job.id, (job.state,), state, holder=job.holder, stamp="ended", fields=given)
        return made

    async def requeue(self, job: Job, why: str, counts: bool = True, delay: float = 0.0) -> bool:
        """Let a running job whose holder is gone wait again, so many seconds at least.

        ``counts``: whether this attempt counts.
        """
        fields: dict[str, Any] = {
            "due": await self.now() + delay if delay else None,
            "holder": None,
            "gone": None,
            "stage": "waiting to be begun again",
            "error": why,
            "progress": 0.0,
        }
        if not counts:
            fields["attempt"] = job.attempt - 1
        made, _ = await self._change(job.id, ("running",), "queued", holder=job.holder, fields=fields)
        return made

    # what a job has written

    async def will_write(self, job: Job, prefix: str) -> None:
        """Note that all artifacts below ``prefix`` are this job's own; before the first is written."""
        with reaching():
            await self.store.client.sadd(f"{job_key(job.id)}:wrote", prefix)

    async def wrote(self, job_id: str) -> list[str]:
        """The prefixes that are still the job's own."""
        with reaching():
            return sorted(prefix.decode() for prefix in await self.store.client.smembers(f"{job_key(job_id)}:wrote"))

    # figures

    async def counts(self) -> dict[str, int]:
        """Jobs by state."""
        with reaching():
            async with self.store.client.pipeline(transaction=False) as pipe:
                for state in STATES:
                    pipe.zcard(f"{JOBS}:state:{state}")
                return dict(zip(STATES, await pipe.execute(), strict=True))

    async def totals(self) -> list[Total]:
        """Jobs that ended, ever, by method and state."""
        with reaching():
            found = await self.store.client.hgetall(TOTALS_KEY)
        texts = {name.decode(): value.decode() for name, value in found.items()}
        names = sorted({name.rpartition("|")[0] for name in texts})
        return [
            Total(name.split("|")[0], name.split("|")[1], int(texts[f"{name}|n"]), float(texts[f"{name}|seconds"]))
            for name in names
            if f"{name}|n" in texts and f"{name}|seconds" in texts
        ]

    async def now(self) -> float:
        """The store's clock, in seconds since 1970."""
        with reaching():
            seconds, microseconds = await self.store.client.time()
        return int(seconds) + int(microseconds) / 1e6

    async def forget(self, job: Job) -> None:
        """Take an ended job out of the records."""
        with reaching():
            async with self.store.client.pipeline(transaction=True) as pipe:
                pipe.delete(job_key(job.id), f"{job_key(job.id)}:wrote")
                pipe.zrem(ALL_KEY, job.id)
                pipe.zrem(f"{JOBS}:state:{job.state}", job.id)
                await pipe.execute()

    async def _change(self, job_id: str, *given: Any, **named: Any) -> tuple[bool, str]:
        with reaching():
            made, said = await self.store.client.eval(*change_of(job_id, *given, **named))
        return bool(made), said.decode()


_SET_BY_CHANGE = frozenset(("state", "created", "started", "ended", "heartbeat"))


def _decode(fields: Mapping[bytes, bytes]) -> Job:
    texts = b",".join(msgspec.json.encode(name.decode()) + b":" + value for name, value in fields.items())
    return msgspec.json.decode(b"{" + texts + b"}", type=Job)
