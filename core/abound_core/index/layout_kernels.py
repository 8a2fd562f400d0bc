"""The memory of the index: one header per feature, blocks of connections in an arena, free lists.

**Header**, two uint64 per feature. The first holds the start of the block (32 bits, in units of 8 bytes), the length
(16), the size class (6), the wide flag (1) and how often the feature was seen (9, stays at 511). The second holds the
bits of the float64 total w'_f.

**Block**: the connections of one feature in order of count w'_fc, heaviest first, equal counts by class id. The
``d_max`` heaviest are therefore a prefix, and connections to be dropped are the tail. There are two forms:

- *narrow*, 8 bytes per connection: ``count | 2^24 - 1 - class``, where the count has 8 bits of exponent and 32 of
  mantissa in the upper 40 bits. One unsigned comparison orders two of them.
- *wide*, 12 bytes per connection: the float64 counts of the whole capacity, then the uint32 class ids.

A count is stored narrow only if that loses no bit of its float64. The first count that would lose one (a sum of very
many or very unequal values, a class id above 24 bits) makes the block permanently wide. The stored values are
therefore always those of double precision, and the form is not part of the logical state.

**Arena**: uint64, allocated from the front. A freed block goes to the free list of its size class (its first word is
the next free block) and is reused before the front moves. Blocks touch as few cache lines as possible; units skipped
for that go to the free lists. The kernels never allocate memory: callers use ``has_room`` of
``abound_core.index.learning_kernels`` first.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from abound_core.numba.decorators import inlined, inner, unless
from abound_core.numba.intrinsics import (
    U0,
    U1,
    U2,
    address_of,
    as_bits,
    as_float,
    load_byte,
    load_word,
    store_byte,
    store_word,
)


class IndexArrays(NamedTuple):
    """The whole state of an index, as kernels take it. Fetch it again after every ``make_room``."""

    headers: npt.NDArray[np.uint64]  # shape (2 * features,)
    arena: npt.NDArray[np.uint64]  # shape (units,)
    scores: npt.NDArray[np.float64]  # shape (classes,); accumulator, all zero between calls
    # shape (classes + 1,); classes with a score, in the order of their first vote; in rows, while learning, errors as
    # float32
    touched: npt.NDArray[np.int32]
    # shape (n,); working memory for one instance: two words for each true class, or one for each active feature and one
    # more. At least 64 words
    scratch: npt.NDArray[np.uint64]
    counters: npt.NDArray[np.uint64]  # shape (N_COUNTERS,)
    dirty: npt.NDArray[np.uint8]  # shape (pages,); 1 for a page of 256 features that changed since its last digest


class Memory(NamedTuple):
    """The addresses of the arrays, for the inner kernels, and sizes; all uint64.

    Unlike arrays it holds no references, so passing it on costs little. The caller of the kernel keeps the arrays.
    """

    headers: np.uint64
    arena: np.uint64
    scores: np.uint64
    touched: np.uint64
    scratch: np.uint64
    counters: np.uint64
    dirty: np.uint64
    n_headers: np.uint64
    n_units: np.uint64
    n_scores: np.uint64
    n_scratch: np.uint64


class KernelParams(NamedTuple):
    """``IndexParams`` as kernels take them; ``memory`` is infinite for None.

    The first six belong to ``fsu``, those from ``squares`` on (whether the update is ``sls``) to ``sls``.
    ``most_cells`` is the maximum number of weights in rows; 0: rows are never used. ``vote_min`` (of ``fsu``) is the
    least weight with which a connection votes. ``implicit`` is the factor with which ignored classes count as wrong.
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
    recovery: float
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
    implicit: float


class Feedback(NamedTuple):
    """Feedback on the classes of an instance, and its weight."""

    # n_true, n_rejected: the first classes are true, the next ones rejected (wrong), and the others ignored (shown and
    # not chosen)
    n_true: int
    n_rejected: int
    weight: float  # importance of the instance, above 0 and at most 100; usually 1
    partial: bool = False  # whether classes that are not given may be true, too


@inlined
def strength_of(params, feedback, j):
    return 1.0 if j < np.uint64(feedback.n_rejected) else params.implicit


class SquaresParams(KernelParams):
    """The parameters for ``sls``, as a separate type: each rule's kernels compile without those of the other."""


def by_rule(params: KernelParams, fsu: Any, sls: Any) -> Any:
    """Return the kernel for the update rule of ``params``; inside kernels the choice is made at compile time."""
    return sls if isinstance(params, SquaresParams) else fsu


@overload(by_rule, jit_options={"forceinline": True})
def _by_rule(params, fsu, sls):
    if issubclass(params.instance_class, SquaresParams):
        return lambda params, fsu, sls: sls
    return lambda params, fsu, sls: fsu


UNITS = np.array([0, 1, *(m << e for e in range(16) for m in (2, 3))], np.uint64)
"""Units of 8 bytes in a block of each size class; class 0 means no block."""

