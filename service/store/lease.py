"""The lease of a model: at most one process at a time changes what the store points to, and a late one changes nothing.

    ...:lease    the token of who has it; expires unless it is renewed
    ...:fence    the token that was given out last, and stays: a number that only grows, and something random, since a
                 failover may lose the number that was given out last

A process can be stopped at any moment, for longer than its lease lasts, and then go on as if nothing had happened. No
clock of its own can tell it. So a pointer is swapped by ``Lease.swap`` alone: one script in the store that compares
the fence with the token and then carries out all its commands, or none. Whatever else a late process writes has a
name of its own that nothing points to, and is swept.

When the store's clock is set back, a lease whose holder died stays for as much longer. So whoever finds one that lasts
longer than any is given lets it last as long as its own would: who lives renews it, who died is followed after that.

A model has such a lease for each ``purpose``; the one without a name is that of snapshots and history.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Any

from abound.core.errors import Conflict, StoreUnavailable
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.tasks import end

LEASE_SECONDS = 15.0

Command = tuple[bytes | str | int, ...]
"""The words of a command; the second one is its key."""

# A store whose memory is full refuses a script that first wants more; one that has written may go on. PERSIST changes
# nothing here and counts as writing: what frees memory, a trim and the pointers that go with it, must get through.
_TAKE = """
redis.call('PERSIST', KEYS[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return false
end
local before = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+')) or 0
local token = string.format('%.0f', before + 1) .. ':' .. ARGV[1]
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
return token
"""

_RENEW = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

_SWAP = """
redis.call('PERSIST', KEYS[1])
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local i = 2
while i <= #ARGV do
    local n = tonumber(ARGV[i])
    redis.call(unpack(ARGV, i + 1, i + n))
    i = i + n + 1
end
return 1
"""


class LeaseLost(Exception):
    """Another process has taken the model over."""


class Lease:
    """A lease that was taken; ``take`` makes one.

    Attributes
    ----------
    token : bytes
    lost : bool
        Another process is known to have taken it. False proves nothing: only ``swap`` does.
    """

    def __init__(self, store: Store, keys: ModelKeys, token: bytes, seconds: float, purpose: str = "") -> None:
        self.keys = keys
        self.purpose = purpose
        self.token = token
        self.lost = False
        self._store = store
        self._seconds = seconds

    @property
    def fence(self) -> bytes:
        """The key with the token that was given out last."""
        return _part(self.keys, self.purpose, "fence")

    @property
    def number(self) -> int:
        """What grows with each lease of a model."""
        return int(self.token.partition(b":")[0])

    async def swap(self, commands: Iterable[Command]) -> None:
        """Carry out commands on keys of the model, all in one moment, unless another process has the model.

        Raises
        ------
        LeaseLost
            Nothing was carried out.
        StoreUnavailable
            Nothing or all of it was carried out.
        """
        words: list[Any] = [self.token]
        keys = [self.fence]
        for command in commands:
            words += [len(command), *command]
            keys.append(_key_of(command))
        with reaching():
            done = await self._store.client.eval(_SWAP, len(keys), *keys, *words)
        if not done:
            self.lost = True
            raise LeaseLost

    async def check(self) -> None:
        """LeaseLost when another process has the model; before work whose outcome would be thrown away."""
        await self.swap(())

    async def keep(self) -> None:
        """Renew it until it is lost."""
        while not self.lost:
            await asyncio.sleep(self._seconds / 4)
            with contextlib.suppress(StoreUnavailable), reaching():
                milliseconds = int(self._seconds * 1000)
                self.lost = not await self._run(_RENEW, "lease", "fence", words=(self.token, milliseconds))

    async def release(self) -> None:
        """Let others have it at once; one that was lost is left alone."""
        with reaching():
            await self._run(_RELEASE, "lease", words=(self.token,))

    async def _run(self, script: str, *parts: str, words: tuple[bytes | int, ...]) -> Any:
        keys = [_part(self.keys, self.purpose, part) for part in parts]
        return await self._store.client.eval(script, len(keys), *keys, *words)


@contextlib.asynccontextmanager
async def take(
    store: Store, keys: ModelKeys, seconds: float = LEASE_SECONDS, purpose: str = ""
) -> AsyncIterator[Lease]:
    """Have the lease of a model, renewed as long as the context lasts.

    Raises
    ------
    Conflict
        Another process has it.
    StoreUnavailable
    """
    with reaching():
        names = [_part(keys, purpose, part) for part in ("lease", "fence")]
        token = await store.client.eval(_TAKE, 2, *names, secrets.token_hex(8), int(seconds * 1000))
    if token is None:
        raise Conflict(f"another process works on the {purpose or 'snapshots and the history'} of {keys.name}")
    lease = Lease(store, keys, token, seconds, purpose)
    keeping = asyncio.create_task(lease.keep(), name=f"lease {keys.name}")
    try:
        yield lease
    finally:
        await end(keeping)
        with contextlib.suppress(StoreUnavailable):
            await lease.release()


def _part(keys: ModelKeys, purpose: str, part: str) -> bytes:
    return keys.of(f"{purpose}-{part}" if purpose else part)


def _key_of(command: Command) -> bytes:
    key = command[1]
    return key if isinstance(key, bytes) else str(key).encode()
