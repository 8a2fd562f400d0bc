"""The changes of a job's record: each is one script of the store.

            submit            claim                 ┌─> succeeded
    (door) ───────> queued ───────────> running ────┼─> failed
                      │ ^                  │        └─> cancelled
                      │ └── lost, given back
                      └────────────────────────────────> cancelled

A change is made if the job is in the state, and held by the holder, that it is meant for, else nothing happens. So of
two that race one wins, and whoever was taken for dead and is not can change nothing any more. All times are the
store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from service.job import State, job_key

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
) -> list[Any]:
    """What EVAL takes for a change.

    It is made only in one of ``states``, for the ``holder`` where one is named, and if the field ``unless`` is not
    true; and not when ``most`` jobs are in the new state already.
    """
    given: list[Any] = [CHANGE, 1, job_key(job_id), job_id]
    given += ["|" + "".join(f'"{state}"|' for state in states), f'"{holder}"' if holder else ""]
    given += [unless, f'"{new}"' if new else "", most, stamp]
    for name, value in (fields or {}).items():
        given += [name, msgspec.json.encode(value)]
    return given


def beat_of(job_id: str, holder: str, progress: float, stage: str | None) -> list[Any]:
    """What EVAL takes for a sign of life; it answers None (not yours any more), 0, or 1 (you are to stop)."""
    return [BEAT, 1, job_key(job_id), f'"{holder}"', msgspec.json.encode(progress), msgspec.json.encode(stage)]


def commit_of(job_id: str, holder: str, prefixes: tuple[str, ...]) -> list[Any]:
    """What EVAL takes to let a job take effect; it answers 0 when it is to stop, or is not this holder's any more."""
    key = job_key(job_id)
    return [COMMIT, 2, key, f"{key}:wrote", f'"{holder}"', msgspec.json.encode(prefixes), *prefixes]