USED, N_CONNECTIONS, N_FEATURES, LONGEST, SKEW, FREE_UNITS, N_COUNTED, FORM, FREE = (
    np.uint64(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 24)
)
"""Places in ``counters``: arena front (units), connections, 1 + highest learned id, longest posting ever, start of
the cache lines, units in free lists, instances counted (``sls``), the form of the weights (``sls_rows``), and from
``FREE`` on the first free block of each size class (``NONE``: no block).
"""

N_COUNTERS = int(FREE) + len(UNITS)
NONE = np.uint64(2**64 - 1)
MAX_LENGTH = np.uint64(65_535)
LINE = np.uint64(8)
PAGE_BITS = np.uint64(8)

LENGTH_MASK = np.uint64(0xFFFF)
WIDE_FLAG = np.uint64(1 << 54)
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


@unless(Memory)
def memory_of(arrays):
    """Return the addresses of an index's arrays, valid as long as the caller holds the arrays."""
    return Memory(
        address_of(arrays.headers),
        address_of(arrays.arena),
        address_of(arrays.scores),
        address_of(arrays.touched),
        address_of(arrays.scratch),
        address_of(arrays.counters),
        address_of(arrays.dirty),
        np.uint64(len(arrays.headers)) >> U1,
        np.uint64(len(arrays.arena)),
        np.uint64(len(arrays.scores)),
        np.uint64(len(arrays.scratch)),
    )


@inlined
def block_of(header):
    return header & OFFSET_MASK


@inlined
def length_of(header):
    return (header >> U32) & LENGTH_MASK


@inlined
def size_of(header):
    return (header >> U48) & SIZE_MASK


@inlined
def seen_of(header):
    return header >> SEEN_SHIFT


@inlined
def make_header(block, length, size, flags):
    """Return a header's first word; the wide flag and the times seen come from the header ``flags``."""
    return (flags & FLAGS_MASK) | block | (length << U32) | (size << U48)


@inlined
def count_of(record):
    return as_float(((record >> U24) << U20) + EXPONENT_BASE)


@inlined
def class_of(record):
    return ~record & CLASS_MASK


@inlined
def narrow_record(count, class_id):
    """Return a narrow record, or 0 if it would not be exact (2^-127 of class 2^24 - 1 counts as inexact)."""
    bits = as_bits(count) - EXPONENT_BASE
    if bits >= NARROW_END or bits & LOW_MANTISSA or class_id > CLASS_MASK:
        return U0
    return (bits << U4) | (CLASS_MASK - class_id)


@inlined
def narrow_capacity(size):
    return UNITS[size]


@inlined
def wide_capacity(size):
    return UNITS[size] * U2 // U3


@inlined
def first_id(header):
    """Return the place of the first class id of a wide block in the arena, in units of 4 bytes."""
    return (block_of(header) + wide_capacity(size_of(header))) * U2


@inlined
def size_for(length, wide):
    units = length + ((length + U1) >> U1 if wide else U0)
    if units <= U2:
        return units
    # There are two classes per power of two: the exponent and the first bit of the mantissa count them.
    return (as_bits(np.float64(units - U1)) >> U51) - SIZES_BELOW


@inlined
def add_to(memory, counter, change):
    """Add to a counter; ``change`` may be the two's complement of a negative number."""
    store_word(memory.counters, counter, load_word(memory.counters, counter) + change)


@inlined
def mark_dirty(memory, feature):
    store_byte(memory.dirty, feature >> PAGE_BITS, DIRTY)


@inlined
def mark_dirty_if(memory, feature, changed):
    """Mark the page if ``changed``, 0 or 1, is 1, without a branch."""
    page = feature >> PAGE_BITS
    store_byte(memory.dirty, page, load_byte(memory.dirty, page) | np.uint8(changed))


@inner
def release(memory, block, size):
    if size:
        store_word(memory.arena, block, load_word(memory.counters, FREE + size))
        store_word(memory.counters, FREE + size, block)
        add_to(memory, FREE_UNITS, UNITS[size])


@inlined
def release_rest(memory, front, left):
    """Put the ``left`` < 8 units up to the end of a cache line on free lists; return the start of the next line."""
    while left:
        size = min(left, U4) if left < np.uint64(6) else np.uint64(5)
        release(memory, front, size)
        front += UNITS[size]
        left -= UNITS[size]
    return front


@inner
def reserve(memory, size):
    """Return a free block of a size class, or one from the arena's front. ``has_room`` must have returned true."""
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


@inner
def forget(memory, feature):
    header = load_word(memory.headers, feature * U2)
    release(memory, block_of(header), size_of(header))
    store_word(memory.headers, feature * U2, U0)
    store_word(memory.headers, feature * U2 + U1, U0)
    mark_dirty(memory, feature)
    add_to(memory, N_CONNECTIONS, U0 - length_of(header))
