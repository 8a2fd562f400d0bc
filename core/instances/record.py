"""A record: a vectorized instance and its labels as flat bytes, which travel through the log as they are.

    vector        u32 n | n x f32 value | n x u16 length | n keys, one after the other | zeros to a multiple of 4
    labels part   u32 m | m x u16 length | m labels, one after the other | zeros to a multiple of 4

A record is a vector followed by a labels part; records follow each other without anything between them, so each begins
at a multiple of 4. Numbers are little-endian. Keys and labels are UTF-8 and not empty; keys of a vector differ from
each other; values are finite and above 0, l2-normalised unless the model is Boolean.

Kernels read records in place by ``abound.core.kernels.records.record.record_shape``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound.core.errors import Damaged, InvalidInstance
from abound.core.kernels.records import record as kernels
from abound.core.kernels.records.record import RecordShape, record_shape
from abound.core.limits import Limits

__all__ = [
    "EMPTY_VECTOR",
    "Record",
    "RecordShape",
    "check_records",
    "iterate",
    "pack_labels",
    "pack_vector",
    "record_ends",
    "record_shape",
    "unpack",
    "unpack_labels",
    "unpack_vector",
    "warmup",
]

EMPTY_VECTOR = bytes(4)
"""The vector of an instance without an active feature."""

_PROBLEMS = {
    kernels.OVERRUN: "runs past the end",
    kernels.EMPTY_KEY: "has an empty key or label",
    kernels.BAD_VALUE: "has a value that is not finite and above 0",
    kernels.BAD_UTF8: "has a key or label that is not UTF-8",
    kernels.BAD_PADDING: "is padded with something else than zeros",
    kernels.NO_LABEL: "has no label",
    kernels.KEY_TWICE: "has the same key twice",
}


class Record(NamedTuple):
    """A record taken apart.

    Attributes
    ----------
    keys : list of str
    values : float32 array, shape (n,)
    labels : list of str
    """

    keys: list[str]
    values: npt.NDArray[np.float32]
    labels: list[str]


def _pack_strings(strings: Sequence[bytes]) -> bytes:
    """The lengths of strings as u16, then the strings, without padding."""
    return struct.pack(f"<{len(strings)}H", *map(len, strings)) + b"".join(strings)


def _padded(part: bytes) -> bytes:
    """A part with zeros to a multiple of 4."""
    return part + bytes(-len(part) % 4)


def pack_vector(keys: Sequence[bytes], values: npt.NDArray[np.float32]) -> bytes:
    """A vector of keys that differ from each other and are not empty, with their values; nothing is checked."""
    return _padded(struct.pack("<I", len(keys)) + values.astype("<f4", copy=False).tobytes() + _pack_strings(keys))


def pack_labels(labels: Sequence[str], limits: Limits) -> bytes:
    """The labels part of a record: the labels in the order given, a repeated one once.

    Raises
    ------
    InvalidInstance
        There is none or too many, or one is empty, too long or no Unicode text; names ``labels`` or ``labels[2]``.
    """
    if not labels:
        raise InvalidInstance("labels must name at least one label", "labels")
    if len(labels) > limits.max_labels:
        raise InvalidInstance(f"labels must be at most {limits.max_labels}, not {len(labels)}", "labels")
    unique: dict[bytes, None] = {}
    for i, label in enumerate(labels):
        try:
            encoded = label.encode()
        except UnicodeEncodeError:
            raise InvalidInstance("a label has half of a surrogate pair", f"labels[{i}]") from None
        if not encoded:
            raise InvalidInstance("a label must not be empty", f"labels[{i}]")
        if len(encoded) > limits.max_label_bytes:
            raise InvalidInstance(f"a label has at most {limits.max_label_bytes} bytes", f"labels[{i}]")
        unique[encoded] = None
    return _padded(struct.pack("<I", len(unique)) + _pack_strings(list(unique)))


def record_ends(payload: bytes, n: int) -> npt.NDArray[np.int64]:
    """Check that bytes are exactly ``n`` records, and tell where each ends.

    Returns
    -------
    ends : int64 array, shape (n + 1,)
        0, then the end of each record: record ``i`` is ``payload[ends[i]:ends[i + 1]]``.

    Raises
    ------
    Damaged
        The bytes are anything else, whatever they are.
    """
    if not 0 <= n <= len(payload) // 8:
        raise Damaged(f"{len(payload)} bytes are too few for {n} records")
    ends = np.zeros(n + 1, np.int64)
    problem, n_good = kernels.check(payload, 0, n, ends)
    while problem == kernels.CROWDED:
        keys = unpack_vector(payload, int(ends[n_good]))[0]
        if len(set(keys)) < len(keys):
            problem = kernels.KEY_TWICE
            break
        problem, n_good = kernels.check(payload, n_good + 1, n, ends)
    if problem == kernels.TRAILING:
        raise Damaged(f"{len(payload) - ends[n]} bytes follow the last of {n} records")
    if problem != kernels.GOOD:
        raise Damaged(f"record {n_good} of {n} {_PROBLEMS[problem]}")
    return ends


def check_records(payload: bytes, n: int) -> None:
    """Damaged unless the bytes are exactly ``n`` well-formed records; see ``record_ends``."""
    record_ends(payload, n)


def _strings(payload: bytes, lengths_at: int, n: int) -> tuple[list[str], int]:
    """The ``n`` strings of a part and where they end."""
    at = lengths_at + 2 * n
    strings = []
    for length in struct.unpack_from(f"<{n}H", payload, lengths_at):
        strings.append(payload[at : at + length].decode())
        at += length
    return strings, at


def unpack_vector(vector: bytes, start: int = 0) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Keys and values of the vector at byte ``start``, which may have a labels part behind it.

    Raises
    ------
    Damaged
        It runs past the end, or a key is not UTF-8.
    """
    if kernels.vector_end(vector, start) < 0:
        raise Damaged("a vector runs past the end of its bytes")
    (n,) = struct.unpack_from("<I", vector, start)
    try:
        keys, _ = _strings(vector, start + 4 + 4 * n, n)
    except UnicodeDecodeError:
        raise Damaged("a key of a vector is not UTF-8") from None
    return keys, np.frombuffer(vector, "<f4", n, start + 4)


def unpack(record: bytes) -> Record:
    """One record taken apart; Damaged unless the bytes are exactly one record."""
    check_records(record, 1)
    keys, values = unpack_vector(record)
    return Record(keys, values, _labels(record, 0))


def _labels(payload: bytes, start: int) -> list[str]:
    return unpack_labels(payload, int(kernels.vector_end(payload, start)))


def unpack_labels(payload: bytes, start: int) -> list[str]:
    """The labels of the labels part at byte ``start``; nothing is checked."""
    return _strings(payload, start + 4, struct.unpack_from("<I", payload, start)[0])[0]


def iterate(payload: bytes, n: int) -> Iterator[Record]:
    """The ``n`` records of a payload one after the other; Damaged, before the first, unless it is exactly these."""
    ends = record_ends(payload, n).tolist()
    for start in ends[:-1]:
        keys, values = unpack_vector(payload, start)
        yield Record(keys, values, _labels(payload, start))


def warmup() -> None:
    """Compile every kernel of this module once, for the types that are used."""
    record = EMPTY_VECTOR + pack_labels(["a"], Limits())
    unpack(record)
