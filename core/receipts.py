"""Receipts: what each idempotency key led to, so that a request that comes twice is learned once.

The table is part of a model's state and is asked while applying, so two replicas that race on one key cannot both
learn: the entry that comes first in the log wins, the other one applies as nothing. It holds the newest
``CAPACITY`` keys; an older key is forgotten and would be learned again.

Receipts are numbered as they come and lie in **pages** of ``PAGE``: the newest page is open, a full one is packed and
hashed once, and one whose receipts are all forgotten goes as a whole. So what stands in which page depends on the log
alone, and a receipt costs little more than its place in a dict: a number, by which it is found, and by which it is
known to be forgotten while its page is still there.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from core.types import Offset

CAPACITY = 100_000

PAGE = 256


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
_decode_page = msgspec.msgpack.Decoder(list[Row]).decode
_decode_table = msgspec.msgpack.Decoder(tuple[int, list[list[Row]]]).decode


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
    """A full page: its keys, its rows packed, and the hash of these."""

    keys: list[str]
    packed: bytes
    digest: bytes


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
        self._pages: deque[_Page] = deque()
        self._open: list[Row] = []
        self._n_packed = 0  # bytes of the full pages
        self._unpacked: tuple[int, list[Row]] = (-1, [])  # the page that was looked into last

    def __len__(self) -> int:
        return min(self._n, self._capacity)

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, about: those of the packed pages, and 250 a key."""
        return 250 * len(self._numbers) + self._n_packed

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
        _, body, offset, ranks, updated = self._rows(page)[place]
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
        for row in rows:
            self._numbers[row[0]] = self._n
            self._n += 1
            self._open.append(row)
            if len(self._open) == PAGE:
                self._close_page()
        while (self._n_gone + 1) * PAGE <= self._oldest:
            self._drop_page()

    def digest_bytes(self) -> bytes:
        """A hash over all pages in their order; costs the open page, and 16 bytes for each full one."""
        packed = _encode((self._n_gone, [page.digest for page in self._pages], self._open))
        return hashlib.blake2b(packed, digest_size=16).digest()

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The table as one uint8 array of msgpack: how many pages are gone, and the others, oldest first."""
        pages = [msgspec.Raw(page.packed) for page in self._pages]
        return {"receipts": np.frombuffer(_encode((self._n_gone, [*pages, self._open])), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]], capacity: int = CAPACITY) -> Receipts:
        """The table that ``to_arrays`` gave; ValueError when it cannot be read, or has a key twice."""
        table = cls(capacity)
        n_gone, pages = _decode_table(arrays["receipts"].tobytes())
        *full, last = pages
        if n_gone < 0 or any(len(rows) != PAGE for rows in full) or len(last) >= PAGE:
            raise ValueError("the pages of receipts are not as many and as long as they must be")
        table._n_gone, table._n = n_gone, n_gone * PAGE
        for row in [row for rows in pages for row in rows]:
            if row[0] in table:
                raise ValueError("two receipts have one key")
            table.put([row])
        return table

    def _rows(self, page: int) -> list[Row]:
        """The rows of a page that is here."""
        if page == self._n_gone + len(self._pages):
            return self._open
        if page != self._unpacked[0]:
            self._unpacked = page, _decode_page(self._pages[page - self._n_gone].packed)
        return self._unpacked[1]

    def _close_page(self) -> None:
        packed = _encode(self._open)
        digest = hashlib.blake2b(packed, digest_size=16).digest()
        self._pages.append(_Page([row[0] for row in self._open], packed, digest))
        self._n_packed += len(packed)
        self._open = []

    def _drop_page(self) -> None:
        """Let go of the oldest page; one of its keys may have come again since it was forgotten."""
        page = self._pages.popleft()
        self._n_packed -= len(page.packed)
        self._n_gone += 1
        for key in page.keys:
            if self._numbers.get(key, self._n) < self._n_gone * PAGE:
                del self._numbers[key]
