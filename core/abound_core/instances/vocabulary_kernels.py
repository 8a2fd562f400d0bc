"""The hash table of a vocabulary: keys (bytes) to dense ids, in plain arrays.

    slots   uint64   open addressing, linear probing, a power of two, at most 60 % full. 0 = empty, else
                     the upper half of the key's hash << 32 | id + 1
    spans   uint64   one per id: start in the arena << 16 | length. Length 0 marks an id without a key; then the
                     start is the next such id + 1, or 0: the list of ids to be reused, last freed first
    arena   uint8    the bytes of the keys
    state   int64    counters and the secret of the hash, see the constants
    dirty   uint8    1 for a page of 256 ids that changed since its digest was computed

The home slot of a key is given by the top bits of its stored half hash. A larger table is therefore filled from a
smaller one in one sweep that reads no keys. Two keys with the same half hash only cost a comparison: the bytes
decide, never the hash. Removal shifts the following slots back, so there are no tombstones, and many removals do not
slow the table down.

Kernels never allocate. A caller checks ``room_for`` first and grows the arrays if it is false.

The module also enlarges tables, compacts the bytes of removed keys, computes digests, and converts to and from plain
arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abound_core.instances.siphash_kernels import mix, mix_bytes, mix_end, siphash13
from abound_core.numba.decorators import inlined, inner, kernel, unless
from abound_core.numba.intrinsics import copy_bytes, load_u16, load_u32, pointer, prefetch, same_bytes

N_IDS, N_LIVE, FREE, USED, GARBAGE, SECRET_0, SECRET_1 = range(7)
"""Places in ``state``: ids ever assigned, ids with a key, first free id + 1, arena bytes in use, arena bytes of
removed keys, secret.
"""

PAGE_BITS = 8
BLOCK = 64  # keys of a vector whose memory is prefetched at a time

LENGTH = np.uint64(0xFFFF)
START = np.uint64(16)  # decodes a span: ``span & LENGTH``, ``span >> START``

HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class KeyArrays(NamedTuple):
    slots: np.ndarray
    spans: np.ndarray
    arena: np.ndarray
    state: np.ndarray
    dirty: np.ndarray


class TablePointers(NamedTuple):
    slots: np.ndarray
    spans: np.ndarray
    arena: np.ndarray
    state: np.ndarray
    dirty: np.ndarray
    last: int
    n_spans: int
    n_bytes: int


@unless(TablePointers)
def pointers_of(arrays):
    """Return the pointers of ``KeyArrays``, valid as long as the caller holds the arrays."""
    return TablePointers(
        pointer(arrays.slots),
        pointer(arrays.spans),
        pointer(arrays.arena),
        pointer(arrays.state),
        pointer(arrays.dirty),
        arrays.slots.size - 1,
        arrays.spans.size,
        arrays.arena.size,
    )


@inlined
def home(half, last):
    """Return the slot where the search for a half hash begins: its top bits, as many as the slot numbers have."""
    return np.int64((half * np.uint64(last + 1)) >> HALF)


@inner
def half_hash(table, data, at, length):
    k0, k1 = np.uint64(table.state[SECRET_0]), np.uint64(table.state[SECRET_1])
    return siphash13(k0, k1, data, at, length) >> HALF


@inner
def _is_key(table, key_id, data, at, length):
    span = table.spans[key_id]
    if np.int64(span & LENGTH) != length:
        return False
    return same_bytes(table.arena, np.int64(span >> START), data, at, length)


@inner
def _probe(table, half, data, at, length):
    """Return the id of a key, or -1, and the slot where the search ended."""
    position = home(half, table.last)
    while True:
        slot = table.slots[position]
        if slot == 0:
            return np.int64(-1), position
        if slot >> HALF == half:
            key_id = np.int64(slot & _LOW) - 1
            if _is_key(table, key_id, data, at, length):
                return key_id, position
        position = (position + 1) & table.last


@inner
def add(table, data, at, length):
    half = half_hash(table, data, at, length)
    key_id, position = _probe(table, half, data, at, length)
    if key_id >= 0:
        return key_id
    state = table.state
    if state[FREE] > 0:
        key_id = state[FREE] - 1
        state[FREE] = np.int64(table.spans[key_id] >> START)
    else:
        key_id = state[N_IDS]
        state[N_IDS] += 1
    start = state[USED]
    copy_bytes(data, at, table.arena, start, length)
    table.spans[key_id] = (np.uint64(start) << START) | np.uint64(length)
    table.slots[position] = (half << HALF) | np.uint64(key_id + 1)
    table.dirty[key_id >> PAGE_BITS] = 1
    state[USED] = start + length
    state[N_LIVE] += 1
    return key_id


@kernel
def find_key(arrays, buffer, at, length):
    """Return the id of the key ``buffer[at : at + length]`` (uint8), or -1 if it has none."""
    table, data = pointers_of(arrays), pointer(buffer)
    return _probe(table, half_hash(table, data, at, length), data, at, length)[0]


@kernel
def room_for(arrays, n_keys, n_bytes):
    """Return whether ``n_keys`` more keys of ``n_bytes`` bytes in total fit without growth."""
    table = pointers_of(arrays)
    state = table.state
    return (
        state[N_IDS] + n_keys <= table.n_spans
        and state[USED] + n_bytes <= table.n_bytes
        and (state[N_LIVE] + n_keys) * 5 <= (table.last + 1) * 3
    )


@kernel
def add_key(arrays, buffer, at, length):
    """Return the id of the key ``buffer[at : at + length]`` (1 to 65535 bytes, unchecked), assigning one if needed.

    There must be space for the key (``room_for``). The id freed last is reused first, then the next new one.
    """
    return add(pointers_of(arrays), pointer(buffer), at, length)


@kernel
def remove_key(arrays, key_id):
    """Remove the key of an id that has one; the id is the next to be assigned. Changes the arrays in place."""
    table = pointers_of(arrays)
    span, slots, last = table.spans[key_id], table.slots, table.last
    start, length = np.int64(span >> START), np.int64(span & LENGTH)
    hole = _probe(table, half_hash(table, table.arena, start, length), table.arena, start, length)[1]
    position = hole
    while True:
        position = (position + 1) & last
        slot = slots[position]
        if slot == 0:
            break
        if (position - home(slot >> HALF, last)) & last >= (position - hole) & last:
            slots[hole] = slot
            hole = position
    slots[hole] = 0
    table.spans[key_id] = np.uint64(table.state[FREE]) << START
    table.dirty[key_id >> PAGE_BITS] = 1
    table.state[FREE] = key_id + 1
    table.state[GARBAGE] += length
    table.state[N_LIVE] -= 1


@inner
def _candidates(table, ids, first, end):
    """Replace half hashes in ``ids[first:end]`` by the first id with that half, or -1; prefetch the spans."""
    for i in range(first, end):
        half = np.uint64(np.uint32(ids[i]))
        position = home(half, table.last)
        slot = table.slots[position]
        while slot != 0 and slot >> HALF != half:
            position = (position + 1) & table.last
            slot = table.slots[position]
        key_id = np.int64(slot & _LOW) - 1
        ids[i] = key_id
        prefetch(table.spans, max(key_id, 0))


@inner
def _find_block(table, data, lengths_at, key_at, ids, first, end):
    """Find the ids of the keys ``first`` to ``end`` of a vector, -1 for unknown ones.

    Each pass prefetches what the next one reads. ``key_at`` is the position of the first key; returns the end of the
    last.
    """
    at = key_at
    for i in range(first, end):
        length = np.int64(load_u16(data, lengths_at + 2 * i))
        half = half_hash(table, data, at, length)
        prefetch(table.slots, home(half, table.last))
        ids[i] = np.int32(np.uint32(half))
        at += length
    _candidates(table, ids, first, end)
    for i in range(first, end):
        if ids[i] >= 0:
            prefetch(table.arena, np.int64(table.spans[ids[i]] >> START))
    at = key_at
    for i in range(first, end):
        length = np.int64(load_u16(data, lengths_at + 2 * i))
        if ids[i] >= 0 and not _is_key(table, np.int64(ids[i]), data, at, length):
            ids[i] = _probe(table, half_hash(table, data, at, length), data, at, length)[0]
        at += length
    return at


@kernel
def find_vector(arrays, vector, ids):
    """Write the id of each key of a well-formed vector into ``ids`` (int32), -1 if unknown; return their number."""
    n = np.int64(load_u32(vector, 0))
    find_keys(arrays, pointer(vector), 4 + 4 * n, n, ids)
    return n


@inner
def find_keys(arrays, data, lengths_at, n, ids):
    table, out = pointers_of(arrays), pointer(ids)
    at = lengths_at + 2 * n
    for first in range(0, n, BLOCK):
        at = _find_block(table, data, lengths_at, at, out, first, min(n, first + BLOCK))


@kernel
def intern_vector(arrays, buffer, start, ids):
    """Find or add all keys of the vector at byte ``start`` of a buffer, in order.

    Like ``find_vector``, but unknown keys get ids; the caller must have made space for all keys of the vector. A
    repeated key gets one id.
    """
    n = np.int64(load_u32(buffer, start))
    intern_keys(arrays, pointer(buffer), start + 4 + 4 * n, n, ids)
    return n


@inner
def intern_keys(arrays, data, lengths_at, n, ids):
    find_keys(arrays, data, lengths_at, n, ids)
    add_missing(arrays, data, lengths_at, n, ids)


@inner
def add_missing(arrays, data, lengths_at, n, ids):
    """Add those keys that ``find_keys`` did not find, in order, and write their ids."""
    table, out = pointers_of(arrays), pointer(ids)
    at = lengths_at + 2 * n
    for i in range(n):
        length = np.int64(load_u16(data, lengths_at + 2 * i))
        if out[i] < 0:
            out[i] = add(table, data, at, length)
        at += length


AHEAD = 16  # distance in keys at which loading prefetches slots


@kernel
def rehash(slots, larger):
    """Rehash ``slots`` into the larger, zeroed table. Destroys ``slots``, and reads no keys.

    Both tables are swept from one end to the other. The used slots are first moved together, without a branch, since
    the processor would mispredict every second one.
    """
    n = np.int64(0)
    for slot in slots:
        slots[n] = slot
        n += slot != 0
    last = larger.size - 1
    for i in range(n):
        position = home(slots[i] >> HALF, last)
        while larger[position] != 0:
            position = (position + 1) & last
        larger[position] = slots[i]


@kernel
def copy_rehashed(slots, larger):
    """Fill the table ``larger``, whatever its contents, from ``slots``; return the number of keys.

    ``rehash`` is faster, but this kernel lets other threads read the old table meanwhile.
    """
    larger[:] = 0
    last = larger.size - 1
    n = np.int64(0)
    for slot in slots:
        if slot != 0:
            position = home(slot >> HALF, last)
            while larger[position] != 0:
                position = (position + 1) & last
            larger[position] = slot
            n += 1
    return n


@kernel
def compact(arrays, arena):
    """Copy the keys in id order into the new ``arena`` and point the spans there; return the bytes used."""
    table, target, used = pointers_of(arrays), pointer(arena), np.int64(0)
    for key_id in range(table.state[N_IDS]):
        span = table.spans[key_id]
        length = np.int64(span & LENGTH)
        if length > 0:
            copy_bytes(table.arena, np.int64(span >> START), target, used, length)
            table.spans[key_id] = (np.uint64(used) << START) | np.uint64(length)
            used += length
    table.state[USED] = used
    table.state[GARBAGE] = 0
    return used


@kernel
def digest_pages(arrays, pages, first, limit):
    """Hash up to ``limit`` changed pages from ``first`` on; return the next page, or their number if done.

    ``dirty`` is cleared page by page. ``pages`` (uint64) has one hash per page of 256 ids, over each id's key, or the
    next free id if it has none.
    """
    table = pointers_of(arrays)
    n_ids = table.state[N_IDS]
    n_pages = (n_ids + (1 << PAGE_BITS) - 1) >> PAGE_BITS
    for page in range(first, n_pages):
        if table.dirty[page] == 0:
            continue
        if limit == 0:
            return page
        limit -= 1
        table.dirty[page] = 0
        hashed = np.uint64(page)
        for key_id in range(page << PAGE_BITS, min(n_ids, (page + 1) << PAGE_BITS)):
            span = table.spans[key_id]
            if span & LENGTH:
                hashed = mix_bytes(hashed, table.arena, np.int64(span >> START), np.int64(span & LENGTH))
            else:
                hashed = mix(mix(hashed, np.uint64(0)), span >> START)
        pages[page] = mix_end(hashed)
    return n_pages


@kernel
def export_keys(arrays, lengths, data, free):
    """Write lengths (0 for ids without a key), bytes in id order, and free ids in the order of their reuse."""
    table, target, at = pointers_of(arrays), pointer(data), np.int64(0)
    for key_id in range(table.state[N_IDS]):
        span = table.spans[key_id]
        length = np.int64(span & LENGTH)
        lengths[key_id] = length
        copy_bytes(table.arena, np.int64(span >> START), target, at, length)
        at += length
    key_id = table.state[FREE] - 1
    for i in range(free.size):
        free[i] = key_id
        key_id = np.int64(table.spans[key_id] >> START) - 1


@kernel
def import_keys(arrays, lengths, data, free):
    """Fill empty, large enough arrays with the output of ``export_keys``.

    Returns False if a key is repeated or the free ids are not the ids without a key; then the arrays are unusable.
    """
    table, source = pointers_of(arrays), pointer(data)
    at, n_dead, later, later_at = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for key_id in range(lengths.size):
        length = np.int64(lengths[key_id])
        while later < min(key_id + AHEAD, lengths.size):
            prefetch(table.slots, home(half_hash(table, source, later_at, np.int64(lengths[later])), table.last))
            later_at += np.int64(lengths[later])
            later += 1
        if length == 0:
            n_dead += 1
            table.state[N_IDS] += 1
        elif add(table, source, at, length) != key_id:
            return False
        at += length
    taken = np.uint64(1) << np.uint64(63)
    for i in range(free.size - 1, -1, -1):
        key_id = np.int64(free[i])
        if key_id < 0 or key_id >= lengths.size or lengths[key_id] != 0 or table.spans[key_id] != 0:
            return False
        n_dead -= 1
        table.spans[key_id] = taken | (np.uint64(table.state[FREE]) << START)
        table.state[FREE] = key_id + 1
    for i in range(free.size):
        table.spans[free[i]] &= ~taken
    for page in range((lengths.size + (1 << PAGE_BITS) - 1) >> PAGE_BITS):
        table.dirty[page] = 1
    return n_dead == 0
