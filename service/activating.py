"""What stands in the store about activations of a model: who is at it, and what was activated last.

    ...:activating    JSON of ``Activating``, renewed by who does it; gone soon after that one is
    ...:active        hash: version, digest, former, activation, at; changed in the one script that appends ``Activate``

The first is the fence: one activation a model at a time, and no version is deleted meanwhile. From it a replica
that starts between ``PrepareVersion`` and ``Activate`` learns what to load. The second tells those who follow no log
what is active at its end. Neither is part of the replicated state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from core.errors import Conflict
from core.serving import LIVE
from core.types import START, Offset
from service.catalog import ModelKeys
from service.events import Activate, PrepareVersion
from service.store import Store, reaching

FENCE_SECONDS = 15.0

_NOT_EXPECTED = b"-"


class Activating(msgspec.Struct, frozen=True):
    """Who has the fence; ``event`` as soon as a version is to be loaded."""

    holder: str
    event: PrepareVersion | None = None


class Active(NamedTuple):
    """What was activated last, and where; ``former`` is what was active before."""

    version: str = LIVE
    digest: str = ""
    at: Offset = START
    former: str = LIVE


_decoder = msgspec.json.Decoder(Activating)

_TAKE = """
-- One whose holder died before the store's clock was set back would stay for as much longer (as in lease.py).
if redis.call('EXISTS', KEYS[1]) == 1 then
  if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_SAY = """
local now = redis.call('GET', KEYS[1])
if now ~= ARGV[1] and now ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""

_LET_GO = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

_APPEND = """
if redis.call('HGET', KEYS[3], 'activation') == ARGV[4] then return redis.call('HGET', KEYS[3], 'at') end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local active = redis.call('HGET', KEYS[3], 'version') or 'live'
if ARGV[7] ~= '' and ARGV[7] ~= active then return '-' end
local at = redis.call('XADD', KEYS[2], '*', 'e', ARGV[2], 'c', ARGV[3])
redis.call('HSET', KEYS[3], 'activation', ARGV[4], 'version', ARGV[5], 'digest', ARGV[6], 'at', at, 'former', active)
return at
"""


def _fence_of(keys: ModelKeys) -> bytes:
    return keys.of("activating")


async def under_way(store: Store, models: Iterable[ModelKeys]) -> list[PrepareVersion | None]:
    """The version that is about to be activated, for each model."""
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys in models:
                pipe.get(_fence_of(keys))
            return [_parse(text) for text in await pipe.execute()]


def _parse(text: bytes | None) -> PrepareVersion | None:
    try:
        return None if text is None else _decoder.decode(text).event
    except msgspec.MsgspecError:
        return None  # of another release


async def active(store: Store, keys: ModelKeys) -> Active:
    """What is active at the end of a model's log."""
    with reaching():
        found = await store.client.hmget(keys.of("active"), ["version", "digest", "at", "former"])
    if found[0] is None:
        return Active()
    version, digest, at, former = (text.decode() for text in found)
    return Active(version, digest, Offset.of_entry(at), former)


async def take(store: Store, keys: ModelKeys, what: Activating) -> bool:
    """Take the fence; False when it is taken."""
    with reaching():
        words = (msgspec.json.encode(what), int(FENCE_SECONDS * 1000))
        return bool(await store.client.eval(_TAKE, 1, _fence_of(keys), *words))


async def say(store: Store, keys: ModelKeys, before: Activating, what: Activating) -> bool:
    """Renew the fence or say more by it; False when it is lost. ``before``: what it said last.

    One that was lost is not taken again: somebody else may have had it meanwhile.
    """
    words = (msgspec.json.encode(before), msgspec.json.encode(what), int(FENCE_SECONDS * 1000))
    with reaching():
        return bool(await store.client.eval(_SAY, 1, _fence_of(keys), *words))


async def let_go(store: Store, keys: ModelKeys, what: Activating) -> None:
    """Give the fence back, unless another one has it."""
    with reaching():
        await store.client.eval(_LET_GO, 1, _fence_of(keys), msgspec.json.encode(what))


async def append(
    store: Store, keys: ModelKeys, held: Activating, event: Activate, packed: tuple[bytes, bytes], if_active: str | None
) -> Offset:
    """Append an activation, once however often it is tried; where.

    Conflict when the fence is another's by now, or what is active is not ``if_active``.
    """
    words = (msgspec.json.encode(held), *packed, event.activation, event.version, event.digest, if_active or "")
    with reaching():
        at: bytes | None = await store.client.eval(_APPEND, 3, _fence_of(keys), keys.log, keys.of("active"), *words)
    if at is None:
        raise Conflict(f"another version of {keys.name} is being activated, or this took too long")
    if at == _NOT_EXPECTED:
        raise Conflict(f"the active version of {keys.name} is not {if_active} any more")
    return Offset.of_entry(at)
