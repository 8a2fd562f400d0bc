"""Lease of a model: at most one process at a time changes what it protects, and a late process changes nothing.

    ...:lease    the holder's payload for other processes, or empty; expires unless it is renewed
    ...:fence    newest token, never expires: an increasing number and a random part, since a failover may lose the
                 newest number

A process can be suspended at any moment for longer than its lease lasts, and then continue without noticing. Its own
clock cannot tell it. So pointers are swapped by ``Lease.swap`` and entries appended by ``Lease.append`` only: one
script in the store that compares the fence with the token and then executes all of its commands, or none. Anything
else that a late process writes has a name of its own that no pointer refers to; garbage collection deletes it.

When the store's clock is set back, the lease of a dead holder lasts that much longer. So a process that finds a lease
with a longer expiry than any lease has shortens it to its own duration. A live holder renews it; a dead one expires.

A model has one lease for each ``purpose``. The one with the empty purpose covers snapshots and history.
``REPLACEMENT`` is held by the process that replaces the model, and ``ACTIVATION`` by the one that activates or deletes
a version. The payload of the latter is the event that tells replicas what to load, for a replica that starts after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

import msgspec

from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.server_info import CLOSED
from abound.tasks import cancel_and_wait, do_nothing, forever, wait_until
from abound_core.errors import Conflict, StoreRefused, StoreUnavailable
from abound_core.types import START, Offset

LEASE_SECONDS = 15.0
POLL_SECONDS = 0.2

REPLACEMENT = "replacement"
ACTIVATION = "activation"

_BUSY = {
    REPLACEMENT: "another replacement of {} is running; try again when it has ended",
    ACTIVATION: "another version of {} is being activated or deleted; try again soon",
}

T = TypeVar("T")

Command = tuple[bytes | str | int, ...]  # the second word is its key

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
redis.call('SET', KEYS[1], '', 'PX', ARGV[2])
return token
"""

_RENEW = """
redis.call('PERSIST', KEYS[2])
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
return 1
"""

