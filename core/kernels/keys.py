"""The table of a vocabulary: keys (bytes) to dense ids, in plain arrays.

    slots   uint64   open addressing, linear probing, a power of two, at most 60 % full. 0 = empty, else
                     the upper half of the key's hash << 32 | id + 1
    spans   uint64   an id: start in the arena << 16 | length. Length 0 marks an id without a key; then the
                     start is the next such id + 1, or 0: the list of ids to be given again, last one first
    arena   uint8    the bytes of the keys
    state   int64    counters and the secret of the hash, see the constants
    dirty   uint8    1 for a page of 256 ids that changed since its digest was computed

The home of a key is the top bits of its stored half hash. So a larger table is filled from a smaller one in one
sweep, reading no key; and two keys with the same half hash only cost a comparison: bytes decide, never the hash.
Removal shifts the following slots back, so there are no tombstones and nothing degrades under churn.

Kernels never allocate. A caller asks ``room_for`` first and grows the arrays when there is none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from core.kernels.hashing import mix, mix_bytes, mix_end, siphash13
from core.kernels.machine import prefetch
from core.kernels.memory import copy_bytes, load_u16, load_u32, pointer, same_bytes

N_IDS, N_LIVE, FREE, USED, GARBAGE, SECRET_0, SECRET_1 = range(7)
"""Places in ``state``: ids ever given, ids with a key, first free id + 1, arena bytes in use, of these without an
owner, secret."""

PAGE_BITS = 8
BLOCK = 64
"""Keys of a vector whose memory is fetched at a time."""

_LOW = np.uint64(0xFFFFFFFF)
_LENGTH = np.uint64(0xFFFF)
_HALF = np.uint64(32)
_START = np.uint64(16)


class KeyArrays(NamedTuple):
    """What the kernels of a vocabulary take; see the module for the layout."""

    slots: np.ndarray
    spans: np.ndarray
    arena: np.ndarray
    state: np.ndarray
    dirty: np.ndarray


class _Table(NamedTuple):
    """The same as pointers, which cost nothing to pass on, and the last slot."""

    slots: np.ndarray
    spans: np.ndarray
    arena: np.ndarray
    state: np.ndarray
    dirty: np.ndarray
    last: int


@njit(cache=True, nogil=True)
def _opened(arrays):
    return _Table(
        pointer(arrays.slots),
        pointer(arrays.spans),
        pointer(arrays.arena),
        pointer(arrays.state),
        pointer(arrays.dirty),
        arrays.slots.size - 1,
    )


@njit(cache=True, nogil=True, inline="always")
def _home(half, last):
    """The slot where the search for a half hash begins: its top bits, as many as number the slots."""
    return np.int64((half * np.uint64(last + 1)) >> _HALF)


@njit(cache=True, nogil=True)
def _half_hash(table, data, at, length):
    k0, k1 = np.uint64(table.state[SECRET_0]), np.uint64(table.state[SECRET_1])
    return siphash13(k0, k1, data, at, length) >> _HALF


@njit(cache=True, nogil=True)
def _is_key(table, key_id, data, at, length):
    span = table.spans[key_id]
    if np.int64(span & _LENGTH) != length:
        return False
    return same_bytes(table.arena, np.int64(span >> _START), data, at, length)


@njit(cache=True, nogil=True)
def _probe(table, half, data, at, length):
    """The id of a key, or -1, and the slot where the search ended."""
    position = _home(half, table.last)
    while True:
        slot = table.slots[position]
        if slot == 0:
            return np.int64(-1), position
        if slot >> _HALF == half:
            key_id = np.int64(slot & _LOW) - 1
            if _is_key(table, key_id, data, at, length):
                return key_id, position
        position = (position + 1) & table.last


@njit(cache=True, nogil=True)
def _add(table, data, at, length):
    half = _half_hash(table, data, at, length)
    key_id, position = _probe(table, half, data, at, length)
    if key_id >= 0:
        return key_id
    state = table.state
    if state[FREE] > 0:
        key_id = state[FREE] - 1
        state[FREE] = np.int64(table.spans[key_id] >> _START)
    else:
        key_id = state[N_IDS]
        state[N_IDS] += 1
    start = state[USED]
    copy_bytes(data, at, table.arena, start, length)
    table.spans[key_id] = (np.uint64(start) << _START) | np.uint64(length)
    table.slots[position] = (half << _HALF) | np.uint64(key_id + 1)
    table.dirty[key_id >> PAGE_BITS] = 1
    state[USED] = start + length
    state[N_LIVE] += 1
    return key_id


@njit(cache=True, nogil=True)
def find_key(arrays, buffer, at, length):
    """The id of the key ``buffer[at : at + length]`` (uint8), -1 when it has none."""
    table, data = _opened(arrays), pointer(buffer)
    return _probe(table, _half_hash(table, data, at, length), data, at, length)[0]


@njit(cache=True, nogil=True)
def room_for(arrays, n_keys, n_bytes):
    """Whether ``n_keys`` more keys of ``n_bytes`` bytes altogether fit without growth."""
    state = arrays.state
    return (
        state[N_IDS] + n_keys <= arrays.spans.size
        and state[USED] + n_bytes <= arrays.arena.size
        and (state[N_LIVE] + n_keys) * 5 <= arrays.slots.size * 3
    )


@njit(cache=True, nogil=True)
def add_key(arrays, buffer, at, length):
    """The id of a key, given now if it has none yet.

    Parameters
    ----------
    arrays : KeyArrays
        With room for the key (``room_for``); changed in place.
    buffer : uint8 array
    at, length : int
        Where the key lies, 1 to 65535 bytes. Not checked.

    Returns
    -------
    id : int
        The id freed last is given first, then the next one that was never given.
    """
    return _add(_opened(arrays), pointer(buffer), at, length)


@njit(cache=True, nogil=True)
def remove_key(arrays, key_id):
    """Take the key off an id that has one; the id is the next to be given. Changes the arrays in place."""
    table = _opened(arrays)
    span, slots, last = table.spans[key_id], table.slots, table.last
    start, length = np.int64(span >> _START), np.int64(span & _LENGTH)
    hole = _probe(table, _half_hash(table, table.arena, start, length), table.arena, start, length)[1]
    position = hole
    while True:
        position = (position + 1) & last
        slot = slots[position]
        if slot == 0:
            break
        if (position - _home(slot >> _HALF, last)) & last >= (position - hole) & last:
            slots[hole] = slot
            hole = position
    slots[hole] = 0
    table.spans[key_id] = np.uint64(table.state[FREE]) << _START
    table.dirty[key_id >> PAGE_BITS] = 1
    table.state[FREE] = key_id + 1
    table.state[GARBAGE] += length
    table.state[N_LIVE] -= 1


@njit(cache=True, nogil=True)
def rehash(slots, larger):
    """Fill the zeroed table ``larger`` from ``slots``, reading halves of hashes and no keys. One sweep through both."""
    last = larger.size - 1
    for slot in slots:
        if slot != 0:
            position = _home(slot >> _HALF, last)
            while larger[position] != 0:
                position = (position + 1) & last
            larger[position] = slot


@njit(cache=True, nogil=True)
def compact(arrays, arena):
    """Copy the keys in id order into the fresh ``arena`` and point the spans there; returns the bytes used."""
    used = np.int64(0)
    for key_id in range(arrays.state[N_IDS]):
        span = arrays.spans[key_id]
        length = np.int64(span & _LENGTH)
        if length > 0:
            copy_bytes(arrays.arena, np.int64(span >> _START), arena, used, length)
            arrays.spans[key_id] = (np.uint64(used) << _START) | np.uint64(length)
            used += length
    arrays.state[USED] = used
    arrays.state[GARBAGE] = 0
    return used


@njit(cache=True, nogil=True)
def _candidates(table, ids, first, end):
    """Replace half hashes in ``ids[first:end]`` by the first id with that half, or -1; fetch the spans."""
    for i in range(first, end):
        half = np.uint64(np.uint32(ids[i]))
        position = _home(half, table.last)
        slot = table.slots[position]
        while slot != 0 and slot >> _HALF != half:
            position = (position + 1) & table.last
            slot = table.slots[position]
        key_id = np.int64(slot & _LOW) - 1
        ids[i] = key_id
        prefetch(table.spans, max(key_id, 0))


@njit(cache=True, nogil=True)
def _find_block(table, data, lengths_at, key_at, ids, first, end):
    """Ids of the keys ``first`` to ``end`` of a vector, -1 for unknown ones; each pass fetches what the next reads.

    ``key_at`` is where the first of them lies; returns where the last one ends.
    """
    at = key_at
    for i in range(first, end):
        length = np.int64(load_u16(data, lengths_at + 2 * i))
        half = _half_hash(table, data, at, length)
        prefetch(table.slots, _home(half, table.last))
        ids[i] = np.int32(np.uint32(half))
        at += length
    _candidates(table, ids, first, end)
    for i in range(first, end):
        if ids[i] >= 0:
            prefetch(table.arena, np.int64(table.spans[ids[i]] >> _START))
    at = key_at
    for i in range(first, end):
        length = np.int64(load_u16(data, lengths_at + 2 * i))
        if ids[i] >= 0 and not _is_key(table, ids[i], data, at, length):
            ids[i] = _probe(table, _half_hash(table, data, at, length), data, at, length)[0]
        at += length
    return at


@njit(cache=True, nogil=True)
def find_vector(arrays, vector, ids):
    """Look up all keys of a vector.

    Parameters
    ----------
    arrays : KeyArrays
    vector : uint8 array
        A well-formed vector (``core.record``); not checked.
    ids : int32 array
        Receives the id of each key in order, -1 where it is unknown; at least as long as the vector has features.

    Returns
    -------
    n : int
        Features of the vector.
    """
    table, data, out = _opened(arrays), pointer(vector), pointer(ids)
    n = np.int64(load_u32(data, 0))
    at = 4 + 6 * n
    for first in range(0, n, BLOCK):
        at = _find_block(table, data, 4 + 4 * n, at, out, first, min(n, first + BLOCK))
    return n


@njit(cache=True, nogil=True)
def intern_vector(arrays, buffer, start, ids):
    """Find or add all keys of the vector at byte ``start`` of a buffer, in order.

    Like ``find_vector``, but unknown keys get ids; the caller has made room for all keys of the vector. A key that is
    there twice gets one id.
    """
    table, data, out = _opened(arrays), pointer(buffer), pointer(ids)
    n = np.int64(load_u32(data, start))
    lengths_at = start + 4 + 4 * n
    at = lengths_at + 2 * n
    for first in range(0, n, BLOCK):
        end = min(n, first + BLOCK)
        key_at = at
        at = _find_block(table, data, lengths_at, at, out, first, end)
        for i in range(first, end):
            length = np.int64(load_u16(data, lengths_at + 2 * i))
            if out[i] < 0:
                out[i] = _add(table, data, key_at, length)
            key_at += length
    return n


@njit(cache=True, nogil=True)
def digest_pages(arrays, pages, first, limit):
    """Bring the hashes of changed pages up to date.

    Parameters
    ----------
    arrays : KeyArrays
        ``dirty`` is cleared in place, page by page.
    pages : uint64 array
        A hash a page of 256 ids, over each id's key, or the next free id where it has none; changed in place.
    first : int
        Page to begin with.
    limit : int
        Changed pages to do at most.

    Returns
    -------
    next : int
        Page to go on with; the number of pages in use when all is done.
    """
    n_ids = arrays.state[N_IDS]
    n_pages = (n_ids + (1 << PAGE_BITS) - 1) >> PAGE_BITS
    for page in range(first, n_pages):
        if arrays.dirty[page] == 0:
            continue
        if limit == 0:
            return page
        limit -= 1
        arrays.dirty[page] = 0
        hashed = np.uint64(page)
        for key_id in range(page << PAGE_BITS, min(n_ids, (page + 1) << PAGE_BITS)):
            span = arrays.spans[key_id]
            if span & _LENGTH:
                hashed = mix_bytes(hashed, arrays.arena, np.int64(span >> _START), np.int64(span & _LENGTH))
            else:
                hashed = mix(mix(hashed, np.uint64(0)), span >> _START)
        pages[page] = mix_end(hashed)
    return n_pages


@njit(cache=True, nogil=True)
def export_keys(arrays, lengths, data, free):
    """Write out lengths (0 for ids without a key), bytes in id order, and free ids in the order they will be given."""
    at = np.int64(0)
    for key_id in range(arrays.state[N_IDS]):
        span = arrays.spans[key_id]
        length = np.int64(span & _LENGTH)
        lengths[key_id] = length
        copy_bytes(arrays.arena, np.int64(span >> _START), data, at, length)
        at += length
    key_id = arrays.state[FREE] - 1
    for i in range(free.size):
        free[i] = key_id
        key_id = np.int64(arrays.spans[key_id] >> _START) - 1


@njit(cache=True, nogil=True)
def import_keys(arrays, lengths, data, free):
    """Fill empty arrays, with room enough, from what ``export_keys`` wrote.

    Returns
    -------
    good : bool
        False when a key is there twice or the free ids are not the ids without a key; the arrays are spoilt then.
    """
    state = arrays.state
    at = np.int64(0)
    n_dead = np.int64(0)
    for key_id in range(lengths.size):
        length = np.int64(lengths[key_id])
        if length == 0:
            n_dead += 1
            state[N_IDS] += 1
        elif add_key(arrays, data, at, length) != key_id:
            return False
        at += length
    for i in range(free.size - 1, -1, -1):
        key_id = np.int64(free[i])
        if key_id < 0 or key_id >= lengths.size or lengths[key_id] != 0 or arrays.spans[key_id] != 0:
            return False
        n_dead -= 1
        arrays.spans[key_id] = np.uint64(state[FREE] + (np.int64(1) << 40)) << _START
        state[FREE] = key_id + 1
    for i in range(free.size):
        arrays.spans[free[i]] &= _LOW << _START
    arrays.dirty[: (lengths.size + 255) >> PAGE_BITS] = 1
    return n_dead == 0
