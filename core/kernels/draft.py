"""A vector while it is put together: keys with their values, in scratch memory.

Keys are gathered in ``memory`` from a fixed place on, one after the other as they will lie in the vector; values and
lengths are written before them when all are known, so nothing is moved. A scratch table finds keys that come up
again. Its hash has no secret, so keys could be made to meet: after ``MOST_PROBES`` steps an instance counts as unusual.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from core.kernels.hashing import mix
from core.kernels.machine import inner
from core.kernels.memory import load_u64, same_bytes, store_f32, store_u16, store_u32

UNUSUAL, NO_ROOM = -1, -2
"""Refusals: read the instance another way; make ``memory`` twice as large and try again."""

MAX_FEATURES, MAX_KEY_BYTES, SPLIT, BOOLEAN, GENERATION, N_KEYS, MASK = range(7)
"""Places in ``rules``. The first four are set by the caller, the others are the kernel's own."""

MOST_PROBES = 32

_GENERATIONS = 1 << 24
_ALL = np.uint64(2**64 - 1)
_INDEX = np.uint64(2**20 - 1)


class Draft(NamedTuple):
    """Where an instance is gathered, as pointers.

    Attributes
    ----------
    rules : int64, 7 of them
    values : float64, max_features
    spans : uint64, max_features
        Start in ``memory`` << 16 | length, a key.
    table : uint64, a power of two, at least twice max_features
        Generation << 40 | hash << 20 | place of the key; entries of other generations count as empty.
    memory : uint8
    room : int
        Bytes of ``memory``.
    """

    rules: np.ndarray
    values: np.ndarray
    spans: np.ndarray
    table: np.ndarray
    memory: np.ndarray
    room: int


@njit(cache=True, nogil=True)
def begin(rules, table, size):
    """Forget the instance before: a new generation of the table, with places for ``size`` keys."""
    rules[GENERATION] += 1
    if rules[GENERATION] == _GENERATIONS:
        table[:] = 0
        rules[GENERATION] = 1
    n = np.int64(64)
    while n < size and n < table.size:
        n *= 2
    rules[MASK] = n - 1
    rules[N_KEYS] = 0


@njit(cache=True, nogil=True, inline="always")
def hash_of(memory, at, length):
    """A hash of a key in scratch memory, of which 8 bytes more than the key can be read."""
    state, i = np.uint64(length), 0
    while i + 8 < length:
        state = mix(state, load_u64(memory, at + i))
        i += 8
    return mix(state, load_u64(memory, at + i) & (_ALL >> np.uint64(8 * (8 - length + i))))


@njit(cache=True, nogil=True, forceinline=True)
def add(draft, at, length, value):
    """Add a value to the key that was written at ``at``; returns where the next key goes, or UNUSUAL."""
    rules, table, memory = draft.rules, draft.table, draft.memory
    mask = rules[MASK]
    hashed = hash_of(memory, at, length)
    mark = (np.uint64(rules[GENERATION]) << np.uint64(20)) | (hashed >> np.uint64(44))
    position = np.int64(hashed) & mask
    for _ in range(MOST_PROBES):
        entry = table[position]
        if np.int64(entry >> np.uint64(40)) != rules[GENERATION]:
            break
        if entry >> np.uint64(20) == mark:
            place = np.int64(entry & _INDEX)
            span = draft.spans[place]
            if np.int64(span & np.uint64(0xFFFF)) == length and same_bytes(
                memory, np.int64(span >> np.uint64(16)), memory, at, length
            ):
                draft.values[place] += value
                return at if draft.values[place] < np.inf else np.int64(UNUSUAL)
        position = (position + 1) & mask
    else:
        return np.int64(UNUSUAL)
    n = rules[N_KEYS]
    if n == rules[MAX_FEATURES]:
        return np.int64(UNUSUAL)
    table[position] = (mark << np.uint64(20)) | np.uint64(n)
    draft.values[n] = value
    draft.spans[n] = (np.uint64(at) << np.uint64(16)) | np.uint64(length)
    rules[N_KEYS] = n + 1
    return at + length


@njit(cache=True, nogil=True, error_model="numpy")
def normalise(values, n):
    """L2-normalise the first ``n`` values (float64) in place; the sum runs in order.

    Values are sums of what ``read_number`` gives, 1e-80 to 1e99 each, so no square is lost.
    """
    squares = 0.0
    for i in range(n):
        squares += values[i] * values[i]
    norm = np.sqrt(squares)
    for i in range(n):
        values[i] /= norm


@inner
def _drop_inactive(draft, n, start):
    """Take keys out whose value is 0 as a float32; returns how many are left and where their bytes end."""
    kept, to = np.int64(0), start
    for i in range(n):
        if np.float32(draft.values[i]) > 0:
            span = draft.spans[i]
            at, length = np.int64(span >> np.uint64(16)), np.int64(span & np.uint64(0xFFFF))
            for j in range(length):
                draft.memory[to + j] = draft.memory[at + j]
            draft.values[kept] = draft.values[i]
            draft.spans[kept] = np.uint64(length)
            kept += 1
            to += length
    return kept, to


@njit(cache=True, nogil=True)
def finish(draft, start, end):
    """Write values and lengths before the keys, zeros behind them; returns n << 32 | bytes of the vector."""
    n = draft.rules[N_KEYS]
    values, memory = draft.values, draft.memory
    if draft.rules[BOOLEAN]:
        for i in range(n):
            values[i] = 1.0
    else:
        normalise(values, n)
    least = 1.0
    for i in range(n):
        least = min(least, values[i])
    if np.float32(least) == 0:
        n, end = _drop_inactive(draft, n, start)
    head = start - 6 * n - 4
    store_u32(memory, head, n)
    for i in range(n):
        store_f32(memory, head + 4 + 4 * i, values[i])
        store_u16(memory, start - 2 * n + 2 * i, draft.spans[i] & np.uint64(0xFFFF))
    size = end - head
    store_u32(memory, end, 0)
    return (n << 32) | ((size + 3) // 4 * 4)
