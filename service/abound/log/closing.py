"""Closing a log: from then on the store itself refuses to append to it, and its entries can still be read.

A stream whose last id is the largest one accepts no entry. So no request can be appended behind the last entry of a
closed log, from whichever process it comes. Only the holder of the lease for replacements closes and opens a log.
The lease ends when the model is replaced and when the log is opened. So a command that its holder no longer waits for,
because it was cancelled, changes nothing if it is executed late.
"""

from __future__ import annotations

from typing import Any

from abound.log.catalog import CATALOG_KEY
from abound.log.events import APPLY_VERSION, CatalogEntry, CatalogEvent, Entry, encode
from abound.log.stream import CLOSED_ID
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import Lease, LeaseLost
from abound_core.errors import Conflict
from abound_core.types import Offset

EMPTIED_SECONDS = 86_400  # for which a deleted log stays closed
DONE_SECONDS = 30 * 86_400  # for which the store remembers that a replacement was made

# The last entry is compared first, because a reply may have been lost.
_CLOSE = """
-- KEYS: fence, log, catalog. ARGV: token, an entry of the log that must exist, payload, checksum, largest id,
-- an entry of the catalog that must exist: after a failover that has lost it, nothing would open the log again.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if #redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[2]) == 0 then return 1 end
if #redis.call('XRANGE', KEYS[3], ARGV[6], ARGV[6]) == 0 then return 1 end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if last[1][2][2] == ARGV[3] then return last[1][1] end
local at = redis.call('XADD', KEYS[2], '*', 'e', ARGV[3], 'c', ARGV[4])
redis.call('XSETID', KEYS[2], ARGV[5])
return at
"""

_OPEN = """
-- KEYS: fence, log, catalog, lease. ARGV: token, payload, checksum.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('XADD', KEYS[3], '*', 'e', ARGV[2], 'c', ARGV[3])
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if #last > 0 then redis.call('XSETID', KEYS[2], last[1][1]) end
redis.call('DEL', KEYS[1], KEYS[4])
return 2
"""

_REPLACE = """
-- KEYS: fence, log, new log, catalog, record, lease. ARGV: token, last entry of both logs, payload, checksum,
-- new incarnation, seconds, entries that the new log must have: a failover may have lost some in between.
if redis.call('GET', KEYS[5]) == ARGV[5] then return 2 end -- the reply was lost
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 2, 3 do
  local last = redis.call('XREVRANGE', KEYS[i], '+', '-', 'COUNT', 1)
  if #last == 0 or last[1][1] ~= ARGV[2] then return 1 end
end
if redis.call('XLEN', KEYS[3]) ~= tonumber(ARGV[7]) then return 1 end
redis.call('XADD', KEYS[4], '*', 'e', ARGV[3], 'c', ARGV[4])
redis.call('SET', KEYS[5], ARGV[5], 'EX', ARGV[6])
redis.call('DEL', KEYS[1], KEYS[6])
return 2
"""


async def append_fenced(store: Store, lease: Lease, event: CatalogEvent) -> None:
    """Append an event to the catalog, unless another process has acquired the lease."""
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
    await lease.swap([("XADD", CATALOG_KEY, "*", "e", payload, "c", checksum)])


async def close_log(store: Store, lease: Lease, after: Offset, entry: Entry, prepared: Offset) -> Offset:
    """Append a last entry to the log of the lease's model and close it; return the offset of the entry.

    Raises Conflict if the store has lost the entry ``after`` of the log or ``prepared`` of the catalog. May be repeated
    with the same ``entry``.
    """
    keys = (lease.fence, lease.keys.log, CATALOG_KEY)
    words = (lease.token, after.entry, *encode(entry), CLOSED_ID, prepared.entry)
    return Offset.of_entry(await _run(store, _CLOSE, keys, *words))


async def open_log(store: Store, lease: Lease, event: CatalogEvent) -> None:
    """Append an event to the catalog, and open the log of the lease's model again if it is closed; end the lease."""
    keys = (lease.fence, lease.keys.log, CATALOG_KEY, lease.key)
    await _run(store, _OPEN, keys, lease.token, *encode(CatalogEntry(APPLY_VERSION, event)))


async def replace_log(
    store: Store, lease: Lease, new: ModelKeys, last: Offset, n_entries: int, record: str, event: CatalogEvent
) -> None:
    """Append an event to the catalog if both logs, of the lease's model and of ``new``, end with the entry ``last``.

    Raises Conflict if they do not, or if the new one does not have ``n_entries``: a failover has lost some of them.
    The lease ends with it.
    ``replaced_by`` knows it by ``record``.
    """
    keys = (lease.fence, lease.keys.log, new.log, CATALOG_KEY, _record(record), lease.key)
    entry = encode(CatalogEntry(APPLY_VERSION, event))
    await _run(store, _REPLACE, keys, lease.token, last.entry, *entry, new.incarnation, DONE_SECONDS, n_entries)


async def delete_log(store: Store, key: bytes) -> int:
    """Delete the entries of a log that exists, and keep it closed for a day; return 0 if that was done before.

    Otherwise a replica that was suspended before the first entry could create the log again. Nothing would read what
    it appends there.
    """
    with store_errors():
        if await store.client.ttl(key) >= 0:
            return 0
        async with store.client.pipeline(transaction=True) as pipe:
            pipe.xtrim(key, minid=CLOSED_ID, approximate=False)
            pipe.execute_command("XSETID", key, CLOSED_ID)
            pipe.expire(key, EMPTIED_SECONDS)
            await pipe.execute()
    return 1


async def replaced_by(store: Store, record: str) -> str | None:
    """Return the incarnation that was made under this record; None if none was."""
    with store_errors():
        found = await store.client.get(_record(record))
    return None if found is None else found.decode()


async def _run(store: Store, script: str, keys: tuple[bytes, ...], *words: Any) -> Any:
    with store_errors():
        done = await store.client.eval(script, len(keys), *keys, *words)
    if done == 0:
        raise LeaseLost
    if done == 1:
        raise Conflict("the store has lost the newest entries of the model; start again")
    return done


def _record(record: str) -> bytes:
    return f"abound:replaced:{record}".encode()
