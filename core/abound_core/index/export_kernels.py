"""The logical state of an index: its digest by pages, and its conversion to and from plain arrays.

The logical state of a feature consists of its total, how often it was seen, and its connections in their order.
Positions and forms of blocks and free lists are not part of it. In rows (``abound_core.index.sls_rows_kernels``) the
weights take the place of the connections.
"""

import numpy as np

from abound_core.index.layout_kernels import (
    FORM,
    LINE,
    LONGEST,
    N_CONNECTIONS,
    N_FEATURES,
    PAGE_BITS,
    SEEN_SHIFT,
    UNITS,
    WIDE_FLAG,
    block_of,
    first_id,
    length_of,
    make_header,
    memory_of,
    narrow_record,
    reserve,
    seen_of,
    size_for,
)
from abound_core.index.sls_rows_kernels import ROWS, digest_rows_page
from abound_core.index.votes_kernels import connection
from abound_core.instances.siphash_kernels import mix, mix_end
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import (
    U0,
    U1,
    U2,
    as_bits,
    load_float,
    load_word,
    store_float,
    store_id,
    store_word,
)
from abound_core.numba.top_k import comes_before

MOST_SHARE = 1.000001  # of connections to the total of their feature: both sums are rounded


@inner
def digest_page(memory, page):
    """Return the 64-bit hash of the logical state of 256 features."""
    state, first = page, page << PAGE_BITS
    last = min(first + (U1 << PAGE_BITS), load_word(memory.counters, N_FEATURES))
    for feature in range(first, last):
        header, total = load_word(memory.headers, feature * U2), load_word(memory.headers, feature * U2 + U1)
        if header == U0 and total == U0:
            continue  # never learned: equal to an index that ends before it
        state = mix(mix(state, feature), (seen_of(header) << np.uint64(16)) | length_of(header))
        state = mix(state, total)
        for at in range(length_of(header)):
            class_id, count = connection(memory, header, at)
            state = mix(mix(state, class_id), as_bits(count))
    return mix_end(state)


@kernel
def digest_dirty(arrays, hashes, start, limit):
    """Digest up to ``limit`` dirty pages from ``start`` on; return the next page, or their number if done."""
    memory = memory_of(arrays)
    in_rows = load_word(memory.counters, FORM) == ROWS
    n_pages = (load_word(memory.counters, N_FEATURES) + (U1 << PAGE_BITS) - U1) >> PAGE_BITS
    for page in range(np.uint64(start), n_pages):
        if arrays.dirty[page]:
            if limit == 0:
                return np.int64(page)
            limit -= 1
            hashes[page] = digest_rows_page(memory, page) if in_rows else digest_page(memory, page)
            arrays.dirty[page] = 0
    return np.int64(n_pages)


@kernel
def export_features(arrays, lengths, seen, totals, class_ids, counts):
    """Write the logical state into plain arrays.

    Parameters
    ----------
    lengths, seen, totals : uint16, uint16, float64, shape (n_features,)
    class_ids, counts : uint32, float64, shape (n_connections,)
        Feature after feature, heaviest connection first.
    """
    memory, place = memory_of(arrays), U0
    for feature in range(np.uint64(len(lengths))):
        header = load_word(memory.headers, feature * U2)
        lengths[feature] = length_of(header)
        seen[feature] = seen_of(header)
        totals[feature] = load_float(memory.headers, feature * U2 + U1)
        for at in range(length_of(header)):
            class_ids[place], counts[place] = connection(memory, header, at)
            place += U1


@inner
def is_ordered(class_ids, counts, first, end):
    for at in range(first + U1, end):
        if not comes_before(counts[at - U1], class_ids[at - U1], counts[at], class_ids[at]):
            return False
    return True


@inlined
def fit_total(counts, first, end, total):
    """Return whether connections ``first`` to ``end`` add up to at most ``total``, apart from rounding.

    Otherwise a weight may be infinite, or the total become 0 when connections are dropped.
    """
    together = 0.0
    for at in range(first, end):
        together += counts[at]
    return first == end or (total > 0.0 and together <= total * MOST_SHARE)


@inlined
def must_be_wide(class_ids, counts, first, end):
    wide = False
    for at in range(first, end):
        wide |= narrow_record(counts[at], np.uint64(class_ids[at])) == U0
    return wide


@kernel
def units_to_import(lengths, class_ids, counts):
    """Return a bound of the arena units for ``import_features``, or without ``counts`` for ``import_squares``.

    Before a block at most its own size or seven units are skipped. Without counts no block is wide.
    """
    units, first = U0, U0
    for feature in range(len(lengths)):
        end = first + np.uint64(lengths[feature])
        wide = len(counts) > 0 and must_be_wide(class_ids, counts, first, end)
        size = UNITS[size_for(end - first, wide)]
        units += size + min(size, LINE - U1)
        first = end
    return units


@kernel
def import_features(arrays, lengths, seen, totals, class_ids, counts, owners):
    """Fill an empty index that is large enough, the reverse of ``export_features``.

    Each array is valid by itself (``abound_core.index.arrays``). ``owners``: zeros, one for each class. Returns False
    if they contradict each other.
    """
    memory, first = memory_of(arrays), U0
    for feature in range(np.uint64(len(lengths))):
        length = np.uint64(lengths[feature])
        end = first + length
        if not is_ordered(class_ids, counts, first, end) or not fit_total(counts, first, end, totals[feature]):
            return False
        wide = must_be_wide(class_ids, counts, first, end)
        flags = (np.uint64(seen[feature]) << SEEN_SHIFT) | (WIDE_FLAG if wide else U0)
        size = size_for(length, wide)
        header = make_header(reserve(memory, size) if length else U0, length, size, flags)
        for at in range(length):
            class_id, count = np.uint64(class_ids[first + at]), counts[first + at]
            if owners[class_id] == feature + U1:  # connected twice: together they may exceed the total
                return False
            owners[class_id] = feature + U1
            if wide:
                store_float(memory.arena, block_of(header) + at, count)
                store_id(memory.arena, first_id(header) + at, np.uint32(class_id))
            else:
                store_word(memory.arena, block_of(header) + at, narrow_record(count, class_id))
        store_word(memory.headers, feature * U2, header)
        store_float(memory.headers, feature * U2 + U1, totals[feature])
        store_word(memory.counters, LONGEST, max(load_word(memory.counters, LONGEST), length))
        first = end
    store_word(memory.counters, N_CONNECTIONS, first)
    store_word(memory.counters, N_FEATURES, np.uint64(len(lengths)))
    return True
