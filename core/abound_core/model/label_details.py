"""The details with which labels were registered: names, descriptions and other facts, as opaque bytes.

A registration is a record with details (``abound_core.instances.record``). Its vector is that of the label's name. The
model learns it once: a later registration with the same vector, or with an empty one, only replaces the details.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from abound_core.array_spec import ArraySpec, check_arrays
from abound_core.errors import Corrupted
from abound_core.limits import MAX_DETAILS_BYTES

FINGERPRINT = 16  # bytes; of the vector that was learned for a label, zeros if none was

HASH = 32  # bytes, of a row

ARRAYS = {
    "class_ids": ArraySpec(np.int32, ("labels",), 0, "classes"),
    "lengths": ArraySpec(np.int64, ("labels",), FINGERPRINT, FINGERPRINT + MAX_DETAILS_BYTES),
    "bytes": ArraySpec(np.uint8, ("bytes",)),
}
"""The arrays of ``DetailsTable.to_arrays``: ids ascend. Without registered labels there are none."""

PAGE = 1024  # class ids of a page of ``changed_pages``

_WORD = re.compile(r"[^\W\d_]+")

_LATIN_WORD = re.compile(r"\b[a-z]{3,}\b")
_ENDINGS = (
    *(("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("ss", "sses"), ("us", "uses")),
    *(("is", "es"), ("s", ""), ("x", "xes"), ("ch", "ches"), ("sh", "shes"), ("ey", "eys"), ("y", "ies")),
)
"""Endings of English words with those of their other number, the first that fits."""

_NOTHING = bytes(FINGERPRINT)
_ROW_BYTES = 200  # of a small dict entry with its key and its bytes object


class DetailsTable:
    """The details of registered labels, by class id. ``n_bytes`` is what they take in memory.

    ``changed_pages`` are pages of ids with changed rows; a reader that keeps copies discards them.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self.changed_pages: set[int] = set()
        self._rows: dict[int, bytes] = {}
        self._hash_sum = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, class_id: int) -> bytes:
        return self._rows.get(class_id, _NOTHING)[FINGERPRINT:]

    def is_new(self, class_id: int, vector: bytes) -> bool:
        """Return whether the vector of a name must be learned: it has features, and they were not learned last."""
        return any(vector[:4]) and self._rows.get(class_id, _NOTHING)[:FINGERPRINT] != _fingerprint(vector)

    def put(self, class_id: int, details: bytes, vector: bytes) -> None:
        """Replace the details of a class. An empty vector keeps the fingerprint of the one that was learned."""
        self.changed_pages.add(class_id // PAGE)
        before = self._rows.pop(class_id, None)
        if before is not None:
            self._count(class_id, before, -1)
        learned = _fingerprint(vector) if any(vector[:4]) else (before or _NOTHING)[:FINGERPRINT]
        if details or learned != _NOTHING:
            self._add(class_id, learned + details)

    def move(self, class_id: int, into: int) -> None:
        """Give the details of a class to another one, unless that has some."""
        row = self._rows.pop(class_id, None)
        if row is not None:
            self._count(class_id, row, -1)
            if into not in self._rows:
                self._add(into, row)

    def _add(self, class_id: int, row: bytes) -> None:
        self._rows[class_id] = row
        self._count(class_id, row, 1)

    def _count(self, class_id: int, row: bytes, sign: int) -> None:
        self.n_bytes += sign * (len(row) + _ROW_BYTES)
        hashed = hashlib.blake2b(b"%d %b" % (class_id, row), digest_size=HASH).digest()
        self._hash_sum = (self._hash_sum + sign * int.from_bytes(hashed, "little")) % 2 ** (8 * HASH)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        if not self._rows:
            return {}
        rows = sorted(self._rows.items())
        return {
            "class_ids": np.array([class_id for class_id, _ in rows], np.int32),
            "lengths": np.array([len(row) for _, row in rows], np.int64),
            "bytes": np.frombuffer(b"".join([row for _, row in rows]), np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], n_classes: int) -> DetailsTable:
        found = cls()
        if not arrays:
            return found
        class_ids, lengths, data = check_arrays("the details", arrays, ARRAYS, classes=n_classes).values()
        if len(data) != int(lengths.sum()) or np.any(np.diff(class_ids) <= 0):
            raise Corrupted("the details of labels have the wrong size, or ids that do not ascend")
        payload, at = data.tobytes(), 0
        for class_id, length in zip(class_ids.tolist(), lengths.tolist(), strict=True):
            found._add(class_id, payload[at : at + length])
            at += length
        return found

    def digest_bytes(self) -> bytes:
        """Return the sum of the hashes of all rows, kept as rows change: a digest reads none of them."""
        return self._hash_sum.to_bytes(HASH, "little")


class _WithParent(msgspec.Struct):
    parent: str | None = None


_parent_decoder = msgspec.json.Decoder(_WithParent)


def parent_in(details: bytes) -> bytes:
    """Return the parent that details of a label name, empty if they name none or are not JSON."""
    try:
        return (_parent_decoder.decode(details).parent or "").encode() if b'"parent"' in details else b""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return b""


def words_of(label: str) -> str:
    """Return the words of a label that looks like words: without digits, and with a word of three letters or more.

    >>> words_of("card_not_working"), words_of("c7")
    ('card not working', '')
    """
    words = _WORD.findall(label)
    return " ".join(words) if max(map(len, words), default=0) >= 3 and not re.search(r"\d", label) else ""


def with_other_number(name: str) -> str:
    """Return a name with the singular of each English plural in it, and the plural of each singular.

    Names of classes are plural, and texts are singular: without the other form a new label would match few of them.

    >>> with_other_number("Coats & batteries")
    'Coats & batteries coat battery'
    """
    return " ".join([name, *map(_other_number, _LATIN_WORD.findall(name.lower()))])


def _other_number(word: str) -> str:
    for ending, other in _ENDINGS:
        if word.endswith(ending):
            return word[: len(word) - len(ending)] + other
    return word + "s"


def _fingerprint(vector: bytes) -> bytes:
    return hashlib.blake2b(vector, digest_size=FINGERPRINT).digest()
