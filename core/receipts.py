"""Receipts: what each idempotency key led to, so that a request that comes twice is learned once.

The table is part of a model's state and is asked while applying, so two replicas that race on one key cannot both
learn: the entry that comes first in the log wins, the other one applies as nothing. It holds the newest
``CAPACITY`` keys; an older key is forgotten and would be learned again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from core.types import Offset

CAPACITY = 100_000

_BASE = 0x9E3779B97F4A7C15


class Receipt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a request with an idempotency key led to.

    Attributes
    ----------
    body : bytes
        Hash of the request's body: the same key with another body is refused.
    offset : (milliseconds, sequence, position)
        Of the request's first event.
    ranks : list of int
        Rank before learning, an instance; 0 when not retrieved.
    updated : list of bool
    """

    body: bytes
    offset: Offset
    ranks: list[int]
    updated: list[bool]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, Receipt]).decode


class AnotherBody(msgspec.Struct, frozen=True):
    """The answer to a key that came before with another body: nothing was learned.

    Attributes
    ----------
    key : str
    """

    key: str


Outcome = Receipt | AnotherBody | None
"""What applying did with a unit: the receipt of its first time, a refusal, or None: it was learned now."""


class Receipts:
    """The newest receipts by key, oldest first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._by_key: dict[str, bytes] = {}  # the key and its receipt, packed
        self._order: deque[tuple[str, int]] = deque()  # keys and the hashes of their receipts
        self._sum = 0
        self._n_packed = 0
        self._weight_of_oldest = pow(_BASE, capacity, 2**64)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, about: those of the packed receipts, and 300 a key."""
        return 300 * len(self._by_key) + self._n_packed

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def get(self, key: str) -> Receipt | None:
        """The receipt of ``key``, or None when it never came or is forgotten."""
        packed = self._by_key.get(key)
        return None if packed is None else _decode(packed)[1]

    def put(self, key: str, body: bytes, offset: tuple[int, int, int], ranks: list[int], updated: list[bool]) -> None:
        """Keep a receipt under a key that has none, and forget the oldest one beyond the capacity."""
        packed = _encode((key, (body, offset, ranks, updated)))
        hashed = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
        self._by_key[key] = packed
        self._order.append((key, hashed))
        self._sum = self._sum * _BASE + hashed
        self._n_packed += len(packed)
        if len(self._order) > self._capacity:
            oldest, hashed = self._order.popleft()
            self._sum -= hashed * self._weight_of_oldest
            self._n_packed -= len(self._by_key.pop(oldest))
        self._sum %= 2**64

    def digest_bytes(self) -> bytes:
        """A rolling hash over all receipts in their order: kept up to date at every change, so asking costs nothing."""
        return self._sum.to_bytes(8, "little") + len(self._by_key).to_bytes(8, "little")

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The table as one uint8 array of msgpack, oldest first."""
        packed = _encode([msgspec.Raw(packed) for packed in self._by_key.values()])
        return {"receipts": np.frombuffer(packed, np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]], capacity: int = CAPACITY) -> Receipts:
        """The table that ``to_arrays`` gave; ValueError when it cannot be read, or has a key twice."""
        table = cls(capacity)
        for key, receipt in msgspec.msgpack.decode(arrays["receipts"].tobytes(), type=list[tuple[str, Receipt]]):
            if key in table:
                raise ValueError("two receipts have one key")
            table.put(key, receipt.body, receipt.offset, receipt.ranks, receipt.updated)
        return table
