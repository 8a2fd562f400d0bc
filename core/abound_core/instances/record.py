"""Records: a vectorized instance and its labels as flat bytes, which go through the log unchanged.

    vector        u32 n | n x f32 value | n x u16 length | n keys, one after the other | zeros to a multiple of 4
    dense part    u32 d | f32 value of a code | d x int8 | zeros to a multiple of 4
    labels part   u32 m | m x u16 length | m labels, one after the other | zeros to a multiple of 4
    feedback      f32 weight | u16 rejected | u16 ignored
    details       u32 length | UTF-8 | zeros to a multiple of 4

A record is a vector followed by a labels part. Bit 31 of n says that the vector ends with a dense part, bit 31 of m
that feedback follows the labels, and bit 30 that details follow. Bit 29 of m says that the true labels are not all:
labels that the record does not name may be true, too. Records follow each other without gaps, so each begins at a
multiple of 4. Numbers are little-endian. Keys and labels are UTF-8 and not empty; the keys of a vector are distinct;
values are finite and above 0, and l2-normalised unless the model is Boolean.

The dense part is a vector of 1 to 2,048 numbers that the instance came with, not all of them zero. The index sees it
as codes (``abound_core.instances.codes_kernels``), each a feature with this value. The norm covers these features, too.
With a dense part no key begins with a zero byte.

Feedback says that the last labels are ignored (shown and not chosen), those before them rejected (wrong), and only the
others true. The weight is above 0 and at most 100; without feedback it is 1. Feedback without a label says that none
fits the instance; without feedback there is at least one label.

Details say that the record registers its only label: the vector is that of the label's name, and it may be empty. The
contents of the details are kept with the label (``abound_core.model.label_details``). If that label is an ignored one,
the record is no instance: the details are a request to change labels (``abound_core.model.label_changes``).

Kernels read records in place with ``abound_core.instances.record_kernels.record_shape``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.errors import Corrupted, InvalidInstance
from abound_core.instances import record_kernels as kernels
from abound_core.instances.record_kernels import RecordShape, record_shape
from abound_core.limits import DATASET_LIMITS, MAX_WEIGHT, Limits

__all__ = [
    "EMPTY_VECTOR",
    "Record",
    "RecordShape",
    "add_dense",
    "add_details",
    "check_records",
    "dense_of",
    "details_of",
    "has_dense",
    "iterate",
    "pack_change",
    "pack_labels",
    "pack_vector",
    "record_ends",
    "record_shape",
    "unpack",
    "unpack_feedback",
    "unpack_labels",
    "unpack_vector",
    "warmup",
    "with_labels",
    "without_dense",
]

EMPTY_VECTOR = bytes(4)  # of an instance without an active feature

LEAST_WEIGHT = 2.0**-126  # of a value: smaller ones could become 0 as float32

_PROBLEMS = {
    kernels.OVERRUN: "runs past the end",
    kernels.EMPTY_KEY: "has an empty key or label",
    kernels.BAD_VALUE: "has a value that is not finite and above 0",
    kernels.BAD_UTF8: "has a key or label that is not UTF-8",
    kernels.BAD_PADDING: "has padding other than zeros",
    kernels.NO_LABEL: "has no label",
    kernels.KEY_TWICE: "has the same key twice",
    kernels.BAD_DENSE: "has an invalid dense vector",
    kernels.RESERVED_KEY: "has a dense vector, and a key that begins with a zero byte",
    kernels.BAD_WEIGHT: "has a weight that is not above 0 and at most 100",
    kernels.BAD_PARTIAL: "is partial, and has no true label or has details",
    kernels.BAD_DETAILS: "has details that are not UTF-8, or details without exactly one true or ignored label",
}

_HAS_DENSE = kernels.HAS_DENSE >> 24


class Record(NamedTuple):
    """An unpacked record."""

    keys: list[str]
    values: npt.NDArray[np.float32]  # shape (n,)
    # labels, rejected, ignored: the true labels, those that are wrong, and those that were shown and not chosen
    labels: list[str]
    rejected: list[str]
    ignored: list[str]
    weight: float  # importance of the instance, above 0 and at most 100
    partial: bool = False  # whether the true labels are not all
    dense: npt.NDArray[np.int8] | None = None  # shape (d,), or None


def _pack_strings(strings: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(strings)}H", *map(len, strings)) + b"".join(strings)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)


def pack_vector(keys: Sequence[bytes], values: npt.NDArray[np.float32]) -> bytes:
    """Pack keys and values into a vector. The keys must be distinct and not empty; this is not checked."""
    return _padded(struct.pack("<I", len(keys)) + values.astype("<f4", copy=False).tobytes() + _pack_strings(keys))


def add_dense(vector: bytes, numbers: bytes, value: float) -> bytes:
    """Return a vector with a dense part: 1 to 2,048 numbers as int8, not all zero, which is not checked.

    ``value`` is that of the feature of a code, above 0 as float32.
    """
    dense = _padded(struct.pack("<If", len(numbers), value) + numbers)
    return vector[:3] + bytes([vector[3] | _HAS_DENSE]) + vector[4:] + dense


def has_dense(vector: bytes) -> bool:
    return vector[3] >= _HAS_DENSE


def without_dense(vector: bytes) -> bytes:
    """Return a vector without its dense part, which no batch method reads."""
    if vector[3] < _HAS_DENSE:
        return vector
    plain = vector[:3] + bytes([vector[3] & ~_HAS_DENSE]) + vector[4:]
    return plain[: int(kernels.vector_end(plain, 0))]


def dense_of(vector: bytes) -> npt.NDArray[np.int8] | None:
    """Return the numbers of a well-formed vector's dense part, None if it has none."""
    if not has_dense(vector):
        return None
    at = len(without_dense(vector))
    (d,) = struct.unpack_from("<I", vector, at)
    return np.frombuffer(vector, np.int8, d, at + kernels.DENSE)


