"""Codes: the sparse features that stand for the dense vector of an instance in the index.

A vector q of d numbers (int8) is projected on many random directions, and the directions with the largest results
become features, one for each direction and sign. Similar vectors share many of them. With P projections (2,048 for
4,096 codes):

    p = d, rounded up to a power of two; q is padded with zeros to p numbers
    sign(b, r, i) = -1 if the lowest bit of splitmix64(i + 65,536 (2 b + r)) is set, else 1
    z_b = H (sign(b, 1) * (H (sign(b, 0) * q)))        for the blocks b = 0 .. P / p - 1
    winners: the 64 largest |z| of all P numbers; of equal ones, the smaller numbers
    code = 2 * number + (z < 0)

H is the Walsh-Hadamard transform without a factor, and * is by element. All of it is exact in int32, because |z| is at
most 128 p^2 and p at most 2,048. So codes are the same on every machine. The feature of a code has the key
``\\0m<code>`` (``PREFIX``, then decimal digits).
"""

from __future__ import annotations

import numpy as np

from abound_core.instances.record_kernels import DENSE, shape_at, vector_shape
from abound_core.numba.decorators import inner, kernel
from abound_core.numba.intrinsics import (
    I0,
    copy_bytes,
    load_f32,
    load_u16,
    load_u32,
    pointer,
    store_f32,
    store_u16,
    store_u32,
)
from abound_core.numba.top_k import comes_before, make_heap, sift_down

WINNERS = 64  # codes of a vector

PREFIX = b"\0m"  # begins the keys of codes; no feature and no term begins with a zero byte

MAX_KEY_BYTES = len(PREFIX) + 5

EXPANSION = WINNERS * (6 + MAX_KEY_BYTES) + 4  # bytes by which ``expand_vector`` lengthens a vector at most

_ZERO, _M = PREFIX
_BLOCK = np.uint64(65_536)


@inner
def _sign(number):
    z = number + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int32(1) - np.int32(2) * np.int32((z ^ (z >> np.uint64(31))) & np.uint64(1))


@inner
def _flip(z, first, p, stream):
    begin = np.uint64(stream) * _BLOCK
    for i in range(p):
        z[first + i] = np.int32(z[first + i] * _sign(begin + np.uint64(i)))


@inner
def _transform(z, first, p):
    """Run the Walsh-Hadamard transform on ``p`` numbers from ``first`` on, in place."""
    half = 1
    while half < p:
        for start in range(first, first + p, 2 * half):
            for i in range(start, start + half):
                a, b = z[i], z[i + half]
                z[i] = np.int32(a + b)
                z[i + half] = np.int32(a - b)
        half *= 2


@inner
def _project(data, at, d, z, n):
    """Write the ``n`` projections of the ``d`` numbers (int8) from byte ``at`` on: int32."""
    p = 1
    while p < d:
        p *= 2
    for block in range(n // p):
        first = block * p
        for i in range(p):
            z[first + i] = np.int32(np.int8(data[at + i])) if i < d else np.int32(0)
        for turn in range(2):
            _flip(z, first, p, 2 * block + turn)
            _transform(z, first, p)


@inner
def _select(z, n, out):
    """Write the codes of the ``WINNERS`` largest of ``n`` projections: int32 array, shape (WINNERS,)."""
    numbers, sizes = np.empty(WINNERS, np.int32), np.empty(WINNERS)
    for number in range(WINNERS):
        numbers[number], sizes[number] = number, abs(z[number])
    make_heap(numbers, sizes, np.int64(WINNERS))
    for number in range(WINNERS, n):
        size = np.float64(abs(z[number]))
        if comes_before(size, np.int32(number), sizes[0], numbers[0]):
            numbers[0], sizes[0] = number, size
            sift_down(numbers, sizes, I0, np.int64(WINNERS))
    kept = 0
    for number in range(n):
        if not comes_before(sizes[0], numbers[0], np.float64(abs(z[number])), np.int32(number)):
            out[kept] = 2 * number + (z[number] < 0)
            kept += 1


@inner
def _write_codes(data, at, d, codes, out):
    """Write the codes of a vector, smallest first: int32 array, shape (WINNERS,)."""
    z = np.empty(codes // 2, np.int32)
    _project(data, at, d, pointer(z), len(z))
    _select(pointer(z), len(z), out)
    return len(z)  # it is kept until here


@inner
def _write_key(data, at, code):
    data[at], data[at + 1] = _ZERO, _M
    length = 1
    rest = code // 10
    while rest > 0:
        length += 1
        rest //= 10
    for i in range(at + 1 + length, at + 1, -1):
        data[i] = 48 + code % 10
        code //= 10
    return 2 + length


@inner
def is_code(data, at, length):
    return length > 2 and data[at] == _ZERO and data[at + 1] == _M


@inner
def expand_at(data, shape, codes, dimension, target):
    n, dense_at = shape.n_features, shape.dense_at
    keys_end = shape.keys_at
    for i in range(n):
        keys_end += np.int64(load_u16(data, shape.lengths_at + 2 * i))
    n_codes = 0
    if codes > 0 and dense_at >= 0 and np.int64(load_u32(data, dense_at)) == dimension:
        n_codes = WINNERS
    store_u32(target, 0, n + n_codes)
    copy_bytes(data, shape.values_at, target, 4, 4 * n)
    lengths_at = 4 + 4 * (n + n_codes)
    copy_bytes(data, shape.lengths_at, target, lengths_at, 2 * n)
    to = lengths_at + 2 * (n + n_codes)
    copy_bytes(data, shape.keys_at, target, to, keys_end - shape.keys_at)
    to += keys_end - shape.keys_at
    if n_codes > 0:
        own = np.empty(WINNERS, np.int32)
        _write_codes(data, dense_at + DENSE, dimension, codes, own)
        value = load_f32(data, dense_at + 4)
        for i in range(WINNERS):
            store_f32(target, 4 + 4 * (n + i), value)
            length = _write_key(target, to, np.int64(own[i]))
            store_u16(target, lengths_at + 2 * (n + i), np.uint16(length))
            to += length
    while to % 4 != 0:
        target[to] = 0
        to += 1
    return to


@kernel
def expand_vector(vector, codes, dimension, target):
    """Write a vector with codes as features in place of its dense part.

    Parameters
    ----------
    vector : bytes
        Well formed (``abound_core.instances.record``); not checked.
    codes : int
        Number of codes that exist; 0: a dense part is left out.
    dimension : int
        A dense part of another dimension is left out.
    target : uint8 array
        Of at least ``EXPANSION`` bytes more than the vector has.

    Returns
    -------
    size : int
        Bytes written: a vector without a dense part.
    """
    data = pointer(vector)
    return expand_at(data, vector_shape(data, len(vector), 0), codes, dimension, pointer(target))


@inner
def expand_record(data, shape, codes, dimension, memory):
    """Write a record with codes as features in place of its dense part into ``memory``; return its new shape.

    ``memory`` has at least ``EXPANSION`` bytes more than the record.
    """
    target = pointer(memory)
    end = expand_at(data, shape, codes, dimension, target)
    labels_at = shape.label_lengths_at - 4
    copy_bytes(data, labels_at, target, end, shape.end - labels_at)
    return shape_at(target, len(memory), 0)