_RELEASE = """
if redis.call('GET', KEYS[2]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
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


_APPEND = """
-- KEYS: fence, log, record. ARGV: token, payload, checksum, entry that must exist ('0-0' none), fields of the record.
if ARGV[5] and redis.call('HGET', KEYS[3], ARGV[5]) == ARGV[6] then return redis.call('HGET', KEYS[3], 'at') end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[4] ~= '0-0' and #redis.call('XRANGE', KEYS[2], ARGV[4], ARGV[4]) == 0 then return 1 end
local at = redis.call('XADD', KEYS[2], '*', 'e', ARGV[2], 'c', ARGV[3])
if ARGV[5] then redis.call('HSET', KEYS[3], 'at', at, unpack(ARGV, 5)) end
return at
"""


@contextlib.contextmanager
def refuses_closed(keys: ModelKeys) -> Iterator[None]:
    """Raise Conflict if the store refuses an entry because the log is closed."""
    try:
        yield
    except StoreRefused as error:
        if CLOSED not in str(error):
            raise
        raise Conflict(f"the model {keys.name} is being replaced; try again when that has ended") from None


class LeaseLost(Conflict):
    def __init__(self) -> None:
        super().__init__("this took too long, and another process has begun meanwhile; try again")


class Lease:
    """An acquired lease; ``acquire`` creates it.

    ``lost`` means that another process is known to have acquired it. False proves nothing: only ``swap`` does.
    """

    def __init__(self, store: Store, keys: ModelKeys, token: bytes, seconds: float, purpose: str) -> None:
        self.keys = keys
        self.purpose = purpose
        self.token = token
        self.lost = False
        self._store = store
        self._seconds = seconds
        self._payload = b""
        self._turn = asyncio.Lock()

    @property
    def key(self) -> bytes:
        return _names(self.keys, self.purpose)[0]

    @property
    def fence(self) -> bytes:
        return _names(self.keys, self.purpose)[1]

    async def swap(self, commands: Iterable[Command]) -> None:
        """Execute commands on keys of the model atomically; LeaseLost, and none, if another process has the lease.

        StoreUnavailable leaves open whether all or none were executed.
        """
        words: list[Any] = [self.token]
        keys = [self.fence]
        for command in commands:
            words += [len(command), *command]
            keys.append(_key_of(command))
        with store_errors():
            done = await self._store.client.eval(_SWAP, len(keys), *keys, *words)
        if not done:
            self._lose()

    async def append(
        self, entry: tuple[bytes, bytes], after: Offset = START, record: str = "", **fields: str
    ) -> Offset:
        """Append an encoded entry to the log of the model, unless another process has acquired the lease.

        The script also sets ``fields``, and the id of the entry as ``at``, in the hash ``record`` of the model. A retry
        with the same first field appends nothing; it returns the offset of the first entry.

        Raises LeaseLost or, if the store has lost the entry ``after``, Conflict: nothing was appended. After
        StoreUnavailable the entry may or may not have been appended.
        """
        names = (self.fence, self.keys.log, self.keys.key(record))
        words = (self.token, *entry, after.entry, *(word for field in fields.items() for word in field))
        with refuses_closed(self.keys), store_errors():
            at = await self._store.client.eval(_APPEND, len(names), *names, *words)
        if at == 0:
            self._lose()
        if at == 1:
            raise Conflict(f"the store has lost the entry {after} of {self.keys.name}; start again")
        return Offset.of_entry(at)

    async def check(self) -> None:
        """Raise LeaseLost if another process has acquired the lease. Call it before work that would be wasted."""
        await self.swap(())

    async def renew(self, payload: bytes | None = None) -> None:
        """Renew the lease, with a new payload if one is given. Raises LeaseLost, StoreUnavailable."""
        async with self._turn:
            self._payload = self._payload if payload is None else payload
            if not await self._run(_RENEW, int(self._seconds * 1000), self._payload):
                self._lose()

    async def release(self) -> None:
        await self._run(_RELEASE)

    def _lose(self) -> NoReturn:
        self.lost = True
        raise LeaseLost

    async def _run(self, script: str, *words: bytes | int) -> Any:
        with store_errors():
            return await self._store.client.eval(script, 2, *_names(self.keys, self.purpose), self.token, *words)


@contextlib.asynccontextmanager
async def acquire(
    store: Store,
    keys: ModelKeys,
    seconds: float | None = None,
    purpose: str = "",
    *,
    wait_seconds: float = 0.0,
    waiting: Callable[[], Awaitable[None]] = do_nothing,
) -> AsyncIterator[Lease]:
    """Acquire the lease of a model and renew it for the duration of the context.

    It lasts for ``seconds`` (None: ``LEASE_SECONDS``) after its holder has died. Raises Conflict if another process
    holds it for longer than ``wait_seconds``; ``waiting`` is awaited repeatedly meanwhile.
    """
    seconds = LEASE_SECONDS if seconds is None else seconds
    milliseconds = int(seconds * 1000)

    async def attempt() -> bytes | None:
        with store_errors():
            words = (*_names(keys, purpose), secrets.token_hex(8), milliseconds)
            token: bytes | None = await store.client.eval(_TAKE, 2, *words)
        if token is None:
            await waiting()
        return token

    token = await wait_until(attempt, POLL_SECONDS, wait_seconds)
    if token is None:
        busy = _BUSY.get(purpose, "another process works on the snapshots and the history of {}; try again later")
        raise Conflict(busy.format(keys.name))
    lease = Lease(store, keys, token, seconds, purpose)
    keeping = asyncio.create_task(forever(lease.renew, seconds / 4, at_once=False), name=f"lease {keys.name}")
    try:
        yield lease
    finally:
        await cancel_and_wait(keeping)
        with contextlib.suppress(StoreUnavailable):
            await lease.release()


async def read_payloads(store: Store, models: Iterable[ModelKeys], purpose: str, kind: type[T]) -> list[T | None]:
    """Return the payload of the lease of each model, decoded; None without a holder or a payload of this kind."""
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys in models:
                pipe.get(_names(keys, purpose)[0])
            found = await pipe.execute()
    payloads: list[T | None] = []
    for text in found:
        try:
            payloads.append(msgspec.json.decode(text, type=kind) if text else None)
        except msgspec.MsgspecError:
            payloads.append(None)  # written by another release
    return payloads


def _names(keys: ModelKeys, purpose: str) -> list[bytes]:
    return [keys.key(f"{purpose}-{part}" if purpose else part) for part in ("lease", "fence")]


def _key_of(command: Command) -> bytes:
    key = command[1]
    return key if isinstance(key, bytes) else str(key).encode()
