"""Receipts: what each idempotency key led to, so that a request that comes twice is learned once.

The table is part of a model's state and is asked while applying, so two replicas that race on one key cannot both
learn: the entry that comes first in the log wins, the other one applies as nothing. It holds the newest
``CAPACITY`` keys; an older key is forgotten and would be learned again.

Receipts are numbered as they come and lie in **pages** of ``PAGE``: a page that is full is hashed once, and one whose
receipts are all forgotten goes as a whole. So what stands in which page depends on the log alone. A receipt is found by
its number, and by that it is known to be forgotten while its page is still there.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from abound.core.types import Offset

CAPACITY = 100_000

PAGE = 256

MOST_GONE = 2**48
"""Pages that may be gone; to count them on, numbers of 64 bits have room."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
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


Row = tuple[str, bytes, tuple[int, int, int], list[int], list[bool]]
"""A key and the fields of its receipt."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode
_decode_table = msgspec.msgpack.Decoder(tuple[int, list[Row]]).decode


class AnotherBody(msgspec.Struct, frozen=True):
    """The answer to a key that came before with another body: nothing was learned.

    Attributes
    ----------
    key : str
    """

    key: str


Outcome = Receipt | AnotherBody | None
"""What applying did with a unit: the receipt of its first time, a refusal, or None: it was learned now."""


class _Page(NamedTuple):
    """Receipts that follow each other: their keys, and each packed, the key as well."""

    keys: list[str]
    packed: list[bytes]

    def digest(self) -> bytes:
        """16 bytes over all of it."""
        return hashlib.blake2b(b"".join(self.packed), digest_size=16).digest()


class Receipts:
    """The newest receipts by key.

    Parameters
    ----------
    capacity : int
        Keys that are remembered.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._numbers: dict[str, int] = {}  # of all keys in the pages
        self._n = 0  # receipts that there ever were
        self._n_gone = 0  # pages that there were before those that are here
        self._pages = deque([_Page([], [])])  # the last one is not full
        self._digests: deque[bytes] = deque()  # of all pages before the last
        self._n_packed = 0  # bytes of all that are packed

    def __len__(self) -> int:
        return min(self._n, self._capacity)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, about: those of what is packed, and 280 a key."""
        return 280 * len(self._numbers) + self._n_packed

    def __contains__(self, key: str) -> bool:
        return self._numbers.get(key, -1) >= self._oldest

    @property
    def _oldest(self) -> int:
        """The number of the oldest receipt that is not forgotten."""
        return max(0, self._n - self._capacity)

    def get(self, key: str) -> Receipt | None:
        """The receipt of ``key``, or None when it never came or is forgotten."""
        if key not in self:
            return None
        page, place = divmod(self._numbers[key], PAGE)
        _, body, offset, ranks, updated = _decode(self._pages[page - self._n_gone].packed[place])
        return Receipt(body, Offset(*offset), ranks, updated)

    def n_new(self, keys: Sequence[str]) -> int:
        """How many of these keys, from the first one on, have no receipt and differ from each other."""
        if self._numbers.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            return len(keys)
        seen: set[str] = set()
        for key in keys:
            if key in seen or key in self:
                break
            seen.add(key)
        return len(seen)

    def put(self, rows: Sequence[Row]) -> None:
        """Keep receipts under keys that have none, and forget the oldest ones beyond the capacity."""
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
        """A hash over all pages in their order; costs the newest one, and 16 bytes for each other."""
        packed = _encode((self._n_gone, [*self._digests, self._pages[-1].digest()]))
        return hashlib.blake2b(packed, digest_size=16).digest()

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The table as one uint8 array of msgpack: how many pages are gone, and what is in the others."""
        rows = [msgspec.Raw(packed) for page in self._pages for packed in page.packed]
        return {"receipts": np.frombuffer(_encode((self._n_gone, rows)), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]], capacity: int = CAPACITY) -> Receipts:
        """The table that ``to_arrays`` gave; ValueError when it cannot be read, or has a key twice."""
        table = cls(capacity)
        table._n_gone, rows = _decode_table(arrays["receipts"].tobytes())
        table._n = table._n_gone * PAGE
        if table._n < 0:
            raise ValueError("fewer pages of receipts are gone than none")
        if table._n_gone > MOST_GONE:
            raise ValueError("more pages of receipts are gone than there can ever be")
        for row in rows:
            key, _, offset, ranks, updated = row
            if key in table:
                raise ValueError("two receipts have one key")
            if not 0 < len(ranks) == len(updated) or min(ranks) < 0 or min(offset) < 0:
                raise ValueError("a receipt is of something that cannot be")
            table.put([row])
        return table

    def _drop_page(self) -> None:
        """Let go of the oldest page; one of its keys may have come again since it was forgotten."""
        page = self._pages.popleft()
        self._digests.popleft()
        self._n_gone += 1
        self._n_packed -= sum([len(packed) for packed in page.packed])
        for key in page.keys:
            if self._numbers.get(key, self._n) < self._n_gone * PAGE:
                del self._numbers[key]
