"""Upkeep of a vocabulary's table: a larger one, the bytes of removed keys, digests, saving and loading.

See ``core.kernels.keys`` for the layout.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from core.kernels.hashing import mix, mix_bytes, mix_end
from core.kernels.keys import FREE, GARBAGE, HALF, LENGTH, N_IDS, PAGE_BITS, START, USED, add, half_hash, home, opened
from core.kernels.memory import copy_bytes, pointer, prefetch

AHEAD = 16
"""Keys by which loading fetches slots before it needs them."""


@njit(cache=True, nogil=True)
def rehash(slots, larger):
    """Fill the zeroed table ``larger`` from ``slots``, which is spoilt; reads halves of hashes and no keys.

    Both are swept from one end to the other. The used slots are pushed together first, without a branch that the
    processor would guess wrong every other time.
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


@njit(cache=True, nogil=True)
def spread(slots, larger):
    """Fill the table ``larger``, whatever is in it, from ``slots``, which stays as it is; returns the keys of it.

    ``rehash`` is faster, this one lets others read the old table meanwhile.
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


@njit(cache=True, nogil=True)
def compact(arrays, arena):
    """Copy the keys in id order into the fresh ``arena`` and point the spans there; returns the bytes used."""
    table, target, used = opened(arrays), pointer(arena), np.int64(0)
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
    table = opened(arrays)
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


@njit(cache=True, nogil=True)
def export_keys(arrays, lengths, data, free):
    """Write out lengths (0 for ids without a key), bytes in id order, and free ids in the order they will be given."""
    table, target, at = opened(arrays), pointer(data), np.int64(0)
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


@njit(cache=True, nogil=True)
def import_keys(arrays, lengths, data, free):
    """Fill empty arrays, with room enough, from what ``export_keys`` wrote.

    Returns
    -------
    good : bool
        False when a key is there twice or the free ids are not the ids without a key; the arrays are spoilt then.
    """
    table, source = opened(arrays), pointer(data)
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
