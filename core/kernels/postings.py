"""The memory of the index: a header a feature, blocks of connections in an arena, free lists.

**Header**, two uint64 a feature: the first holds where the block starts (32 bits, in units of 8 bytes), the length
(16), the size class (6), the wide flag (1) and how often the feature was seen (9, stays at 511); the second holds the
bits of the float64 total w'_f.

**Block**: the connections of one feature in order of count w'_fc, heaviest first, equal counts by class id, so that the
``d_max`` heaviest are a prefix and the ones to be dropped are the tail. There are two forms:

- *narrow*, 8 bytes a connection: ``count | 2^24 - 1 - class``, where the count has 8 bits of exponent and 32 of
  mantissa in the upper 40 bits. One unsigned comparison orders two of them.
- *wide*, 12 bytes a connection: the float64 counts of the whole capacity, then the uint32 class ids.

A count is stored narrow only when that loses no bit of its float64; the first count that would lose one (a sum of very
many or very unequal values, a class id past 24 bits) makes the block wide for good. So what is stored is always what
double precision gives, and the form is not part of the logical state.

**Arena**: uint64, given out from the front. A freed block goes to the free list of its size class (its first word
is the next free block) and is handed out again before the front moves. Blocks up to a cache line do not straddle two;
what is skipped for that goes to the free lists. Nothing here allocates memory: ``has_room`` of ``learning`` asks before.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from core.kernels.machine import U0, U1, U2, as_bits, as_float


class IndexArrays(NamedTuple):
    """The whole state of an index, as kernels take it. Fetch it anew after every ``make_room``.

    Attributes
    ----------
    headers : uint64, shape (2 * features,)
    arena : uint64, shape (units,)
    arena_ids : uint32, shape (2 * units,)
        The same memory as ``arena``.
    scores : float64, shape (classes,)
        Accumulator, all zero between calls.
    touched : int32, shape (classes + 1,)
        Classes that have a score, in the order in which they got it.
    scratch : uint64, shape (2 * labels,)
        For the true classes of an instance.
    counters : int64, shape (N_COUNTERS,)
    dirty : uint8, shape (pages,)
        1 for a page of 256 features that changed since it was last digested.
    """

    headers: npt.NDArray[np.uint64]
    arena: npt.NDArray[np.uint64]
    arena_ids: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.float64]
    touched: npt.NDArray[np.int32]
    scratch: npt.NDArray[np.uint64]
    counters: npt.NDArray[np.int64]
    dirty: npt.NDArray[np.uint8]


class KernelParams(NamedTuple):
    """``IndexParams`` as kernels take them; ``memory`` is infinite where there is none."""

    w_min: float
    d_max: np.uint64
    margin: float
    leak: bool
    rating: bool
    memory: float


UNITS = np.array([*range(8), *(m << e for e in range(1, 14) for m in (4, 5, 6, 7)), 65_536, 81_920, 98_304], np.uint64)
"""Units of 8 bytes in a block of each size class; class 0 is no block."""

USED, N_CONNECTIONS, N_FEATURES, LONGEST, SKEW, FREE_UNITS, FREE = 0, 1, 2, 3, 4, 5, 8
"""Places in ``counters``: arena front (units), connections, 1 + highest learned id, longest posting ever, where cache
lines begin, units in free lists, and from ``FREE`` on the first free block of each size class (-1: none)."""

N_COUNTERS = FREE + len(UNITS)
MAX_LENGTH = 65_535
LINE = 8
PAGE_BITS = np.uint64(8)

LENGTH_MASK = np.uint64(0xFFFF)
WIDE_FLAG = np.uint64(1 << 54)
SEEN_ONE = np.uint64(1 << 55)
SEEN_SHIFT = np.uint64(55)
SEEN_FULL = np.uint64(511)
OFFSET_MASK = np.uint64(0xFFFFFFFF)
CLASS_MASK = np.uint64(0xFFFFFF)
U16, U20, U24, U32, U48 = (np.uint64(n) for n in (16, 20, 24, 32, 48))
SIZE_MASK = np.uint64(63)
LOW_MANTISSA = np.uint64(0xFFFFF)
EXPONENT_BASE = np.uint64(896 << 52)
NARROW_END = np.uint64(1 << 60)


@njit(cache=True, nogil=True)
def block_of(header):
    """Where the block of a header starts, in units."""
    return header & OFFSET_MASK


@njit(cache=True, nogil=True)
def length_of(header):
    """How many connections a header has."""
    return (header >> U32) & LENGTH_MASK


@njit(cache=True, nogil=True)
def size_of(header):
    """The size class of a header's block."""
    return (header >> U48) & SIZE_MASK


