"""Stored predictions: classify stores an instance's vector for a while, so that a label can follow without it.

The text of the instance is stored as it came, so that a person can read what to label.

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
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from abound.log.events import LearnEvent
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound_core.config import BEFORE, VECTOR_FIELDS, ModelConfig
from abound_core.errors import Conflict, UnknownPrediction
from abound_core.instances.record import record_ends
from abound_core.instances.record_kernels import vector_end
from abound_core.types import Offset

# Adds an entry, which records how many bytes precede it, and removes the oldest ones beyond the byte bound.
_REMEMBER = """
local total = redis.call('incrby', KEYS[2], ARGV[1])
local id = redis.call('xadd', KEYS[1], 'maxlen', '~', ARGV[2], '*',
  'b', string.format('%.0f', total - ARGV[1]), unpack(ARGV, 5))
while true do
  local oldest = redis.call('xrange', KEYS[1], '-', '+', 'count', 1)[1]
  local before = 0
  for i = 1, #oldest[2], 2 do
    if oldest[2][i] == 'b' then before = tonumber(oldest[2][i + 1]) end
  end
  if oldest[1] == id or total - before <= tonumber(ARGV[3]) then break end
  redis.call('xdel', KEYS[1], oldest[1])
end
redis.call('expire', KEYS[1], ARGV[4])
redis.call('expire', KEYS[2], ARGV[4])
return id
"""

TOKEN_LENGTH = 22

DISMISSED = "suspicious:dismissed"  # key of the offsets of suspicious events that a person has dismissed
MOST_DISMISSED = 10_000  # a model keeps 1,000 suspicious events

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
        Most bytes of a model's stored vectors and texts.
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


async def dismiss(store: Store, keys: ModelKeys, offsets: Iterable[Offset]) -> None:
    """Leave suspicious events out of their list from now on."""
    if scores := {str(at): at.milliseconds for at in offsets}:
        with store_errors():
            await store.client.zadd(keys.key(DISMISSED), scores)
            # The oldest events go first, as in the list.
            await store.client.zremrangebyrank(keys.key(DISMISSED), 0, -MOST_DISMISSED - 1)


async def dismissed(store: Store, keys: ModelKeys) -> set[str]:
    with store_errors():
        return {one.decode() for one in await store.client.zrange(keys.key(DISMISSED), 0, -1)}


class StoredInstance(NamedTuple):
    """An instance that waits for a label. ``text``: JSON of the text as it came; empty without one."""

    id: str
    vector: bytes
    text: bytes


async def remember(
    store: Store, keys: ModelKeys, vector: bytes, params: RememberParams, reading: bytes = b"", text: bytes = b""
) -> str:
    """Store a vector with the fingerprint of its configuration, and the JSON of its text; return its id."""
    token = secrets.token_urlsafe(16)
    names = [keys.key("remembered"), keys.key("remembered:bytes")]
    fields = ["t", token, "v", vector, "r", reading, *(("x", text) if text else ())]
    with store_errors():
        script = store.client.register_script(_REMEMBER)
        bounds = [len(vector) + len(text), params.most, params.most_bytes, params.seconds]
        entry = await script(names, [*bounds, *fields])
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
) -> list[StoredInstance]:
    """Return the newest stored instances with the fingerprint ``reading``.

    Newest first, without those that were learned. At most ``most``, and no more after ``most_bytes``.
    """
    found: list[StoredInstance] = []
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
                    stored = f"{entry.decode()}-{fields[b't'].decode()}"
                    found.append(StoredInstance(stored, fields[b"v"], fields.get(b"x", b"")))
                n_bytes += len(fields[b"v"]) + len(fields.get(b"x", b""))
            if len(entries) < LISTED_AT_ONCE:
                break
            end = b"(" + entries[-1][0]
    return found


LISTED_AT_ONCE = 50  # each may have some hundred kilobytes

READ_ENTRIES = 1000


async def copy(
    store: Store, keys: ModelKeys, new: ModelKeys, after: bytes, gone: Container[bytes], *, is_last: bool
) -> bytes:
    """Copy the stored predictions after an entry to another incarnation, without those with a vector in ``gone``.

    ``gone`` contains fingerprints (``vector_hash``). Return the entry up to which all are copied. ``is_last``: the
    other incarnation is served from now on.
    """
    client = store.client
    with store_errors():
        while found := await client.xrange(keys.key("remembered"), after, "+", count=READ_ENTRIES):
            async with client.pipeline(transaction=False) as pipe:
                for entry, fields in found:
                    if vector_hash(fields[b"v"]) not in gone:
                        pipe.xadd(new.key("remembered"), fields, id=entry)
                await pipe.execute(raise_on_error=False)  # a repetition finds entries that are there
            after = b"(" + found[-1][0]
        if is_last:
            left = await client.pttl(keys.key("remembered"))
            if left > 0:
                await client.pexpire(new.key("remembered"), left)
            for part in ("remembered:bytes", "remembered:learned", DISMISSED):
                await client.copy(keys.key(part), new.key(part), replace=True)
    return after


def hashes_of(event: LearnEvent, gone: list[bool]) -> Iterator[bytes]:
    """Yield the fingerprints of the vectors in the requests of an event that ``gone`` selects."""
    ends = record_ends(event.records, event.n_records).tolist()
    place = 0
    for unit, is_gone in zip(event.units, gone, strict=True):
        n = 0 if unit.emptied else unit.n
        for record in range(place, place + n if is_gone else place):
            yield vector_hash(event.records[ends[record] : int(vector_end(event.records, ends[record]))])
        place += n


def vector_hash(vector: bytes) -> bytes:
    return hashlib.blake2b(vector, digest_size=16).digest()
