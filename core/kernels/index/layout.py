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
is the next free block) and is handed out again before the front moves. Blocks touch as few cache lines as
they can; what is skipped for that goes to the free lists. Nothing here allocates memory: ``has_room`` of
``learning`` asks before.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from abound.core.kernels.numba import (
    U0,
    U1,
    U2,
    address_of,
    as_bits,
    as_float,
    inlined,
    kernel,
    load_word,
    store_byte,
    store_word,
)


class IndexArrays(NamedTuple):
    """The whole state of an index, as kernels take it. Fetch it anew after every ``make_room``.

    Attributes
    ----------
    headers : uint64, shape (2 * features,)
    arena : uint64, shape (units,)
    scores : float64, shape (classes,)
        Accumulator, all zero between calls.
    touched : int32, shape (classes + 1,)
        Classes that have a score, in the order in which they got it; in rows, while learning, errors as float32.
    scratch : uint64, shape (n,)
        Notes on one instance: two for each true class, or one for each active feature and one more. At least 64.
    counters : uint64, shape (N_COUNTERS,)
    dirty : uint8, shape (pages,)
        1 for a page of 256 features that changed since it was last digested.
    """

    headers: npt.NDArray[np.uint64]
    arena: npt.NDArray[np.uint64]
    scores: npt.NDArray[np.float64]
    touched: npt.NDArray[np.int32]
    scratch: npt.NDArray[np.uint64]
    counters: npt.NDArray[np.uint64]
    dirty: npt.NDArray[np.uint8]


class Memory(NamedTuple):
    """The addresses of the arrays, for the inner kernels, and how many headers there are; all uint64."""

    headers: np.uint64
    arena: np.uint64
    scores: np.uint64
    touched: np.uint64
    scratch: np.uint64
    counters: np.uint64
    dirty: np.uint64
    n_headers: np.uint64


class KernelParams(NamedTuple):
    """``IndexParams`` as kernels take them; ``memory`` is infinite where there is none.

    The first six are of ``fsu``, those from ``squares`` on (whether the update is ``sls``) of ``sls``. ``most_cells``
    is how many weights are kept in ``rows`` at most; 0: none ever. ``vote_min`` (of ``fsu``) is the least weight with
    which a connection votes.
    """

    w_min: float
    d_max: np.uint64
    margin: float
    leak: bool
    rating: bool
    memory: float
    squares: bool
    slots: np.uint64
    eta: float
    floor: float
    negatives: np.uint64
    theta_negative: float
    theta_insert: float
    idf: bool
    reach: float
    least_weight: float
    shared: np.uint64
    most_cells: np.uint64
    vote_min: float


class SquaresParams(KernelParams):
    """The same for ``sls``: a type of its own, so that each rule's kernels are compiled without those of the other."""


def by_rule(params: KernelParams, fsu: Any, sls: Any) -> Any:
    """Return the kernel for the update rule of ``params``; inside kernels it is chosen while they are compiled."""
    return sls if isinstance(params, SquaresParams) else fsu


@overload(by_rule, inline="always")
def _by_rule(params, fsu, sls):
    if issubclass(params.instance_class, SquaresParams):
        return lambda params, fsu, sls: sls
    return lambda params, fsu, sls: fsu


UNITS = np.array([0, 1, *(m << e for e in range(16) for m in (2, 3))], np.uint64)
"""Units of 8 bytes in a block of each size class; class 0 is no block."""

USED, N_CONNECTIONS, N_FEATURES, LONGEST, SKEW, FREE_UNITS, N_COUNTED, FORM, FREE = (
    np.uint64(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 24)
)
"""Places in ``counters``: arena front (units), connections, 1 + highest learned id, longest posting ever, where cache
lines begin, units in free lists, instances counted (``sls``), the form that weights are kept in (``rows``), and from
``FREE`` on the first free block of each size class (``NONE``: no block)."""

N_COUNTERS = int(FREE) + len(UNITS)
NONE = np.uint64(2**64 - 1)
MAX_LENGTH = np.uint64(65_535)
LINE = np.uint64(8)
PAGE_BITS = np.uint64(8)

LENGTH_MASK = np.uint64(0xFFFF)
WIDE_FLAG = np.uint64(1 << 54)
SEEN_ONE = np.uint64(1 << 55)
SEEN_SHIFT = np.uint64(55)
SEEN_FULL = np.uint64(511)
FLAGS_MASK = np.uint64(2**64 - (1 << 54))
OFFSET_MASK = np.uint64(0xFFFFFFFF)
CLASS_MASK = np.uint64(0xFFFFFF)
U3, U4, U20, U24, U32, U48, U51 = (np.uint64(n) for n in (3, 4, 20, 24, 32, 48, 51))
SIZES_BELOW = np.uint64(2 * 1023 - 1)
SIZE_MASK = np.uint64(63)
LOW_MANTISSA = np.uint64(0xFFFFF)
EXPONENT_BASE = np.uint64(896 << 52)
NARROW_END = np.uint64(1 << 60)
DIRTY = np.uint8(1)


