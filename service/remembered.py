"""Remembered instances: classify keeps a vector for a while, so that a label can follow without it.

A stream a model, bounded by number; its entries are passed over once they are too old. An id is the entry's place
and a token of 128 random bits that stands in the entry: nobody can guess what others had classified.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import asdict, dataclass
from functools import lru_cache

import msgspec

from core.config import ModelConfig
from core.errors import Conflict, UnknownPrediction
from service.catalog import ModelKeys
from service.store import Store, reaching

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
"""Adds an entry, which tells how many bytes came before it, and takes out the oldest ones while they are too many."""

_ID = re.compile(r"(\d{1,20}-\d{1,20})-([A-Za-z0-9_-]{22})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberParams:
    """How much is remembered.

    Attributes
    ----------
    seconds : int
        How long an instance is.
    most : int
        Instances, a model.
    most_bytes : int
        Bytes of their vectors, a model.
    """

    seconds: int = 86_400
    most: int = 100_000
    most_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        if self.seconds < 1 or self.most < 1 or self.most_bytes < 1:
            raise ValueError("seconds, most and most_bytes must be at least 1")


@lru_cache(maxsize=256)
def reading_of(config: ModelConfig) -> bytes:
    """A fingerprint of what in a configuration decides the vector that an instance becomes."""
    parts = (config.boolean, config.negative, sorted(asdict(config.analyzer).items()))
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=8).digest()


async def remember(store: Store, keys: ModelKeys, vector: bytes, params: RememberParams, reading: bytes = b"") -> str:
    """Keep a vector with the fingerprint of how it was made; its id. StoreUnavailable when the store is away."""
    token = secrets.token_urlsafe(16)
    names = [keys.of("remembered"), keys.of("remembered:bytes")]
    with reaching():
        script = store.client.register_script(_REMEMBER)
        entry = await script(names, [token, vector, reading, params.most, params.most_bytes, params.seconds])
    return f"{entry.decode()}-{token}"


async def recall(store: Store, keys: ModelKeys, prediction: str, params: RememberParams, reading: bytes = b"") -> bytes:
    """The vector that was kept under an id.

    Raises
    ------
    UnknownPrediction
        None was, or it is too old, or was pushed out by newer ones.
    Conflict
        It was made in another way than ``reading`` tells.
    StoreUnavailable
    """
    unknown = UnknownPrediction("no instance is remembered under this id (any more)", "prediction")
    match = _ID.fullmatch(prediction)
    if match is None:
        raise unknown
    entry, token = match.groups()
    if any(int(number) >= 2**64 for number in entry.split("-")):
        raise unknown
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.xrange(keys.of("remembered"), entry, entry)
            (seconds, _), found = await pipe.execute()
    if not found or int(entry.partition("-")[0]) < (seconds - params.seconds) * 1000:
        raise unknown
    fields = found[0][1]
    if not hmac.compare_digest(fields[b"t"], token.encode()):
        raise unknown
    if fields.get(b"r", b"") != reading:
        raise Conflict(
            "the instance was remembered before the model's boolean, analyzer or negative was changed, "
            "so it would mean something else now; send the instance itself"
        )
    vector: bytes = fields[b"v"]
    return vector
