"""The logical state of an index: digested page by page, written into plain arrays and read back.

The logical state of a feature is its total, how often it was seen, and its connections in their order. Neither places
nor forms of blocks nor free lists are part of it.
"""

import numpy as np
from numba import njit

from core.kernels.machine import U0, U1, U2, as_bits, as_float
from core.kernels.postings import (
    LONGEST,
    N_CONNECTIONS,
    N_FEATURES,
    PAGE_BITS,
    SEEN_FULL,
    SEEN_SHIFT,
    UNITS,
    WIDE_FLAG,
    block_of,
    class_of,
    count_of,
    length_of,
    make_header,
    narrow_record,
    reserve,
    seen_of,
    size_for,
    size_of,
    wide_capacity,
)

U33 = np.uint64(33)
ODD = np.uint64(0x9E3779B97F4A7C15)
MIX1 = np.uint64(0xFF51AFD7ED558CCD)
MIX2 = np.uint64(0xC4CEB9FE1A85EC53)


@njit(cache=True, nogil=True)
def mixed(state, word):
    """Take one word into a 64-bit hash (the finalizer of MurmurHash3)."""
    state = (state ^ word) * ODD
    state = (state ^ (state >> U33)) * MIX1
    state = (state ^ (state >> U33)) * MIX2
    return state ^ (state >> U33)


@njit(cache=True, nogil=True)
def connection(arrays, header, at):
    """Class id and count of a feature's connection ``at``, in either form."""
    block = block_of(header)
    record = arrays.arena[block + at]
    if header & WIDE_FLAG:
        second = (block + wide_capacity(size_of(header))) * U2
        return np.uint64(arrays.arena_ids[second + at]), as_float(record)
    return class_of(record), count_of(record)


@njit(cache=True, nogil=True)
def digest_page(arrays, page):
    """The 64-bit hash of the logical state of 256 features."""
    state = np.uint64(page)
    first = np.uint64(page) << PAGE_BITS
    last = min(first + (U1 << PAGE_BITS), np.uint64(arrays.counters[N_FEATURES]))
    for feature in range(first, last):
        header = arrays.headers[feature * U2]
        state = mixed(state, (seen_of(header) << np.uint64(16)) | length_of(header))
        state = mixed(state, arrays.headers[feature * U2 + U1])
        for at in range(length_of(header)):
            class_id, count = connection(arrays, header, at)
            state = mixed(mixed(state, class_id), as_bits(count))
    return state


@njit(cache=True, nogil=True)
def digest_dirty(arrays, hashes, start, limit):
    """Digest up to ``limit`` dirty pages from page ``start`` on.

    Parameters
    ----------
    hashes : uint64, shape (pages,)
        Written where a page was dirty.

    Returns
    -------
    next : int
        Where to go on; the number of pages when done.
    """
    n_pages = (np.uint64(arrays.counters[N_FEATURES]) + (U1 << PAGE_BITS) - U1) >> PAGE_BITS
    for page in range(np.uint64(start), n_pages):
        if arrays.dirty[page]:
            if limit == 0:
                return np.int64(page)
            limit -= 1
            hashes[page] = digest_page(arrays, page)
            arrays.dirty[page] = 0
    return np.int64(n_pages)


@njit(cache=True, nogil=True)
def export_features(arrays, lengths, seen, totals, class_ids, counts):
    """Write the logical state into plain arrays.

    Parameters
    ----------
    lengths, seen, totals : uint16, uint16, float64, shape (n_features,)
    class_ids, counts : uint32, float64, shape (n_connections,)
        Feature after feature, heaviest connection first.
    """
    place = U0
    for feature in range(np.uint64(len(lengths))):
        header = arrays.headers[feature * U2]
        lengths[feature] = length_of(header)
        seen[feature] = seen_of(header)
        totals[feature] = as_float(arrays.headers[feature * U2 + U1])
        for at in range(length_of(header)):
            class_id, count = connection(arrays, header, at)
            class_ids[place] = class_id
            counts[place] = count
            place += U1


@njit(cache=True, nogil=True)
def is_ordered(class_ids, counts, first, end):
    """Whether connections ``first`` to ``end`` are >= 0, finite, and in order; equal counts by class id."""
    for at in range(first, end):
        if not 0.0 <= counts[at] < np.inf:
            return False
        if at > first and not (
            counts[at - U1] > counts[at] or (counts[at - U1] == counts[at] and class_ids[at - U1] < class_ids[at])
        ):
            return False
    return True


@njit(cache=True, nogil=True)
def units_to_import(lengths):
    """A bound of the arena units that ``import_features`` takes: all blocks wide, half of the cache lines skipped."""
    units = U0
    for feature in range(len(lengths)):
        units += U2 * UNITS[size_for(np.uint64(lengths[feature]), True)]
    return units


@njit(cache=True, nogil=True)
def import_features(arrays, lengths, seen, totals, class_ids, counts):
    """Fill an empty index that has room; the reverse of ``export_features``. False where the arrays are no index."""
    first = U0
    for feature in range(np.uint64(len(lengths))):
        length = np.uint64(lengths[feature])
        end = first + length
        if seen[feature] > SEEN_FULL or not 0.0 <= totals[feature] < np.inf or end > np.uint64(len(counts)):
            return False
        if not is_ordered(class_ids, counts, first, end) or (length and totals[feature] == 0.0):
            return False
        wide = False
        for at in range(first, end):
            if narrow_record(counts[at], np.uint64(class_ids[at])) == U0:
                wide = True
        flags = (np.uint64(seen[feature]) << SEEN_SHIFT) | (WIDE_FLAG if wide else U0)
        size = size_for(length, wide)
        block = reserve(arrays, size) if length else U0
        second = (block + wide_capacity(size)) * U2
        for at in range(length):
            class_id, count = np.uint64(class_ids[first + at]), counts[first + at]
            if wide:
                arrays.arena[block + at] = as_bits(count)
                arrays.arena_ids[second + at] = np.uint32(class_id)
            else:
                arrays.arena[block + at] = narrow_record(count, class_id)
        arrays.headers[feature * U2] = make_header(block, length, size, flags)
        arrays.headers[feature * U2 + U1] = as_bits(totals[feature])
        arrays.counters[LONGEST] = max(arrays.counters[LONGEST], np.int64(length))
        first = end
    arrays.counters[N_CONNECTIONS] = np.int64(first)
    arrays.counters[N_FEATURES] = len(lengths)
    return first == np.uint64(len(counts))