@inlined
def memory_of(arrays):
    """The addresses of an index's arrays. Good as long as the caller holds the arrays."""
    return Memory(
        address_of(arrays.headers),
        address_of(arrays.arena),
        address_of(arrays.scores),
        address_of(arrays.touched),
        address_of(arrays.scratch),
        address_of(arrays.counters),
        address_of(arrays.dirty),
        np.uint64(len(arrays.headers)) >> U1,
    )


@inlined
def block_of(header):
    """Where the block of a header starts, in units."""
    return header & OFFSET_MASK


@inlined
def length_of(header):
    """How many connections a header has."""
    return (header >> U32) & LENGTH_MASK


@inlined
def size_of(header):
    """The size class of a header's block."""
    return (header >> U48) & SIZE_MASK


@inlined
def seen_of(header):
    """How often the feature was seen, at most 511."""
    return header >> SEEN_SHIFT


@inlined
def make_header(block, length, size, flags):
    """A header's first word; ``flags`` is any header that the wide flag and the times seen are taken from."""
    return (flags & FLAGS_MASK) | block | (length << U32) | (size << U48)


@inlined
def count_of(record):
    """The float64 count of a narrow record."""
    return as_float(((record >> U24) << U20) + EXPONENT_BASE)


@inlined
def class_of(record):
    """The class id of a narrow record."""
    return ~record & CLASS_MASK


@inlined
def narrow_record(count, class_id):
    """A narrow record, or 0 where it would not be exact (2^-127 of class 2^24 - 1 counts as such)."""
    bits = as_bits(count) - EXPONENT_BASE
    if bits >= NARROW_END or bits & LOW_MANTISSA or class_id > CLASS_MASK:
        return U0
    return (bits << U4) | (CLASS_MASK - class_id)


@inlined
def narrow_capacity(size):
    """Connections that a narrow block of a size class holds."""
    return UNITS[size]


@inlined
def wide_capacity(size):
    """Connections that a wide block of a size class holds: 12 bytes each."""
    return UNITS[size] * U2 // U3


@inlined
def first_id(header):
    """Place of the first class id of a wide block in the arena, in units of 4 bytes."""
    return (block_of(header) + wide_capacity(size_of(header))) * U2


@inlined
def size_for(length, wide):
    """The smallest size class that holds ``length`` connections."""
    units = length + ((length + U1) >> U1 if wide else U0)
    if units <= U2:
        return units
    # Two classes to a power of two: the exponent and the first bit of the mantissa count them.
    return (as_bits(np.float64(units - U1)) >> U51) - SIZES_BELOW


@inlined
def add_to(memory, counter, change):
    """Change a counter; ``change`` may be the two's complement of a negative number."""
    store_word(memory.counters, counter, load_word(memory.counters, counter) + change)


@inlined
def mark_dirty(memory, feature):
    """Note that the page of a feature has to be digested again."""
    store_byte(memory.dirty, feature >> PAGE_BITS, DIRTY)


@kernel
def release(memory, block, size):
    """Put a block on the free list of its size class."""
    if size:
        store_word(memory.arena, block, load_word(memory.counters, FREE + size))
        store_word(memory.counters, FREE + size, block)
        add_to(memory, FREE_UNITS, UNITS[size])


@inlined
def release_rest(memory, front, left):
    """Put the ``left`` < 8 units up to the end of a cache line on free lists; where the next line starts."""
    while left:
        size = min(left, U4) if left < np.uint64(6) else np.uint64(5)
        release(memory, front, size)
        front += UNITS[size]
        left -= UNITS[size]
    return front


@kernel
def reserve(memory, size):
    """A block of a size class: a free one, or from the arena's front. The caller has asked ``has_room``."""
    units = UNITS[size]
    head = load_word(memory.counters, FREE + size)
    if head != NONE:
        store_word(memory.counters, FREE + size, load_word(memory.arena, head))
        add_to(memory, FREE_UNITS, U0 - units)
        return head
    front = load_word(memory.counters, USED)
    left = LINE - ((front + load_word(memory.counters, SKEW)) & (LINE - U1))
    if left < units and left < LINE:
        front = release_rest(memory, front, left)
    store_word(memory.counters, USED, front + units)
    return front


@kernel
def forget(arrays, feature):
    """Zero the header of a feature and free its block."""
    memory = memory_of(arrays)
    header = load_word(memory.headers, feature * U2)
    release(memory, block_of(header), size_of(header))
    store_word(memory.headers, feature * U2, U0)
    store_word(memory.headers, feature * U2 + U1, U0)
    mark_dirty(memory, feature)
    add_to(memory, N_CONNECTIONS, U0 - length_of(header))
