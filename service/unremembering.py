"""Remembered instances that are forgotten with the events that they became.

An event does not say which remembered instance it was learned from; but it has the same vector, byte for byte.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator

from core.kernels.records import vector_end
from core.record import record_ends
from service.catalog import ModelKeys
from service.events import Learn
from service.store import Store, reaching

MOST_READ = 1000
"""Entries that are read at a time."""

BESIDE_SECONDS = 3600
"""A new stream whose writer died is gone after this."""

_TAKE_PLACE = """
local left = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+')
for _, entry in ipairs(left) do redis.call('XADD', KEYS[2], entry[1], unpack(entry[2])) end
local milliseconds = redis.call('PTTL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 0 then return redis.call('DEL', KEYS[1]) end
redis.call('RENAME', KEYS[2], KEYS[1])
if milliseconds > 0 then redis.call('PEXPIRE', KEYS[1], milliseconds) end
return 1
"""


class Unremembering:
    """The remembered instances of a model: ``read`` them, ``compare`` events with them, ``forget`` those that match."""

    def __init__(self, store: Store, keys: ModelKeys) -> None:
        self._store = store
        self._keys = keys
        self._known: set[bytes] = set()
        self._matched: set[bytes] = set()

    async def read(self) -> None:
        """Note the vectors of all that are remembered now."""
        async for _, fields in self._entries():
            self._known.add(_hash(fields[b"v"]))

    def compare(self, event: Learn, gone: list[bool]) -> None:
        """Note which of them are vectors of an entry's requests that are left out."""
        if not self._known:
            return
        ends = record_ends(event.records, event.n_records).tolist()
        place = 0
        for unit, is_gone in zip(event.units, gone, strict=True):
            n = 0 if unit.emptied else unit.n
            for record in range(place, place + n if is_gone else place):
                hashed = _hash(event.records[ends[record] : int(vector_end(event.records, ends[record]))])
                if hashed in self._known:
                    self._matched.add(hashed)
            place += n

    async def count(self) -> int:
        """How many there are that matched."""
        if not self._matched:
            return 0
        n = 0
        async for _, fields in self._entries():
            n += _hash(fields[b"v"]) in self._matched
        return n

    async def forget(self) -> None:
        """Write the stream anew without those that matched.

        An entry that is deleted leaves its bytes in the node of the stream that it was in; so those that stay go
        into a new stream, which takes the old one's place.
        """
        if not self._matched:
            return
        client, key = self._store.client, self._keys.of("remembered")
        beside = self._keys.of(f"remembered:{secrets.token_hex(4)}")
        last = b"0-0"
        with reaching():
            async for entry, fields in self._entries():
                if _hash(fields[b"v"]) not in self._matched:
                    await client.xadd(beside, fields, id=entry)
                    await client.expire(beside, BESIDE_SECONDS)
                last = entry
            await client.eval(_TAKE_PLACE, 2, key, beside, last)

    async def _entries(self) -> AsyncGenerator[tuple[bytes, dict[bytes, bytes]]]:
        client, key, last = self._store.client, self._keys.of("remembered"), b"-"
        while True:
            with reaching():
                found = await client.xrange(key, last, "+", count=MOST_READ)
            if not found:
                return
            for entry, fields in found:
                yield entry, fields
            last = b"(" + found[-1][0]


def _hash(vector: bytes) -> bytes:
    return hashlib.blake2b(vector, digest_size=16).digest()
