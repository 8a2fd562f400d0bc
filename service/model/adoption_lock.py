"""What stands in the store while an index is being made and adopted: one adoption a model at a time.

    ...:adopting    JSON of ``Pending``, renewed by who does it; gone soon after that one is
    ...:adopted     hash: adoption (and index), at; changed in the one script that appends ``Adopt``

The first is no part of the replicated state. A replica that starts between ``Prepare`` and ``Adopt`` learns from it
which shadow to bring up, and one whose shadow it names no more drops it. It also is the fence of the adoption:
``Adopt`` is appended by a script that finds the key as it was, or not at all. Since the key is said again when a
failover has lost it, the script looks for what else may be lost: the log's entry up to which the index stands for
everything. Without it no replica would come to where it can adopt.

Where the store's clock was set back, it would stay for as much longer after its maker died: who is refused sees to it
that it does not (as in ``service/store/lease.py``).

From the second the script knows an ``Adopt`` that comes again since the reply to it was lost, and one that would be
passed over. A store that loses the end of the log loses this with it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from abound.core.types import START, Offset
from abound.service.log.events import Prepare
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys

PENDING_SECONDS = 30.0

SWEEP = "sweep"
"""Stands in an adoption's place while indexes that nothing needs are taken away (``service/history/garbage.py``)."""


class Pending(msgspec.Struct, frozen=True):
    """An adoption under way; ``event`` as soon as the index is there."""

    adoption: str
    event: Prepare | None = None


_decoder = msgspec.json.Decoder(Pending)

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
-- KEYS: pending, log, adopted. ARGV: pending, payload, checksum, entry that must be there ('0-0' none), entry that the
-- index stands for, what is adopted ('' nothing)
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
    """Where it stands."""
    return keys.of("adopting")


async def pending(store: Store, models: Iterable[ModelKeys]) -> list[Pending | None]:
    """What is pending for each model."""
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys in models:
                pipe.get(key_of(keys))
            return [_parse(text) for text in await pipe.execute()]


def _parse(text: bytes | None) -> Pending | None:
    try:
        return None if text is None else _decoder.decode(text)
    except msgspec.MsgspecError:
        return None  # of another release; its adoption needs no shadow here, only its index at its offset


async def say(store: Store, keys: ModelKeys, what: Pending, seconds: float = PENDING_SECONDS) -> bool:
    """Say, or say again, what is pending; False when another adoption is."""
    words = (what.adoption, msgspec.json.encode(what), int(seconds * 1000))
    with reaching():
        return bool(await store.client.eval(_TAKE, 1, key_of(keys), *words))


async def let_go(store: Store, keys: ModelKeys, adoption: str) -> None:
    """Nothing is pending any more, unless it is another adoption."""
    with reaching():
        await store.client.eval(_LET_GO, 1, key_of(keys), adoption)


async def append(
    store: Store,
    keys: ModelKeys,
    what: Pending,
    packed: tuple[bytes, bytes],
    after: Offset,
    *,
    there: bool = True,
    adopts: str = "",
) -> bytes | None:
    """Append a packed entry if this is what is pending; its id, or None.

    None as well when something was adopted past ``after``.

    Parameters
    ----------
    there : bool
        Refuse as well when the log has no entry ``after``, if that is not START.
    adopts : str
        What the entry adopts. That is appended once however often it is tried: its id is the first one's.
    """
    words = (msgspec.json.encode(what), *packed, (after if there else START).entry, after.entry, adopts)
    names = (key_of(keys), keys.log, keys.of("adopted"))
    with reaching():
        entry: bytes | None = await store.client.eval(_APPEND, len(names), *names, *words)
    return entry
