"""Jobs: the durable record of each, and the only ways in which it changes.

    abound:jobs:all                   ids by when they were asked for
    abound:jobs:state:<state>         ids by state, by when they came to it
    abound:jobs:job:<id>              the record, a hash
    abound:jobs:job:<id>:wrote        names in the artifact store that are the job's own until it commits
    abound:jobs:totals                how many ended how, and their seconds, by method

            submit            claim                 ┌─> succeeded
    (door) ───────> queued ───────────> running ────┼─> failed
                      │ ^                  │        └─> cancelled
                      │ └── lost, given back
                      └────────────────────────────────> cancelled

1. Every change is one script of the store: it happens if the job is in the state, and held by the holder, that the
   change is meant for, else nothing happens. So of two that race one wins, and whoever was taken for dead and is
   not can change nothing any more.
2. All times are the store's clock.
3. What a job writes is noted before it is written, and what it did not commit is taken away before the job leaves
   ``running``. Whoever dies between the two is followed by one who does it again.
4. The queue (``horse.py``) only carries ids. An id that comes twice, or is lost, does no harm: the record decides,
   and the keeper (``job_keeper.py``) puts the ids of all queued jobs back.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from core.errors import Conflict, Overloaded, UnknownJob
from service.room import free_memory
from service.store import Store, reaching

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
ENDED = ("succeeded", "failed", "cancelled")

JOBS = "abound:jobs"
ALL_KEY = f"{JOBS}:all"
TOTALS_KEY = f"{JOBS}:totals"
WORKERS_KEY = f"{JOBS}:workers"

FRESH_SECONDS = 10.0
"""A worker that has not said for so long that it is there is not."""

_ID = re.compile(r"[0-9a-f]{20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParams:
    """Bounds of jobs.

    Attributes
    ----------
    queued : int
        Most jobs that wait; more are refused.
    attempts : int
        How often a job is begun whose worker dies, before it counts as failed.
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


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The record of a job.

    Attributes
    ----------
    id, state
    model, incarnation : str
        What it works on.
    method, kind : str
        What it does, and which workers do that.
    params : dict
        As the method's parameters were checked at the door, defaults and all.
    data : str
        ``history`` or the name of a data set.
    activate : ``never`` | ``if_better``
    reason : str or None
        The user's.
    actor : str or None
        Id of the key that asked for it.
    progress : float
        0..1.
    stage : str or None
        What is being done, in words for people.
    attempt : int
        How often it was begun.
    unbegun : int
        How often in a row a process was there for it and ended before it had begun.
    cancelling : bool
        It was told to stop and has not yet.
    committed : bool
        What it does can no longer be cancelled.
    kept : list of str
        Prefixes in the artifact store that are not the job's own any more: what was committed.
    holder : str or None
        Worker and process that are at it.
    data_range : dict or None
        ``after`` and ``until``: offsets between which events were read.
    metrics : dict
    outcome : dict
        What came of it, as the method says.
    version : str or None
        The version that it made.
    error : str or None
        Why it failed, or why it was cancelled.
    config : dict
        Of the model, when the job was asked for.
    gone : str or None
        Why nobody is at it any more although it is running: the keeper sees to it.
    given_back : bool
        This attempt does not count: its worker was stopped.
    body : str or None
        Hash of the request that asked for it, where that came with an idempotency key.
    created, started, ended, heartbeat : float or None
        Seconds since 1970.
    """

    id: str
    state: State
    model: str
    incarnation: str
    method: str
    kind: str
    params: dict[str, Any] = {}
    data: str = "history"
    activate: str = "never"
    reason: str | None = None
    actor: str | None = None
    progress: float = 0.0
    stage: str | None = None
    attempt: int = 0
    unbegun: int = 0
    cancelling: bool = False
    committed: bool = False
    kept: list[str] = []
    holder: str | None = None
    data_range: dict[str, Any] | None = None
    metrics: dict[str, Any] = {}
    outcome: dict[str, Any] = {}
    version: str | None = None
    error: str | None = None
    config: dict[str, Any] = {}
    gone: str | None = None
    given_back: bool = False
    body: str | None = None
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    heartbeat: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more."""
        return self.state in ENDED


class Workplace(msgspec.Struct, frozen=True):
    """A worker as it says of itself: what kinds of jobs it does, where, and the most bytes that a job may need."""

    name: str
    host: str
    kinds: list[str]
    memory: int | None
    at: float = 0.0