def is_empty(vector: bytes) -> bool:
    return vector[:4] == b"\0\0\0\0"


def pack_labels(
    labels: Sequence[str],
    limits: Limits,
    rejected: Sequence[str] = (),
    ignored: Sequence[str] = (),
    weight: float = 1.0,
    none: bool = False,
    partial: bool = False,
) -> bytes:
    """Return the labels part of a record: the distinct labels of each kind in the given order.

    Raises InvalidInstance with the field, such as ``labels`` or ``rejected[2]``: no labels or too many, a label that is
    empty, too long, not valid Unicode, or of two kinds, a weight out of range, or ``partial`` without a true label.
    """
    if none and (labels or rejected or ignored):
        raise InvalidInstance(
            "none says that no label fits, and the instance has labels; send one or the other", "none"
        )
    if not (labels or rejected or ignored or none):
        raise InvalidInstance("an instance to learn needs a label in labels, rejected or ignored, or none", "labels")
    if partial and not labels:
        raise InvalidInstance("partial says that labels are not all, and the instance has none in labels", "partial")
    plain = not rejected and not ignored and weight == 1.0 and not none
    if len(labels) == 1 and plain and not partial:  # what nearly all instances have
        encoded = _encode_label(labels[0], limits, "labels[0]")
        return _padded(struct.pack("<IH", 1, len(encoded)) + encoded)
    kinds: dict[bytes, str] = {}
    for kind, given in (("labels", labels), ("rejected", rejected), ("ignored", ignored)):
        if len(given) > limits.max_labels:
            raise InvalidInstance(f"{kind} must be at most {limits.max_labels}, not {len(given)}", kind)
        for i, label in enumerate(given):
            encoded = _encode_label(label, limits, f"{kind}[{i}]")
            if kinds.setdefault(encoded, kind) != kind:
                raise InvalidInstance(f"a label is in {kinds[encoded]} and in {kind}", f"{kind}[{i}]")
    n = len(kinds) | (kernels.PARTIAL if partial else 0)
    part = _padded(struct.pack("<I", n) + _pack_strings(list(kinds)))
    if plain:
        return part
    if not 0.0 < weight <= MAX_WEIGHT:
        raise InvalidInstance(f"weight must be above 0 and at most {MAX_WEIGHT:g}", "weight")
    numbers = [list(kinds.values()).count(kind) for kind in ("rejected", "ignored")]
    feedback = struct.pack("<f2H", max(weight, LEAST_WEIGHT), *numbers)
    return struct.pack("<I", n | kernels.HAS_FEEDBACK) + part[4:] + feedback


def add_details(record: bytes, details: bytes) -> bytes:
    """Return a record that registers its label.

    It has one true label without feedback, or is cut off before details of its own. ``details`` are not checked.
    """
    at = int(kernels.vector_end(record, 0))
    part = struct.pack("<I", 1 | kernels.HAS_DETAILS) + record[at + 4 :]
    return record[:at] + part + _padded(struct.pack("<I", len(details)) + details)


def pack_change(request: bytes) -> bytes:
    """Return the record of a request to change labels."""
    part = pack_labels((), Limits(), ignored=("-",))
    count = struct.pack("<I", 1 | kernels.HAS_FEEDBACK | kernels.HAS_DETAILS)
    return EMPTY_VECTOR + count + part[4:] + _padded(struct.pack("<I", len(request)) + request)


def with_labels(payload: bytes, at: int, shape: RecordShape, name_of: Callable[[str], str | None]) -> bytes:
    """Return the record of this shape at byte ``at`` with other names of its labels, each once; b"" if none is left.

    ``name_of`` returns None for a label to leave out.
    """
    if shape.n_labels == 0:  # no label fits
        return payload[at : shape.end]
    labels_at = shape.label_lengths_at - 4
    *kinds, weight, partial = unpack_feedback(payload, labels_at)
    taken: set[str] = set()
    left: list[list[str]] = []
    for kind in kinds:
        names = [name for name in dict.fromkeys(map(name_of, kind)) if name is not None and name not in taken]
        taken.update(names)
        left.append(names)
    if not taken:
        return b""
    part = pack_labels(left[0], DATASET_LIMITS, left[1], left[2], weight, partial=partial and bool(left[0]))
    record = payload[at:labels_at] + part
    return add_details(record, details_of(payload, shape)) if shape.details_at >= 0 else record


