"""Which versions of a model contend: scored on what it learns without being served, and promoted when they are better.

    ...:contenders    hash: version -> JSON of ``Entered``; at most ``MOST``

It is a wish, not state: replicas do not read it. Who scores them is ``contending.py``; the rule is in
``core/contenders.py``.
"""

from __future__ import annotations

import msgspec

from core.contenders import MOST
from core.errors import Conflict
from service.catalog import ModelKeys
from service.store import Store, reaching

_ENTER = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class Entered(msgspec.Struct, frozen=True, kw_only=True):
    """A version that contends.

    Attributes
    ----------
    version : str
    reason : str
        Who or what entered it.
    since : float
        Seconds since 1970, of the store's clock.
    """

    version: str
    reason: str
    since: float


_entered = msgspec.json.Decoder(Entered)


async def enter(store: Store, keys: ModelKeys, version: str, reason: str) -> None:
    """Let a version contend from now on; nothing happens when it does already.

    Raises
    ------
    Conflict
        As many contend as can.
    StoreUnavailable
    """
    with reaching():
        seconds, microseconds = await store.client.time()
        packed = msgspec.json.encode(Entered(version=version, reason=reason, since=seconds + microseconds / 1e6))
        done = await store.client.eval(_ENTER, 1, keys.of("contenders"), version, packed, MOST)
    if not done:
        raise Conflict(
            f"{MOST} versions of {keys.name} contend already, which is the most; take one of them out before"
        )


async def leave(store: Store, keys: ModelKeys, version: str) -> bool:
    """Let a version contend no more; whether it did. StoreUnavailable."""
    with reaching():
        return bool(await store.client.hdel(keys.of("contenders"), version))


async def entered(store: Store, keys: ModelKeys) -> list[Entered]:
    """The versions that contend, in the order in which they came. StoreUnavailable."""
    with reaching():
        found = await store.client.hvals(keys.of("contenders"))
    return sorted((_entered.decode(packed) for packed in found), key=lambda one: (one.since, one.version))
