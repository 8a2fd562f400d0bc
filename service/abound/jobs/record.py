"""The record of a job: what was requested, which worker holds it, and its result.

Every change of a record is one Lua script in the store:

            submit            claim                 ┌─> succeeded
    (API) ────────> queued ───────────> running ────┼─> failed
                      │ ^                  │        └─> cancelled
                      │ └── requeue (holder lost)
                      └────────────────────────────────> cancelled

The records are the queue. A claim takes the oldest queued job of a kind that is due; committed jobs go first. Each
queued job also pushes a token onto ``abound:jobs:wake:<kind>``, where workers wait (BLPOP). A lost or extra token
is harmless, because workers poll for jobs every second anyway.

A change applies only if the job is in the expected state and has the expected holder; otherwise it does nothing. If
two processes race, one wins. A process that was wrongly taken for dead can no longer change the record. All times
are those of the store's clock.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
ENDED = ("succeeded", "failed", "cancelled")

KINDS = ("fit", "replace")  # a worker runs one job of each kind at a time

JOBS = "abound:jobs"

_ID = re.compile(r"[0-9a-f]{20}")


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The record of a job. Times are seconds since 1970, by the store's clock.

    ``data`` is ``history`` or the name of a data set, ``activate`` is ``never`` or ``if_better``, and ``data_range``
    has the offsets ``after`` and ``until`` between which log entries were read.
    """

    id: str
    state: State
    model: str
    origin: str  # of the model
    method: str
    kind: Annotated[str, Meta(description="The kind of workers that run it.")]
    params: Annotated[dict[str, Any], Meta(description="Parameters, including defaults.")] = {}
    data: str = "history"
    upload: Annotated[str | None, Meta(description="Id of the upload of the data set.")] = None
    activate: str = "never"
    reason: Annotated[str | None, Meta(description="The user's reason, for methods that require one.")] = None
    actor: Annotated[str | None, Meta(description="Id of the API key that requested the job.")] = None
    progress: float = 0.0
    stage: Annotated[str | None, Meta(description="The current stage.")] = None
    attempt: Annotated[int, Meta(description="Number of starts; more than one when a worker died.")] = 0
    due: Annotated[float | None, Meta(description="Earliest time of the next attempt.")] = None
    cancelling: Annotated[bool, Meta(description="Whether it was cancelled but has not stopped yet.")] = False
    committed: Annotated[bool, Meta(description="Whether it can no longer be cancelled.")] = False
    kept: Annotated[list[str], Meta(description="Committed prefixes, which the job no longer owns.")] = []
    holder: Annotated[str | None, Meta(description="The worker and process that run the job.")] = None
    data_range: dict[str, Any] | None = None
    metrics: dict[str, Any] = {}
    outcome: Annotated[dict[str, Any], Meta(description="Result; its fields depend on the method.")] = {}
    version: Annotated[str | None, Meta(description="The version that it produced.")] = None
    error: Annotated[
        str | None, Meta(description="Why it failed, who cancelled it, or why it waits for a restart.")
    ] = None
    config: Annotated[dict[str, Any], Meta(description="Configuration of the model at the submission.")] = {}
    gone: Annotated[str | None, Meta(description="Why its process gave up; a worker will recover the job.")] = None
    body: Annotated[str | None, Meta(description="Hash of the request, if it had an idempotency key.")] = None
    created: float | None = None
    started: Annotated[float | None, Meta(description="Time of the last start.")] = None
    ended: float | None = None
    heartbeat: Annotated[float | None, Meta(description="Time of the last heartbeat of its process.")] = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


def job_key(job_id: str) -> str:
    return f"{JOBS}:job:{job_id}"


def new_id() -> str:
    return secrets.token_hex(10)


def id_of_key(key: str) -> str:
    """A repeated key gives the same id, so the existing record reveals the repetition."""
    return hashlib.blake2b(key.encode(), digest_size=10, person=b"abound job").hexdigest()


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


