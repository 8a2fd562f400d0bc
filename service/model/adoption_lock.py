"""Adoption lock: the store's record of the adoption under way, at most one for each model.

    ...:adopting    JSON of ``PendingAdoption``, renewed by the process that runs it; expires soon after that process
    ...:adopted     hash: adoption (and index), at; written by the script that appends ``AdoptEvent``

The first key is not part of the replicated state. A replica that starts between ``PrepareEvent`` and ``AdoptEvent``
reads from it which standby state to load. A replica whose standby state it no longer names drops that state. The key
is also the fence of the adoption: the script appends ``AdoptEvent`` only if the key is unchanged. After a failover has
lost the key, it is written again, so the script also checks for the log entry up to which the state file stands for
everything. Without that entry no replica could reach the point of adoption.

When the store's clock is set back, the key would outlive a dead owner by as much. A refused process therefore
shortens its expiry (as in ``service/store/lease.py``).

With the second key the script recognizes an ``AdoptEvent`` that is repeated because its reply was lost, and an
``AdoptEvent`` that replicas would skip. A store that loses the end of the log loses this key with it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from abound.core.types import START, Offset
from abound.service.log.events import PrepareEvent
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys

PENDING_SECONDS = 30.0

SWEEP = "sweep"
"""Takes the place of an adoption during garbage collection of state files (``service/history/garbage.py``)."""


class PendingAdoption(msgspec.Struct, frozen=True):
    """An adoption under way; ``event`` is set as soon as the state file exists."""

    adoption: str
    event: PrepareEvent | None = None


_decoder = msgspec.json.Decoder(PendingAdoption)

_TAKE = """
local now = redis.call('GET', KEYS[1])
if now and cjson.decode(now)['adoption'] ~= ARGV[1] then
  if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""

_LET_GO = """
local now = redis.call('GET', KEYS[1])
if now and cjson.decode(now)['adoption'] == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

_APPEND = """
-- KEYS: pending, log, adopted. ARGV: pending, payload, checksum, entry that must exist ('0-0' none), entry that the
-- state file stands for, id of the adoption ('' none)
local at = redis.call('HGET', KEYS[3], 'at')
if at then
  if redis.call('HGET', KEYS[3], 'adoption') == ARGV[6] then return at end
  local m, s = string.match(at, '(%d+)-(%d+)')
  local m_after, s_after = string.match(ARGV[5], '(%d+)-(%d+)')
  m, s, m_after, s_after = tonumber(m), tonumber(s), tonumber(m_after), tonumber(s_after)
  if m_after < m or (m_after == m and s_after < s) then return false end
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
if ARGV[4] ~= '0-0' and #redis.call('XRANGE', KEYS[2], ARGV[4], ARGV[4]) == 0 then return false end
at = redis.call('XADD', KEYS[2], '*', 'e', ARGV[2], 'c', ARGV[3])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[3], 'adoption', ARGV[6], 'at', at) end
return at
"""


def key_of(keys: ModelKeys) -> bytes:
    """Return the key of the pending adoption."""
    return keys.key("adopting")


async def pending_adoptions(store: Store, models: Iterable[ModelKeys]) -> list[PendingAdoption | None]:
    """Return the pending adoption of each model."""
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys in models:
                pipe.get(key_of(keys))
            return [_parse(text) for text in await pipe.execute()]


def _parse(text: bytes | None) -> PendingAdoption | None:
    try:
        return None if text is None else _decoder.decode(text)
    except msgspec.MsgspecError:
        return None  # of another release; its adoption needs the state file at its offset, no standby state here


async def renew(store: Store, keys: ModelKeys, what: PendingAdoption, seconds: float = PENDING_SECONDS) -> bool:
    """Write or renew the pending adoption; return False if another one is pending."""
    words = (what.adoption, msgspec.json.encode(what), int(seconds * 1000))
    with store_errors():
        return bool(await store.client.eval(_TAKE, 1, key_of(keys), *words))


async def release(store: Store, keys: ModelKeys, adoption: str) -> None:
    """Delete the pending adoption unless it is another one."""
    with store_errors():
        await store.client.eval(_LET_GO, 1, key_of(keys), adoption)


async def append(
    store: Store,
    keys: ModelKeys,
    what: PendingAdoption,
    packed: tuple[bytes, bytes],
    after: Offset,
    *,
    there: bool = True,
    adopts: str = "",
) -> bytes | None:
    """Append a packed entry if the adoption ``what`` is still pending, and return the id of the entry.

    Return None if it is not pending, or if a state was adopted past ``after``.

    Parameters
    ----------
    there : bool
        Also return None if the log has no entry ``after``, unless that is START.
    adopts : str
        Id of the adoption that the entry makes. Retries append it only once and return the id of the first entry.
    """
    words = (msgspec.json.encode(what), *packed, (after if there else START).entry, after.entry, adopts)
    names = (key_of(keys), keys.log, keys.key("adopted"))
    with store_errors():
        entry: bytes | None = await store.client.eval(_APPEND, len(names), *names, *words)
    return entry
