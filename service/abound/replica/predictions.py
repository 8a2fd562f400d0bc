"""Stored predictions: classify stores an instance's vector for a while, so that a label can follow without it.

Each model has one stream, bounded by number and bytes. Entries past their age are ignored. A sorted set names the
entries that were learned. An id consists of the entry's id and a random token of 128 bits in the entry, so a client
cannot guess ids of other clients.

When events are forgotten, so are the stored instances that they came from. An event does not refer to the instance
that it was learned from, but has the same vector, byte for byte.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from abound.log.events import LearnEvent
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound_core.config import BEFORE, VECTOR_FIELDS, ModelConfig
from abound_core.errors import Conflict, UnknownPrediction
from abound_core.instances.record import record_ends
from abound_core.instances.record_kernels import vector_end

# Adds an entry, which records how many bytes precede it, and removes the oldest ones beyond the byte bound.
_REMEMBER = """
local total = redis.call('incrby', KEYS[2], #ARGV[2])
local id = redis.call('xadd', KEYS[1], 'maxlen', '~', ARGV[4], '*',
  't', ARGV[1], 'v', ARGV[2], 'r', ARGV[3], 'b', string.format('%.0f', total - #ARGV[2]))
while true do
  local oldest = redis.call('xrange', KEYS[1], '-', '+', 'count', 1)[1]
  local before = 0
  for i = 1, #oldest[2], 2 do
    if oldest[2][i] == 'b' then before = tonumber(oldest[2][i + 1]) end
  end
  if oldest[1] == id or total - before <= tonumber(ARGV[5]) then break end
  redis.call('xdel', KEYS[1], oldest[1])
end
redis.call('expire', KEYS[1], ARGV[6])
redis.call('expire', KEYS[2], ARGV[6])
return id
"""

TOKEN_LENGTH = 22

_ID = re.compile(rf"(\d{{1,20}}-\d{{1,20}})-([A-Za-z0-9_-]{{{TOKEN_LENGTH}}})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberParams:
    """Bounds of stored predictions.

    Attributes
    ----------
    seconds : int
        How long an instance is stored.
    most : int
        Most stored instances of a model.
    most_bytes : int
        Most bytes of a model's stored vectors.
    """

    seconds: int = 86_400
    most: int = 100_000
    most_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        if self.seconds < 1 or self.most < 1 or self.most_bytes < 1:
            raise ValueError("seconds, most and most_bytes must be at least 1")


@lru_cache(maxsize=256)
def vector_fingerprint(config: ModelConfig) -> bytes:
    """Return a fingerprint of the configuration fields that determine the vector of an instance."""
    plain = config.to_dict()
    parts: list[Any] = [config.boolean, config.negative, sorted(plain["analyzer"].items())]
    parts += [(name, plain[name]) for name in VECTOR_FIELDS if name in BEFORE and plain[name] != BEFORE[name]]
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=8).digest()


async def remember(store: Store, keys: ModelKeys, vector: bytes, params: RememberParams, reading: bytes = b"") -> str:
    """Store a vector with the fingerprint of its configuration; return its id."""
    token = secrets.token_urlsafe(16)
    names = [keys.key("remembered"), keys.key("remembered:bytes")]
    with store_errors():
        script = store.client.register_script(_REMEMBER)
        entry = await script(names, [token, vector, reading, params.most, params.most_bytes, params.seconds])
    return f"{entry.decode()}-{token}"


async def recall(store: Store, keys: ModelKeys, prediction: str, params: RememberParams, reading: bytes = b"") -> bytes:
    """Return the vector stored under an id.

    Raises UnknownPrediction if the id is unknown, too old or displaced by newer instances, and Conflict if it was
    made with another fingerprint than ``reading``.
    """
    unknown = UnknownPrediction("no instance is remembered under this id (any more)", "prediction")
    match = _ID.fullmatch(prediction)
    if match is None:
        raise unknown
    entry, token = match.groups()
    if any(int(number) >= 2**64 for number in entry.split("-")):
        raise unknown
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.xrange(keys.key("remembered"), entry, entry)
            (seconds, _), found = await pipe.execute()
    if not found or int(entry.partition("-")[0]) < (seconds - params.seconds) * 1000:
        raise unknown
    fields = found[0][1]
    if not hmac.compare_digest(fields[b"t"], token.encode()):
        raise unknown
    if fields.get(b"r", b"") != reading:
        raise Conflict(
            "the instance was remembered before the model's boolean, analyzer, negative or numbers was changed, "
            "so it would mean something else now; send the instance itself"
        )
    vector: bytes = fields[b"v"]
    return vector


async def mark_learned(store: Store, keys: ModelKeys, predictions: Sequence[str], params: RememberParams) -> None:
    """Record that stored instances were learned, so ``newest_predictions`` leaves them out."""
    key = keys.key("remembered:learned")
    entries = [prediction[: -TOKEN_LENGTH - 1] for prediction in predictions]
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {entry: int(entry.partition("-")[0]) for entry in entries})
            pipe.zremrangebyrank(key, 0, -params.most - 1)
            pipe.expire(key, params.seconds)
            await pipe.execute()


async def newest_predictions(
    store: Store, keys: ModelKeys, params: RememberParams, reading: bytes, most: int, most_bytes: int
) -> list[tuple[str, bytes]]:
    """Return the ids and vectors of the newest stored instances with the fingerprint ``reading``.

    Newest first, without those that were learned. At most ``most``, and no more after ``most_bytes``.
    """
    found: list[tuple[str, bytes]] = []
    end, n_bytes = b"+", 0
    oldest = f"{int((await store.now() - params.seconds) * 1000)}".encode()
    with store_errors():
        while len(found) < most and n_bytes < most_bytes:
            entries = await store.client.xrevrange(keys.key("remembered"), end, oldest, count=LISTED_AT_ONCE)
            if not entries:
                break
            learned = await store.client.zmscore(keys.key("remembered:learned"), [entry for entry, _ in entries])
            for (entry, fields), mark in zip(entries, learned, strict=True):
                if fields.get(b"r", b"") == reading and mark is None and len(found) < most:
                    found.append((f"{entry.decode()}-{fields[b't'].decode()}", fields[b"v"]))
                n_bytes += len(fields[b"v"])
            if len(entries) < LISTED_AT_ONCE:
                break
            end = b"(" + entries[-1][0]
    return found


LISTED_AT_ONCE = 50  # each may have some hundred kilobytes

READ_ENTRIES = 1000

NEW_STREAM_SECONDS = 3600  # expiry of a new stream whose writer died

_TAKE_PLACE = """
local left = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+')
for _, entry in ipairs(left) do redis.call('XADD', KEYS[2], entry[1], unpack(entry[2])) end
local milliseconds = redis.call('PTTL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 0 then return redis.call('DEL', KEYS[1]) end
redis.call('RENAME', KEYS[2], KEYS[1])
if milliseconds > 0 then redis.call('PEXPIRE', KEYS[1], milliseconds) end
return 1
"""


class PredictionEraser:
    """Erases stored predictions: ``read`` them, ``compare`` events with them, ``forget`` those that match."""

    def __init__(self, store: Store, keys: ModelKeys) -> None:
        self._store = store
        self._keys = keys
        self._known: set[bytes] = set()
        self._matched: set[bytes] = set()

    async def read(self) -> None:
        async for _, fields in self._entries():
            self._known.add(_hash(fields[b"v"]))

    def compare(self, event: LearnEvent, gone: list[bool]) -> None:
        """Record which stored vectors belong to the units of an event that are erased."""
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
        if not self._matched:
            return 0
        n = 0
        async for _, fields in self._entries():
            n += _hash(fields[b"v"]) in self._matched
        return n

    async def forget(self) -> None:
        if not self._matched:
            return
        # A deleted entry leaves its bytes in its node of the stream. So the remaining entries go into a new stream,
        # which replaces the old one.
        client, key = self._store.client, self._keys.key("remembered")
        beside = self._keys.key(f"remembered:{secrets.token_hex(4)}")
        last = b"0-0"
        with store_errors():
            async for entry, fields in self._entries():
                if _hash(fields[b"v"]) not in self._matched:
                    await client.xadd(beside, fields, id=entry)
                    await client.expire(beside, NEW_STREAM_SECONDS)
                last = entry
            await client.eval(_TAKE_PLACE, 2, key, beside, last)

    async def _entries(self) -> AsyncGenerator[tuple[bytes, dict[bytes, bytes]]]:
        client, key, last = self._store.client, self._keys.key("remembered"), b"-"
        while True:
            with store_errors():
                found = await client.xrange(key, last, "+", count=READ_ENTRIES)
            if not found:
                return
            for entry, fields in found:
                yield entry, fields
            last = b"(" + found[-1][0]


def _hash(vector: bytes) -> bytes:
    return hashlib.blake2b(vector, digest_size=16).digest()
