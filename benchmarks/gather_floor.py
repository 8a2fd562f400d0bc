"""The gather floor: the time to load the memory that the index must read for an instance, without any other work.

For every active feature of every instance: its header, and one load a cache line of its connections that vote. Headers
are prefetched 16 features ahead and connections 8: up to four lines without a loop, as the index itself does, because
the processor often mispredicts the end of a loop.
"""

import numpy as np
from numba import njit

from abound_core.index.layout_kernels import block_of, length_of
from abound_core.numba.intrinsics import U0, U1, U2, address_of, load_word, prefetch_word

LINE = np.uint64(8)
HEADERS_AHEAD = np.uint64(16)
BLOCKS_AHEAD = np.uint64(8)


@njit(nogil=True)
def load_lines(blocks, header, d_max):
    """One load a cache line of the connections that vote; their sum."""
    total, start = U0, block_of(header)
    for word in range(start, start + min(length_of(header), d_max), LINE):
        total += load_word(blocks, word)
    return total


@njit(nogil=True)
def gather(arrays, starts, ids, d_max, first, last):
    """The floor for instances ``first`` to ``last`` of a stream; a sum, so that no load is left out."""
    total = U0
    headers, blocks = address_of(arrays.headers), address_of(arrays.arena)
    for i in range(first, last):
        begin, end = np.uint64(starts[i]), np.uint64(starts[i + 1])
        for at in range(begin, end):
            if at + HEADERS_AHEAD < end:
                prefetch_word(headers, np.uint64(ids[at + HEADERS_AHEAD]) * U2)
            if at + BLOCKS_AHEAD < end:
                ahead = load_word(headers, np.uint64(ids[at + BLOCKS_AHEAD]) * U2)
                start, farthest = block_of(ahead), max(min(length_of(ahead), d_max), U1) - U1
                prefetch_word(blocks, start)
                prefetch_word(blocks, start + min(farthest, LINE))
                prefetch_word(blocks, start + min(farthest, U2 * LINE))
                prefetch_word(blocks, start + farthest)
            total += load_lines(blocks, load_word(headers, np.uint64(ids[at]) * U2), d_max)
    return total
