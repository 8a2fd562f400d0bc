"""Receipts: the outcome of each idempotency key, so that a repeated request is learned once.

The table is part of a model's state and is consulted while applying. Two replicas that race on one key therefore
cannot both learn: the entry that comes first in the log wins, and the other changes nothing. The table holds the
newest ``CAPACITY`` keys. An older key is forgotten and would be learned again.

Receipts are numbered in log order and lie in **pages** of ``PAGE``. A full page is hashed once, and a page whose
receipts are all forgotten is dropped as a whole. The contents of each page thus depend on the log alone. A receipt is
found by its number, which also shows whether it is forgotten while its page is still present.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from abound_core.types import Offset

CAPACITY = 100_000

PAGE = 256

MAX_DROPPED_PAGES = 2**48  # receipt numbers of 64 bits cannot overflow below it


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a request with an idempotency key."""

    body: bytes  # hash of the request's body: the same key with another body is refused
    offset: Offset  # offset of the request's first event
    ranks: list[int]  # rank before learning, one per instance; 0 if not retrieved
    updated: list[bool]


Row = tuple[str, bytes, tuple[int, int, int], list[int], list[bool]]  # a key and the fields of its receipt

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode
_decode_table = msgspec.msgpack.Decoder(tuple[int, list[Row]]).decode


class BodyMismatch(msgspec.Struct, frozen=True):
    """The outcome for a key that was used before with another body: nothing was learned."""

    key: str


Outcome = Receipt | BodyMismatch | None
"""The outcome of a unit: the receipt of the first request for a duplicate, a refusal, or None if it was learned."""


class _Page(NamedTuple):
    """Consecutive receipts: their keys, and each receipt packed together with its key."""

    keys: list[str]
    packed: list[bytes]

    def digest(self) -> bytes:
        return hashlib.blake2b(b"".join(self.packed), digest_size=16).digest()


class Receipts:
    """The newest ``capacity`` receipts by key."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._numbers: dict[str, int] = {}  # number of the receipt of each key in the pages
        self._n = 0  # receipts ever written
        self._n_gone = 0  # pages dropped so far
        self._pages = deque([_Page([], [])])  # the last one is not full
        self._digests: deque[bytes] = deque()  # of all pages before the last
        self._n_packed = 0  # bytes of all packed receipts

    def __len__(self) -> int:
        return min(self._n, self._capacity)

    @property
    def n_bytes(self) -> int:
        """Approximate bytes of memory: the packed receipts and 280 bytes per key."""
        return 280 * len(self._numbers) + self._n_packed

    def __contains__(self, key: str) -> bool:
        return self._numbers.get(key, -1) >= self._oldest

    @property
    def _oldest(self) -> int:
        return max(0, self._n - self._capacity)

    def get(self, key: str) -> Receipt | None:
        """Return the receipt of ``key``, or None if it has none or is forgotten."""
        if key not in self:
            return None
        _, body, offset, ranks, updated = self._row(self._numbers[key])
        return Receipt(body, Offset(*offset), ranks, updated)

    def _row(self, number: int) -> Row:
        page, place = divmod(number, PAGE)
        row: Row = _decode(self._pages[page - self._n_gone].packed[place])
        return row

    def n_new(self, keys: Sequence[str]) -> int:
        """Return the number of keys before the first one that has a receipt or repeats an earlier key."""
        if self._numbers.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            return len(keys)
        seen: set[str] = set()
        for key in keys:
            if key in seen or key in self:
                break
            seen.add(key)
        return len(seen)

    def put(self, rows: Sequence[Row]) -> None:
        """Add receipts for keys that have none, and forget the oldest ones beyond the capacity."""
        page = self._pages[-1]
        for row in rows:
            key, packed = row[0], _encode(row)
            self._numbers[key] = self._n
            self._n += 1
            self._n_packed += len(packed)
            page.keys.append(key)
            page.packed.append(packed)
            if len(page.keys) == PAGE:
                self._digests.append(page.digest())
                page = _Page([], [])
                self._pages.append(page)
        while (self._n_gone + 1) * PAGE <= self._oldest:
            self._drop_page()

    def digest_bytes(self) -> bytes:
        """Return a hash over all pages in their order. Hashes only the newest page and 16 bytes for each other one."""
        packed = _encode((self._n_gone, [*self._digests, self._pages[-1].digest()]))
        return hashlib.blake2b(packed, digest_size=16).digest()

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return one uint8 array of msgpack: the number of dropped pages, and the receipts of the others."""
        rows = [msgspec.Raw(packed) for page in self._pages for packed in page.packed]
        return {"receipts": np.frombuffer(_encode((self._n_gone, rows)), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]], capacity: int = CAPACITY) -> Receipts:
        """Load the table from the output of ``to_arrays``. Raises ValueError if it is unreadable or has a key twice."""
        table = cls(capacity)
        table._n_gone, rows = _decode_table(arrays["receipts"].tobytes())
        table._n = table._n_gone * PAGE
        if table._n < 0:
            raise ValueError("the number of dropped pages of receipts is negative")
        if table._n_gone > MAX_DROPPED_PAGES:
            raise ValueError("the number of dropped pages of receipts is too large")
        for row in rows:
            key, _, offset, ranks, updated = row
            if key in table:
                raise ValueError("two receipts have one key")
            if not 0 < len(ranks) == len(updated) or min(ranks) < 0 or min(offset) < 0:
                raise ValueError("a receipt has invalid ranks or a negative offset")
            table.put([row])
        return table

    def _drop_page(self) -> None:
        """Drop the oldest page. Keep those of its keys that were used again after they were forgotten."""
        page = self._pages.popleft()
        self._digests.popleft()
        self._n_gone += 1
        self._n_packed -= sum([len(packed) for packed in page.packed])
        for key in page.keys:
            if self._numbers.get(key, self._n) < self._n_gone * PAGE:
                del self._numbers[key]