class Total(msgspec.Struct, frozen=True):
    """Jobs of one method that ended in one state, and how long they ran in all, in seconds."""

    method: str
    state: str
    n: int
    seconds: float


CHANGE = """
-- KEYS[1] record. ARGV: id, states it may be in, holder ('' any), field that must not be true ('' none), new state
-- ('' stays), most of the new state (0 any), time field ('' none), then field, value, field, value, ...
local now = redis.call('TIME')
now = now[1] .. '.' .. string.format('%06d', now[2])
local state = redis.call('HGET', KEYS[1], 'state')
if not string.find(ARGV[2], '|' .. (state or '"none"') .. '|', 1, true) then return {0, state or ''} end
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'holder') ~= ARGV[3] then return {0, 'holder'} end
if ARGV[4] ~= '' and redis.call('HGET', KEYS[1], ARGV[4]) == 'true' then return {0, ARGV[4]} end
local new = ARGV[5]
if new ~= '' then
  local set = 'abound:jobs:state:' .. cjson.decode(new)
  if tonumber(ARGV[6]) > 0 and redis.call('ZCARD', set) >= tonumber(ARGV[6]) then return {0, 'full'} end
  if state then redis.call('ZREM', 'abound:jobs:state:' .. cjson.decode(state), ARGV[1]) end
  if not state then redis.call('ZADD', 'abound:jobs:all', now, ARGV[1]) end
  redis.call('ZADD', set, now, ARGV[1])
  redis.call('HSET', KEYS[1], 'state', new)
end
if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], ARGV[7], now) end
for i = 8, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
if ARGV[7] == 'started' then
  redis.call('HINCRBY', KEYS[1], 'attempt', 1)
  redis.call('HSET', KEYS[1], 'heartbeat', now)
end
if ARGV[7] == 'ended' then
  local what = cjson.decode(redis.call('HGET', KEYS[1], 'method')) .. '|' .. cjson.decode(new)
  local started = redis.call('HGET', KEYS[1], 'started')
  redis.call('HINCRBY', 'abound:jobs:totals', what .. '|n', 1)
  redis.call('HINCRBYFLOAT', 'abound:jobs:totals', what .. '|seconds',
             started and started ~= 'null' and string.format('%.6f', now - started) or '0')
end
return {1, now}
"""

BEAT = """
-- KEYS[1] record. ARGV: holder, progress, stage. Answers nothing when the job is not this holder's any more.
if redis.call('HGET', KEYS[1], 'state') ~= '"running"' then return false end
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return false end
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'heartbeat', now[1] .. '.' .. string.format('%06d', now[2]),
           'progress', ARGV[2], 'stage', ARGV[3])
return redis.call('HGET', KEYS[1], 'cancelling') == 'true' and 1 or 0
"""

COMMIT = """
-- KEYS: record, prefixes that are the job's own. ARGV: holder, prefixes as JSON, then each of them.
if redis.call('HGET', KEYS[1], 'state') ~= '"running"' then return 0 end
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'cancelling') == 'true' then return 0 end
redis.call('HSET', KEYS[1], 'committed', 'true', 'kept', ARGV[2])
for i = 3, #ARGV do redis.call('SREM', KEYS[2], ARGV[i]) end
return 1
"""


def job_key(job_id: str) -> str:
    """The key of a record."""
    return f"{JOBS}:job:{job_id}"


def new_id() -> str:
    """An id that no job has."""
    return secrets.token_hex(10)


def id_of_key(key: str) -> str:
    """The id of the job that is asked for under an idempotency key: so the record itself says that it came before."""
    return hashlib.blake2b(key.encode(), digest_size=10, person=b"abound job").hexdigest()


def is_id(text: str) -> bool:
    """Whether a job could have this id."""
    return _ID.fullmatch(text) is not None


def change_of(
    job_id: str,
    states: tuple[str, ...],
    new: State | None = None,
    *,
    holder: str | None = None,
    unless: str = "",
    stamp: str = "",
    most: int = 0,
    fields: Mapping[str, Any] | None = None,
) -> list[str | bytes | int]:
    """What EVAL takes for a change.

    It is made only in one of ``states``, for the ``holder`` where one is named, and if the field ``unless`` is not
    true; and not when ``most`` jobs are in the new state already.
    """
    given: list[str | bytes | int] = [CHANGE, 1, job_key(job_id), job_id]
    given += ["|" + "".join(f'"{state}"|' for state in states), f'"{holder}"' if holder else ""]
    given += [unless, f'"{new}"' if new else "", most, stamp]
    for name, value in (fields or {}).items():
        given += [name, msgspec.json.encode(value)]
    return given