def details_of(payload: bytes, shape: RecordShape) -> bytes:
    at = shape.details_at
    return payload[at + kernels.DETAILS : at + kernels.DETAILS + struct.unpack_from("<I", payload, at)[0]]


def _encode_label(label: str, limits: Limits, field: str) -> bytes:
    """Return a label as UTF-8. Raises InvalidInstance with the field if it cannot be one."""
    try:
        encoded = label.encode()
    except UnicodeEncodeError:
        raise InvalidInstance("a label has half of a surrogate pair", field) from None
    if not encoded or label.isspace():
        raise InvalidInstance("a label must not be empty or blank", field)
    if len(encoded) > limits.max_label_bytes:
        raise InvalidInstance(f"a label has at most {limits.max_label_bytes} bytes", field)
    return encoded


def record_ends(payload: bytes, n: int) -> npt.NDArray[np.int64]:
    """Return where each of the ``n`` records ends, int64 after a 0. Raises Corrupted unless there are exactly ``n``."""
    if not 0 <= n <= len(payload) // 8:
        raise Corrupted(f"{len(payload)} bytes are too few for {n} records")
    ends = np.zeros(n + 1, np.int64)
    problem, n_good = kernels.check(payload, 0, n, ends)
    while problem == kernels.CROWDED:
        keys = unpack_vector(payload, int(ends[n_good]))[0]
        if len(set(keys)) < len(keys):
            problem = kernels.KEY_TWICE
            break
        problem, n_good = kernels.check(payload, n_good + 1, n, ends)
    if problem == kernels.TRAILING:
        raise Corrupted(f"{len(payload) - ends[n]} bytes follow the last of {n} records")
    if problem != kernels.GOOD:
        raise Corrupted(f"record {n_good} of {n} {_PROBLEMS[problem]}")
    return ends


def check_records(payload: bytes, n: int) -> None:
    """Raise Corrupted unless the bytes are exactly ``n`` well-formed records; see ``record_ends``."""
    record_ends(payload, n)


def _strings(payload: bytes, lengths_at: int, n: int) -> tuple[list[str], int]:
    """Return the ``n`` strings of a part and where they end."""
    at = lengths_at + 2 * n
    strings = []
    for length in struct.unpack_from(f"<{n}H", payload, lengths_at):
        strings.append(payload[at : at + length].decode())
        at += length
    return strings, at


def unpack_vector(vector: bytes, start: int = 0) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Return keys and values of the vector at byte ``start``, without its dense part. A labels part may follow it.

    Raises Corrupted if it runs past the end, or a key is not UTF-8.
    """
    if kernels.vector_end(vector, start) < 0:
        raise Corrupted("a vector runs past the end of its bytes")
    n = struct.unpack_from("<I", vector, start)[0] & ~kernels.HAS_DENSE
    try:
        keys, _ = _strings(vector, start + 4 + 4 * n, n)
    except UnicodeDecodeError:
        raise Corrupted("a key of a vector is not UTF-8") from None
    return keys, np.frombuffer(vector, "<f4", n, start + 4)


def unpack(record: bytes) -> Record:
    """Unpack one record. Raises Corrupted unless the bytes are exactly one record."""
    [unpacked] = iterate(record, 1)
    return unpacked


def unpack_labels(payload: bytes, start: int) -> list[str]:
    """Return the true labels of the labels part at byte ``start``, without checks."""
    return unpack_feedback(payload, start)[0]


def unpack_feedback(payload: bytes, start: int) -> tuple[list[str], list[str], list[str], float, bool]:
    """Return the true, rejected and ignored labels of the labels part at byte ``start``, weight and ``partial``.

    Nothing is checked.
    """
    (n,) = struct.unpack_from("<I", payload, start)
    labels, end = _strings(payload, start + 4, n & (kernels.PARTIAL - 1))
    partial = n & kernels.PARTIAL != 0
    if n < kernels.HAS_FEEDBACK:
        return labels, [], [], 1.0, partial
    weight, n_rejected, n_ignored = struct.unpack_from("<f2H", payload, end + (start - end) % 4)
    n_true = len(labels) - n_rejected - n_ignored
    wrong = n_true + n_rejected
    return labels[:n_true], labels[n_true:wrong], labels[wrong:], weight, partial


def iterate(payload: bytes, n: int) -> Iterator[Record]:
    """Yield the ``n`` records of a payload. Raises Corrupted before the first one unless the payload is well formed."""
    ends = record_ends(payload, n).tolist()
    for start in ends[:-1]:
        second = int(kernels.vector_end(payload, start))
        keys, values = unpack_vector(payload, start)
        yield Record(keys, values, *unpack_feedback(payload, second), dense_of(payload[start:second]))


def warmup() -> None:
    record = EMPTY_VECTOR + pack_labels(["a"], Limits())
    unpack(record)