CHANGE_SCRIPT = """
-- KEYS[1] record, or the set of queued jobs. ARGV: id, or the kind of which the next queued job is meant; states it may
-- be in, holder ('' any), field that must not be true ('' none), new state ('' stays), most of the new state (0 any),
-- time field ('' none), then field, value, field, value, ...
local now = redis.call('TIME')
now = now[1] .. '.' .. string.format('%06d', now[2])
local id, record = ARGV[1], KEYS[1]
if record == 'abound:jobs:state:queued' then
  id = nil
  for _, one in ipairs(redis.call('ZRANGE', record, 0, -1)) do
    local found = redis.call('HMGET', 'abound:jobs:job:' .. one, 'kind', 'due', 'committed', 'state')
    local wait = (tonumber(found[2]) or 0) - now
    -- a wait that is longer than any means that the clock was set back
    local is_due = found[4] == '"queued"' and (wait <= 0 or wait > 3600)
    if found[1] == ARGV[1] and is_due and (not id or found[3] == 'true') then
      id = one
      if found[3] == 'true' then break end
    end
  end
  if not id then return {0, ''} end
  record = 'abound:jobs:job:' .. id
end
local state = redis.call('HGET', record, 'state')
if not string.find(ARGV[2], '|' .. (state or '"none"') .. '|', 1, true) then return {0, state or ''} end
if ARGV[3] ~= '' and redis.call('HGET', record, 'holder') ~= ARGV[3] then return {0, 'holder'} end
if ARGV[4] ~= '' and redis.call('HGET', record, ARGV[4]) == 'true' then return {0, ARGV[4]} end
local new = ARGV[5]
if new ~= '' then
  local set = 'abound:jobs:state:' .. cjson.decode(new)
  if tonumber(ARGV[6]) > 0 and redis.call('ZCARD', set) >= tonumber(ARGV[6]) then return {0, 'full'} end
  if state then redis.call('ZREM', 'abound:jobs:state:' .. cjson.decode(state), id) end
  if not state then redis.call('ZADD', 'abound:jobs:all', now, id) end
  redis.call('ZADD', set, now, id)
  redis.call('HSET', record, 'state', new)
end
if ARGV[7] ~= '' then redis.call('HSET', record, ARGV[7], now) end
for i = 8, #ARGV, 2 do redis.call('HSET', record, ARGV[i], ARGV[i + 1]) end
if ARGV[7] == 'started' then
  redis.call('HINCRBY', record, 'attempt', 1)
  redis.call('HSET', record, 'heartbeat', now)
end
if ARGV[7] == 'ended' then
  local what = cjson.decode(redis.call('HGET', record, 'method')) .. '|' .. cjson.decode(new)
  local started = redis.call('HGET', record, 'started')
  redis.call('HINCRBY', 'abound:jobs:totals', what .. '|n', 1)
  redis.call('HINCRBYFLOAT', 'abound:jobs:totals', what .. '|seconds',
             started and started ~= 'null' and string.format('%.6f', now - started) or '0')
end
if new == '"queued"' then
  local tokens = 'abound:jobs:wake:' .. cjson.decode(redis.call('HGET', record, 'kind'))
  redis.call('LPUSH', tokens, 1)
  redis.call('LTRIM', tokens, 0, 15)
end
return {1, id}
"""

HEARTBEAT_SCRIPT = """
-- KEYS[1] record. ARGV: holder, progress, stage. Answers nothing when the job is not this holder's any more.
if redis.call('HGET', KEYS[1], 'state') ~= '"running"' then return false end
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return false end
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'heartbeat', now[1] .. '.' .. string.format('%06d', now[2]),
           'progress', ARGV[2], 'stage', ARGV[3])
return redis.call('HGET', KEYS[1], 'cancelling') == 'true' and 1 or 0
"""

COMMIT_SCRIPT = """
-- KEYS: record, prefixes that are the job's own. ARGV: holder, prefixes as JSON, then each of them.
if redis.call('HGET', KEYS[1], 'state') ~= '"running"' then return 0 end
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'cancelling') == 'true' then return 0 end
redis.call('HSET', KEYS[1], 'committed', 'true', 'kept', ARGV[2])
for i = 3, #ARGV do redis.call('SREM', KEYS[2], ARGV[i]) end
return 1
"""


def claim_command(kind: str, holder: str, fields: Mapping[str, Any]) -> list[Any]:
    """EVAL arguments to claim the next job of a kind. The script returns (1, id), or (0, '') if no job is due."""
    claim = change_command("", ("queued",), "running", stamp="started", fields={"holder": holder, **fields})
    claim[2:4] = [f"{JOBS}:state:queued", f'"{kind}"']
    return claim


def change_command(
    job_id: str,
    states: tuple[str, ...],
    new: State | None = None,
    *,
    holder: str | None = None,
    unless: str = "",
    stamp: str = "",
    most: int = 0,
    fields: Mapping[str, Any] | None = None,
) -> list[Any]:
    """EVAL arguments for a change of a record.

    The change applies only if the job is in one of ``states``, has the given ``holder`` (if any), and its field
    ``unless`` is not true. With ``most``, it applies only while fewer jobs than that are in the new state.
    """
    given: list[Any] = [CHANGE_SCRIPT, 1, job_key(job_id), job_id]
    given += ["|" + "".join(f'"{state}"|' for state in states), f'"{holder}"' if holder else ""]
    given += [unless, f'"{new}"' if new else "", most, stamp]
    for name, value in (fields or {}).items():
        given += [name, msgspec.json.encode(value)]
    return given


def heartbeat_command(job_id: str, holder: str, progress: float, stage: str | None) -> list[Any]:
    """EVAL arguments. The script returns None if the job has another holder, 1 if the job should stop, else 0."""
    return [
        HEARTBEAT_SCRIPT,
        1,
        job_key(job_id),
        f'"{holder}"',
        msgspec.json.encode(progress),
        msgspec.json.encode(stage),
    ]


def commit_command(job_id: str, holder: str, prefixes: tuple[str, ...]) -> list[Any]:
    """EVAL arguments. The script returns 0 if the job should stop or has another holder, else 1."""
    key = job_key(job_id)
    return [COMMIT_SCRIPT, 2, key, f"{key}:wrote", f'"{holder}"', msgspec.json.encode(prefixes), *prefixes]