@njit(cache=True, nogil=True)
def seen_of(header):
    """How often the feature was seen, at most 511."""
    return header >> SEEN_SHIFT


@njit(cache=True, nogil=True)
def make_header(block, length, size, flags):
    """A header's first word; ``flags`` is any header that the wide flag and the times seen are taken from."""
    return (flags & ~np.uint64((1 << 54) - 1)) | block | (length << U32) | (size << U48)


@njit(cache=True, nogil=True)
def count_of(record):
    """The float64 count of a narrow record."""
    return as_float(((record >> U24) << U20) + EXPONENT_BASE)


@njit(cache=True, nogil=True)
def class_of(record):
    """The class id of a narrow record."""
    return ~record & CLASS_MASK


@njit(cache=True, nogil=True)
def narrow_record(count, class_id):
    """A narrow record, or 0 where it would not be exact (2^-127 of class 2^24 - 1 counts as such)."""
    bits = as_bits(count) - EXPONENT_BASE
    if bits >= NARROW_END or bits & LOW_MANTISSA or class_id > CLASS_MASK:
        return U0
    return (bits << np.uint64(4)) | (CLASS_MASK - class_id)


@njit(cache=True, nogil=True)
def narrow_capacity(size):
    """Connections that a narrow block of a size class holds."""
    return UNITS[size]


@njit(cache=True, nogil=True)
def wide_capacity(size):
    """Connections that a wide block of a size class holds: 12 bytes each."""
    return UNITS[size] * U2 // np.uint64(3)


@njit(cache=True, nogil=True)
def size_for(length, wide):
    """The smallest size class that holds ``length`` connections."""
    units = length + (length + U1) // U2 if wide else length
    size = U0
    while UNITS[size] < units:
        size += U1
    return size


@njit(cache=True, nogil=True)
def release(arrays, block, size):
    """Put a block on the free list of its size class."""
    if size:
        counters = arrays.counters
        place = np.uint64(FREE) + size
        arrays.arena[block] = np.uint64(counters[place])
        counters[place] = np.int64(block)
        counters[FREE_UNITS] += np.int64(UNITS[size])


@njit(cache=True, nogil=True)
def reserve(arrays, size):
    """A block of a size class: a free one, or from the arena's front. The caller has asked ``has_room``."""
    counters = arrays.counters
    units = UNITS[size]
    place = np.uint64(FREE) + size
    head = counters[place]
    if head >= 0:
        counters[place] = np.int64(arrays.arena[np.uint64(head)])
        counters[FREE_UNITS] -= np.int64(units)
        return np.uint64(head)
    front = np.uint64(counters[USED])
    left = np.uint64(LINE) - ((front + np.uint64(counters[SKEW])) & np.uint64(LINE - 1))
    if left < units <= np.uint64(LINE):
        release(arrays, front, left)
        front += left
    counters[USED] = np.int64(front + units)
    return front


@njit(cache=True, nogil=True)
def forget(arrays, feature):
    """Zero the header of a feature, free its block. Connections that went."""
    header = arrays.headers[feature * U2]
    release(arrays, block_of(header), size_of(header))
    arrays.headers[feature * U2] = U0
    arrays.headers[feature * U2 + U1] = U0
    arrays.dirty[feature >> PAGE_BITS] = 1
    arrays.counters[N_CONNECTIONS] -= np.int64(length_of(header))
    return length_of(header)
