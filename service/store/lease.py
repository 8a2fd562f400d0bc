"""Lease of a model: at most one process at a time swaps the store's pointers, and a late process changes nothing.

    ...:lease    token of the holder; expires unless it is renewed
    ...:fence    newest token, never expires: an increasing number and a random part, since a failover may lose the
                 newest number

A process can be suspended at any moment for longer than its lease lasts, and then continue without noticing. Its own
clock cannot tell it. So pointers are swapped by ``Lease.swap`` only: one script in the store that compares the fence
with the token and then executes all of its commands, or none. Anything else that a late process writes has a name of
its own that no pointer refers to; garbage collection deletes it.

When the store's clock is set back, the lease of a dead holder lasts that much longer. So a process that finds a lease
with a longer expiry than any lease has shortens it to its own duration. A live holder renews it; a dead one expires.

A model has one lease for each ``purpose``. The one with the empty purpose covers snapshots and history.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Any

from abound.core.errors import Conflict, StoreUnavailable
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys
from abound.service.tasks import cancel_and_wait

LEASE_SECONDS = 15.0

Command = tuple[bytes | str | int, ...]
"""The words of a command; the second word is its key."""

# A store that is out of memory rejects a script at its first command that needs memory, unless the script has written
# before. PERSIST changes nothing here but counts as a write: a trim and its pointers, which free memory, must succeed.
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
    """Another process has acquired the lease."""


class Lease:
    """An acquired lease; ``acquire`` creates it.

    Attributes
    ----------
    token : bytes
    lost : bool
        Another process is known to have acquired it. False proves nothing: only ``swap`` does.
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
        """Return the key of the newest token."""
        return _part(self.keys, self.purpose, "fence")

    @property
    def number(self) -> int:
        """Return the number in the token, which increases with each lease of a model."""
        return int(self.token.partition(b":")[0])

    async def swap(self, commands: Iterable[Command]) -> None:
        """Execute commands on keys of the model atomically, unless another process has acquired the lease.

        Raises
        ------
        LeaseLost
            No command was executed.
        StoreUnavailable
            Either none or all were executed.
        """
        words: list[Any] = [self.token]
        keys = [self.fence]
        for command in commands:
            words += [len(command), *command]
            keys.append(_key_of(command))
        with store_errors():
            done = await self._store.client.eval(_SWAP, len(keys), *keys, *words)
        if not done:
            self.lost = True
            raise LeaseLost

    async def check(self) -> None:
        """Raise LeaseLost if another process has acquired the lease; call it before work that would be wasted
        then.
        """
        await self.swap(())

    async def keep_renewed(self) -> None:
        """Renew the lease until it is lost."""
        while not self.lost:
            await asyncio.sleep(self._seconds / 4)
            with contextlib.suppress(StoreUnavailable), store_errors():
                milliseconds = int(self._seconds * 1000)
                self.lost = not await self._run(_RENEW, "lease", "fence", words=(self.token, milliseconds))

    async def release(self) -> None:
        """Release the lease at once. A lost lease is not touched."""
        with store_errors():
            await self._run(_RELEASE, "lease", words=(self.token,))

    async def _run(self, script: str, *parts: str, words: tuple[bytes | int, ...]) -> Any:
        keys = [_part(self.keys, self.purpose, part) for part in parts]
        return await self._store.client.eval(script, len(keys), *keys, *words)


@contextlib.asynccontextmanager
async def acquire(
    store: Store, keys: ModelKeys, seconds: float = LEASE_SECONDS, purpose: str = ""
) -> AsyncIterator[Lease]:
    """Acquire the lease of a model and renew it for the duration of the context.

    Raises
    ------
    Conflict
        Another process holds it.
    StoreUnavailable
    """
    with store_errors():
        names = [_part(keys, purpose, part) for part in ("lease", "fence")]
        token = await store.client.eval(_TAKE, 2, *names, secrets.token_hex(8), int(seconds * 1000))
    if token is None:
        raise Conflict(
            f"another process works on the {purpose or 'snapshots and the history'} of {keys.name}; try again later"
        )
    lease = Lease(store, keys, token, seconds, purpose)
    keeping = asyncio.create_task(lease.keep_renewed(), name=f"lease {keys.name}")
    try:
        yield lease
    finally:
        await cancel_and_wait(keeping)
        with contextlib.suppress(StoreUnavailable):
            await lease.release()


def _part(keys: ModelKeys, purpose: str, part: str) -> bytes:
    return keys.key(f"{purpose}-{part}" if purpose else part)


def _key_of(command: Command) -> bytes:
    key = command[1]
    return key if isinstance(key, bytes) else str(key).encode()
