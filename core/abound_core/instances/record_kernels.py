"""Reading of records in place: the positions of their parts, and checks of arbitrary bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abound_core.instances.json_kernels import MOST_PROBES, hash_of
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import load_f32, load_part, load_u16, load_u32, load_u64, pointer, same_bytes

GOOD, OVERRUN, EMPTY_KEY, BAD_VALUE, BAD_UTF8, BAD_PADDING, NO_LABEL, TRAILING, KEY_TWICE, CROWDED = range(10)
BAD_DENSE, RESERVED_KEY, BAD_WEIGHT, BAD_DETAILS, BAD_PARTIAL = range(10, 15)
"""Results of ``check``. ``CROWDED``: no error so far, but too many keys of the record collide in the hash table. The
caller must look for repeated keys in another way.
"""

HAS_DENSE = 1 << 31  # in a vector's feature count: a dense part follows the keys

DENSE = 8  # bytes before the numbers: the dimension as u32, the value of a code's feature as f32

MAX_DIMENSION = 2048  # ``abound_core.limits.MAX_DIMENSION``

HAS_FEEDBACK = 1 << 31  # in the number of labels: feedback follows the labels

FEEDBACK = 8  # bytes of feedback

MAX_WEIGHT = 100.0  # ``abound_core.limits.MAX_WEIGHT``

HAS_DETAILS = 1 << 30  # in the number of labels: details of the label follow

PARTIAL = 1 << 29  # in the number of labels: the true ones are not all

DETAILS = 4  # bytes before the contents: the length as u32

MAX_DETAILS_BYTES = 16_384  # ``abound_core.limits.MAX_DETAILS_BYTES``

MAX_REQUEST_BYTES = 2**20  # of a request to change labels

_COUNT = np.uint32(HAS_DENSE - 1)
_LABEL_COUNT = np.uint32(PARTIAL - 1)
_HAS_DENSE = np.uint32(HAS_DENSE)
_HAS_FEEDBACK = np.uint32(HAS_FEEDBACK)
_HAS_DETAILS = np.uint32(HAS_DETAILS)
_PARTIAL = np.uint32(PARTIAL)
_NOT_ASCII = np.uint64(0x8080808080808080)
_LOW = np.uint64(0xFFFFFFFF)


class RecordShape(NamedTuple):
    """The positions of the parts of a record, in bytes from the start of the buffer.

    ``n_features`` is -1 if the record does not lie inside the buffer; then the other fields mean nothing.
    ``dense_at`` is -1 if there is no dense part. The ``n_labels`` labels are ``n_true`` true ones, then ``n_rejected``
    rejected ones, then ignored ones. Without feedback all are true and ``weight`` is 1. If ``partial``, others may be
    true, too. ``details_at`` is -1 without details.
    """

    n_features: int
    values_at: int
    lengths_at: int
    keys_at: int
    dense_at: int
    n_labels: int
    label_lengths_at: int
    labels_at: int
    end: int
    n_true: int
    n_rejected: int
    weight: float
    details_at: int
    partial: bool


@inlined
def nowhere():
    return RecordShape(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0, -1, False)


@inlined
def is_complete(shape):
    """Return whether the labels that a record does not name are wrong: its true ones are all, or no label fits."""
    return (shape.n_true > 0 and not shape.partial) or shape.n_labels == 0


@inner
def _part_end(data, size, lengths_at, n):
    """Return the end of the strings of a part, ``n`` u16 lengths and then the bytes; -1 if past ``size``."""
    at = lengths_at + 2 * n
    if at > size:
        return np.int64(-1)
    for i in range(n):
        at += np.int64(load_u16(data, lengths_at + 2 * i))
    return at if at <= size else np.int64(-1)


@inner
def _padded_end(size, start, end):
    """Return the end of a part that begins at ``start``, with its padding; -1 if ``end`` is, or it is past ``size``."""
    padded = (end - start + 3) // 4 * 4 + start
    return padded if end >= 0 and padded <= size else np.int64(-1)


@inner
def _dense_end(data, size, at):
    """Return the end of the dense part at ``at``; -1 if it is past ``size`` or of more than MAX_DIMENSION numbers."""
    if at < 0 or at > size - DENSE:
        return np.int64(-1)
    d = np.int64(load_u32(data, at))
    return _padded_end(size, at, at + DENSE + d) if d <= MAX_DIMENSION else np.int64(-1)


@inner
def _details_end(data, size, at, most):
    """Return the end of the details at ``at``; -1 if it is past ``size`` or they are longer than ``most``."""
    if at > size - DETAILS:
        return np.int64(-1)
    n = np.int64(load_u32(data, at))
    return _padded_end(size, at, at + DETAILS + n) if n <= most else np.int64(-1)


@inner
def vector_shape(data, size, start):
    if start < 0 or start > size - 4:
        return nowhere()
    word = load_u32(data, start)
    n = np.int64(word & _COUNT)
    lengths_at = start + 4 + 4 * n
    end = _padded_end(size, start, _part_end(data, size, lengths_at, n))
    dense_at = np.int64(-1)
    if word & _HAS_DENSE:
        dense_at = end
        end = _dense_end(data, size, end)
    if end < 0:
        return nowhere()
    return RecordShape(
        n, start + 4, lengths_at, lengths_at + 2 * n, dense_at, 0, 0, 0, end, 0, 0, 1.0, np.int64(-1), False
    )


@inner
def shape_at(data, size, start):
    vector = vector_shape(data, size, start)
    second = vector.end
    if vector.n_features < 0 or second > size - 4:
        return nowhere()
    word = load_u32(data, second)
    n_labels = np.int64(word & _LABEL_COUNT)
    end = _padded_end(size, second, _part_end(data, size, second + 4, n_labels))
    n_true, n_rejected, weight = n_labels, np.int64(0), 1.0
    if end >= 0 and word & _HAS_FEEDBACK:
        if end > size - FEEDBACK:
            return nowhere()
        weight, n_rejected = np.float64(load_f32(data, end)), np.int64(load_u16(data, end + 4))
        n_true -= n_rejected + np.int64(load_u16(data, end + 6))
        end += FEEDBACK
    details_at = np.int64(-1)
    if end >= 0 and word & _HAS_DETAILS:
        details_at = end
        end = _details_end(data, size, end, MAX_DETAILS_BYTES if n_true else MAX_REQUEST_BYTES)
    if end < 0 or n_true < 0:
        return nowhere()
    return RecordShape(
        vector.n_features,
        vector.values_at,
        vector.lengths_at,
        vector.keys_at,
        vector.dense_at,
        n_labels,
        second + 4,
        second + 4 + 2 * n_labels,
        end,
        n_true,
        n_rejected,
        weight,
        details_at,
        word & _PARTIAL != 0,
    )


@kernel
def vector_end(buffer, start):
    """Return the end of the vector at byte ``start``, including its padding; -1 if it overruns the buffer."""
    shape = vector_shape(pointer(buffer), len(buffer), start)
    return shape.end if shape.n_features >= 0 else np.int64(-1)


@kernel
def record_shape(buffer, start):
    """Return the shape of the record at byte ``start`` of a uint8 array; reads no byte outside of it."""
    return shape_at(pointer(buffer), len(buffer), start)


@inner
def _sequence_length(data, at, end):
    """Return the length of the UTF-8 sequence at ``at``, 0 if invalid: overlong, a surrogate, too high, or cut off."""
    first = data[at]
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return 0
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + length > end:
        return 0
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if data[at + 1] < low or data[at + 1] > high:
        return 0
    for i in range(2, length):
        if data[at + i] & 0xC0 != 0x80:
            return 0
    return length


@inner
def is_utf8(data, at, length):
    """Return whether ``length`` bytes from ``at`` on are UTF-8 (no surrogates); they must lie inside the data."""
    end = at + length
    while at < end:
        word = load_u64(data, at) if at + 8 <= end else load_part(data, at, end - at)
        if word & _NOT_ASCII == 0:
            at += 8
            continue
        step = _sequence_length(data, at, end)
        if step == 0:
            return False
        at += step
    return True


@inner
def _check_strings(data, lengths_at, n, strings_at):
    """Check the strings of a part and its padding: no empty string, each one UTF-8, followed by zeros."""
    at = strings_at
    for i in range(n):
        length = np.int64(load_u16(data, lengths_at + 2 * i))
        if length == 0:
            return EMPTY_KEY
        if not is_utf8(data, at, length):
            return BAD_UTF8
        at += length
    while (at - lengths_at) % 4 != 0:
        if data[at] != 0:
            return BAD_PADDING
        at += 1
    return GOOD


@inner
def _check_dense(data, shape):
    """Check the dense part of a record, and that no key begins with a zero byte, like those of codes."""
    at = shape.dense_at
    d, value = np.int64(load_u32(data, at)), load_f32(data, at + 4)
    if d == 0 or not 0 < value < np.inf:
        return BAD_DENSE
    at += DENSE
    end, any_bit = at + d, np.uint8(0)
    while at < end:
        any_bit |= data[at]
        at += 1
    if any_bit == 0:
        return BAD_DENSE
    while at < shape.label_lengths_at - 4:
        if data[at] != 0:
            return BAD_PADDING
        at += 1
    key_at = shape.keys_at
    for i in range(shape.n_features):
        if data[key_at] == 0:
            return RESERVED_KEY
        key_at += np.int64(load_u16(data, shape.lengths_at + 2 * i))
    return GOOD


@inner
def _check_details(data, shape):
    """Check the details of a record: one label, true or ignored, and UTF-8 with padding."""
    at = shape.details_at
    n = np.int64(load_u32(data, at))
    has_feedback = load_u32(data, shape.label_lengths_at - 4) & _HAS_FEEDBACK != 0
    if shape.n_labels != 1 or shape.n_rejected or has_feedback != (shape.n_true == 0):
        return BAD_DETAILS
    if not is_utf8(data, at + DETAILS, n):
        return BAD_DETAILS
    for i in range(at + DETAILS + n, shape.end):
        if data[i] != 0:
            return BAD_PADDING
    return GOOD


@inner
def _compare_keys(data, shape, table, starts):
    """Return KEY_TWICE if two keys of a record are equal, GOOD if not, or CROWDED if undecided.

    The strings must be checked, and the record must have a label or feedback, so that 8 bytes after the last
    key can be read.
    ``table`` (uint64) has at least eight times as many places as the record has keys, ``starts`` (int64) one for each;
    both are overwritten, ``table`` with half of a hash << 32 | place of the key + 1.
    """
    n, at, size = shape.n_features, shape.keys_at, 16
    while size < 4 * n:
        size *= 2
    for place in range(size):
        table[place] = 0
    for i in range(n):
        length = np.int64(load_u16(data, shape.lengths_at + 2 * i))
        hashed, probes = hash_of(data, at, length), 0
        place = np.int64(hashed) & (size - 1)
        while table[place] != 0:
            if (table[place] ^ hashed) <= _LOW:
                other = np.int64(table[place] & _LOW) - 1
                if np.int64(load_u16(data, shape.lengths_at + 2 * other)) == length and same_bytes(
                    data, starts[other], data, at, length
                ):
                    return KEY_TWICE
            probes += 1
            if probes == MOST_PROBES:
                return CROWDED
            place = (place + 1) & (size - 1)
        table[place] = (hashed & ~_LOW) | np.uint64(i + 1)
        starts[i] = at
        at += length
    return GOOD


@kernel
def check(buffer, first, n_records, ends):
    """Check that a buffer is exactly ``n_records`` well-formed records.

    Parameters
    ----------
    buffer : uint8 array
        Arbitrary bytes; no byte outside of it is read.
    first : int
        Number of records at its beginning that were checked before.
    n_records : int
    ends : int64 array, shape (n_records + 1,)
        Up to ``ends[first]`` as an earlier call left it, 0 at the beginning; receives the end of each further record.

    Returns
    -------
    problem : int
        GOOD, or the first error.
    n_good : int
        Number of records before the wrong one.
    """
    data, size, at = pointer(buffer), len(buffer), ends[first]
    table, starts = np.empty(256, np.uint64), np.empty(64, np.int64)
    for i in range(first, n_records):
        shape = shape_at(data, size, at)
        if shape.n_features < 0:
            return OVERRUN, i
        for j in range(shape.n_features):
            value = load_f32(data, shape.values_at + 4 * j)
            if not 0 < value < np.inf:
                return BAD_VALUE, i
        if shape.n_labels == 0 and load_u32(data, shape.label_lengths_at - 4) & _HAS_FEEDBACK == 0:
            return NO_LABEL, i
        if not 0.0 < shape.weight <= MAX_WEIGHT:
            return BAD_WEIGHT, i
        if shape.partial and (shape.n_true == 0 or shape.details_at >= 0):
            return BAD_PARTIAL, i
        problem = _check_strings(data, shape.lengths_at, shape.n_features, shape.keys_at)
        if problem == GOOD:
            problem = _check_strings(data, shape.label_lengths_at, shape.n_labels, shape.labels_at)
        if problem == GOOD and shape.dense_at >= 0:
            problem = _check_dense(data, shape)
        if problem == GOOD and shape.details_at >= 0:
            problem = _check_details(data, shape)
        if problem == GOOD and shape.n_features > 1:
            if shape.n_features > len(starts):
                starts = np.empty(2 * shape.n_features, np.int64)
                table = np.empty(8 * len(starts), np.uint64)
            problem = _compare_keys(data, shape, pointer(table), pointer(starts))
        at = shape.end
        ends[i + 1] = at
        if problem != GOOD:
            return problem, i
    return (GOOD if at == size else TRAILING), n_records