def beat_of(job_id: str, holder: str, progress: float, stage: str | None) -> list[str | bytes | int]:
    """What EVAL takes for a sign of life; it answers None (not yours any more), 0, or 1 (you are to stop)."""
    return [BEAT, 1, job_key(job_id), f'"{holder}"', msgspec.json.encode(progress), msgspec.json.encode(stage)]


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
            It has gone so far that it can only be finished.
        """
        job = await self.get(job_id)
        while not job.has_ended:
            if job.committed:
                raise Conflict(f"the job {job_id} is about to take effect and can no longer be cancelled")
            if job.state == "queued" and await self.end(job, "cancelled", error=why):
                break
            if job.state == "running" and await self.note(job, unless="committed", cancelling=True, error=why):
                break
            job = await self.get(job_id)
        return await self.get(job_id)

    async def claim(self, job_id: str, holder: str) -> Job | None:
        """Take a queued job to run it; None when it is not queued (any more)."""
        if not holder:
            raise ValueError("somebody must hold a job that runs")
        fields = {
            "holder": holder,
            "unbegun": 0,
            "progress": 0.0,
            "stage": None,
            "gone": None,
            "given_back": False,
            "error": None,
        }
        made, _ = await self._change(job_id, ("queued",), "running", stamp="started", fields=fields)
        return await self.get(job_id) if made else None

    async def wait(self, job: Job, stage: str) -> None:
        """Say of a job that waits what it waits for."""
        await self._change(job.id, ("queued",), fields={"stage": stage})

    async def note(self, job: Job, unless: str = "", **fields: Any) -> bool:
        """Set fields of a job that runs, if it still has the same holder and the field ``unless`` is not true."""
        made, _ = await self._change(job.id, ("running",), holder=job.holder, unless=unless, fields=fields)
        return made

    async def commit(self, job: Job, *prefixes: str) -> bool:
        """From here a job can no longer be cancelled, and these prefixes are not its own any more.

        False, and nothing of it, when the job is to stop, or is no longer this holder's.
        """
        key = job_key(job.id)
        given = [f'"{job.holder}"', msgspec.json.encode(prefixes), *prefixes]
        with reaching():
            return bool(await self.store.client.eval(COMMIT, 2, key, f"{key}:wrote", *given))

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

    async def requeue(self, job: Job, counts: bool = True) -> bool:
        """Let a running job whose holder is gone wait again; ``counts``: as one attempt more."""
        fields: dict[str, Any] = {"holder": None, "gone": None, "stage": "waiting to be begun again", "progress": 0.0}
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

    async def show_worker(self, name: str, host: str, kinds: list[str]) -> None:
        """A worker says that it is there."""
        said = Workplace(name, host, kinds, self.params.memory_bytes or free_memory(), await self.now())
        with reaching():
            await self.store.client.hset(WORKERS_KEY, name, msgspec.json.encode(said))

    async def hide_worker(self, name: str) -> None:
        """A worker says that it stops."""
        with reaching():
            await self.store.client.hdel(WORKERS_KEY, name)

    async def workers(self, kind: str) -> list[Workplace]:
        """The workers that are there for a kind of jobs; those that have been silent for long are taken out."""
        with reaching():
            async with self.store.client.pipeline(transaction=False) as pipe:
                pipe.time()
                pipe.hgetall(WORKERS_KEY)
                (seconds, _), found = await pipe.execute()
            said = [msgspec.json.decode(packed, type=Workplace) for packed in found.values()]
            silent = [one.name for one in said if seconds - one.at > 100 * FRESH_SECONDS]
            if silent:
                await self.store.client.hdel(WORKERS_KEY, *silent)
        return [one for one in said if kind in one.kinds and seconds - one.at <= FRESH_SECONDS]

    async def forget(self, job: Job) -> None:
        """Take an ended job out of the records."""
        with reaching():
            async with self.store.client.pipeline(transaction=True) as pipe:
                pipe.delete(job_key(job.id), f"{job_key(job.id)}:wrote")
                pipe.delete(f"rq:job:{job.id}", f"rq:executions:{job.id}")  # of a ticket that nobody ended
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
