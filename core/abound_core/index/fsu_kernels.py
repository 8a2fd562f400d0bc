"""The Feature Streaming Update: the update of one feature for one class of an instance (paper, section 4.2).

The update finds the class in the block and adds the value to its count and to the total. It then moves the record
forward to its place, and drops connections below ``w_min`` from the tail. If a block is full, or a count does not fit
into a narrow record, the connections first move to another block. A new class that would be dropped at once is not
inserted.
"""

import numpy as np

from abound_core.index.layout_kernels import (
    CLASS_MASK,
    LINE,
    MAX_LENGTH,
    U4,
    WIDE_FLAG,
    block_of,
    class_of,
    count_of,
    first_id,
    length_of,
    make_header,
    narrow_capacity,
    narrow_record,
    release,
    reserve,
    size_for,
    size_of,
    wide_capacity,
)
from abound_core.index.votes_kernels import connection
from abound_core.numba.decorators import inlined, inner
from abound_core.numba.intrinsics import (
    NO,
    U0,
    U1,
    U2,
    YES,
    find_lane,
    load_float,
    load_id,
    load_word,
    place_lane,
    store_float,
    store_id,
    store_word,
)
from abound_core.numba.top_k import comes_before


@inner
def move(memory, header, size, wide):
    """Move a feature's connections into a block of another size class or form; return its new header."""
    flags = header | WIDE_FLAG if wide else header
    moved = make_header(reserve(memory, size), length_of(header), size, flags)
    for at in range(length_of(header)):
        if wide:
            class_id, count = connection(memory, header, at)
            store_float(memory.arena, block_of(moved) + at, count)
            store_id(memory.arena, first_id(moved) + at, np.uint32(class_id))
        else:
            store_word(memory.arena, block_of(moved) + at, load_word(memory.arena, block_of(header) + at))
    release(memory, block_of(header), size_of(header))
    return moved


@inner
def place_wide(arena, counts, ids, at, count):
    """Insert the count and class at place ``at`` of a wide block in order, at that place or before."""
    class_id = load_id(arena, ids + at)
    while at:
        other, other_id = load_float(arena, counts + at - U1), load_id(arena, ids + at - U1)
        if not comes_before(count, class_id, other, other_id):
            break
        store_float(arena, counts + at, other)
        store_id(arena, ids + at, other_id)
        at -= U1
    store_float(arena, counts + at, count)
    store_id(arena, ids + at, class_id)


@inner
def update_wide(memory, params, header, total, value, class_id):
    """Run FSU on a wide block with space for one more connection; return the new header and total."""
    arena, counts, ids, length = memory.arena, block_of(header), first_id(header), length_of(header)
    at = U0
    while at < length and np.uint64(load_id(arena, ids + at)) != class_id:
        at += U1
    if at == length:
        store_id(arena, ids + at, np.uint32(class_id))
        place_wide(arena, counts, ids, at, value)
        length += U1
    else:
        place_wide(arena, counts, ids, at, load_float(arena, counts + at) + value)
    total += value
    if total > params.memory:
        factor = params.memory / total
        total = params.memory
        for at in range(length):
            # Rounding may make two counts equal, which are then ordered by class id.
            place_wide(arena, counts, ids, at, load_float(arena, counts + at) * factor)
    dropped = 0.0
    while length:
        count = load_float(arena, counts + length - U1)
        if not (count / total < params.w_min or length > MAX_LENGTH):
            break
        dropped += count
        length -= U1
    return make_header(counts, length, size_of(header), header), total_after(params, total, dropped, length)


@inlined
def total_after(params, total, dropped, length):
    """Return the total of a feature after its drops: without leakage, the dropped weight is subtracted."""
    if params.leak:
        return total
    return max(total - dropped, 0.0) if length else 0.0


@inner
def widened_update(memory, params, header, total, value, class_id):
    length = length_of(header)
    if not header & WIDE_FLAG or length == wide_capacity(size_of(header)):
        header = move(memory, header, size_for(length + U1, YES), YES)
    return update_wide(memory, params, header, total, value, class_id)


@inlined
def find_narrow(arena, first, end, class_id):
    """Return the place of a class among narrow records, or ``end``."""
    key = CLASS_MASK - class_id
    place = end
    for at in range(first, end, LINE):
        lane = find_lane(arena, at, min(end - at, LINE), key)
        place = at + lane if lane < LINE else place
    return place


@inlined
def place_narrow(arena, first, at, record):
    while at - first >= LINE:
        other = load_word(arena, at - U1)
        if other >= record:
            store_word(arena, at, record)
            return
        store_word(arena, at, other)
        at -= U1
    place_lane(arena, first, at - first, record)


@inlined
def update_connection(memory, params, header, total, value, class_id, known):
    """Run FSU(f, c, v), steps 1 to 4, for one feature and one class.

    Parameters
    ----------
    header, total : uint64, float64
        Header and total of the feature.
    value : float64
        The feature's value in the instance, > 0.
    class_id, known : uint64
        The class, and the place in the block at which the search begins.

    Returns
    -------
    header, total : uint64, float64
        To be stored by the caller.
    """
    arena, first, length = memory.arena, block_of(header), length_of(header)
    new_total = total + value
    if header & WIDE_FLAG or new_total > params.memory:
        return widened_update(memory, params, header, total, value, class_id)
    end = first + length
    # If an instance has a feature twice, the first update may have moved the block, or the connection forward.
    known = known if known - first <= length else first
    at = known
    if known < end and class_of(load_word(arena, known)) != class_id:
        at = find_narrow(arena, known, end, class_id)
    if at == end and known > first:
        at = find_narrow(arena, first, known, class_id)
        at = at if at < known else end
    dropped = 0.0
    if at < end:
        record = narrow_record(count_of(load_word(arena, at)) + value, class_id)
        if record == U0:
            return widened_update(memory, params, header, total, value, class_id)
        place_narrow(arena, first, at, record)
    elif value / new_total < params.w_min:
        if not params.leak and length and count_of(load_word(arena, end - U1)) / new_total < params.w_min:
            # Connections dropped together are summed in the order of the block, which the wide form provides.
            return widened_update(memory, params, header, total, value, class_id)
        dropped = value
    else:
        record = narrow_record(value, class_id)
        if record == U0 or length == MAX_LENGTH:
            return widened_update(memory, params, header, total, value, class_id)
        if length == narrow_capacity(size_of(header)):
            header = move(memory, header, size_for(length + U1, NO), NO)
            first = block_of(header)
        place_narrow(arena, first, first + length, record)
        end = first + length + U1
    while end > first:
        count = count_of(load_word(arena, end - U1))
        if not count / new_total < params.w_min:
            break
        dropped += count
        end -= U1
    length = end - first
    return make_header(first, length, size_of(header), header), total_after(params, new_total, dropped, length)


LEAST_VALUE, MOST_VALUE = 2.0**-149, 2.0**128 - 2.0**104  # the range of float32

LEAST_COUNT = 2.0**-126  # a weakened connection below it is dropped

REJECTION = 3.0
"""Observations of another class that a rejection is worth. That a class is wrong says more about it than that another
class is true, because an instance may have several.
"""


@inlined
def scale_values(values, weight):
    if weight != 1.0:
        for i in range(np.uint64(len(values))):
            values[i] = min(max(np.float64(values[i]) * weight, LEAST_VALUE), MOST_VALUE)


@inlined
def put_connection(memory, header, at, class_id, count):
    if header & WIDE_FLAG:
        store_float(memory.arena, block_of(header) + at, count)
        store_id(memory.arena, first_id(header) + at, np.uint32(class_id))
    else:
        store_word(memory.arena, block_of(header) + at, narrow_record(count, class_id))


@inner
def weaken_connection(memory, params, header, total, value, class_id):
    """Weaken the connection of one feature to a class that is wrong for an instance; return the new header.

        w'_fc <- w'_fc w'_f / (w'_f + ``REJECTION`` v), rounded to float32

    The connection forgets what it would if other classes had been observed with ``REJECTION`` v in an index of finite
    memory w'_f (paper, section 4.2). The total and the other connections stay as they are: the forgotten part belongs
    to no class. Below ``w_min`` or ``LEAST_COUNT`` the connection is dropped.
    """
    at, length = U0, length_of(header)
    while at < length and connection(memory, header, at)[0] != class_id:
        at += U1
    if at == length:
        return header
    count = connection(memory, header, at)[1]
    left = min(np.float64(np.float32(count * (total / (total + REJECTION * value)))), count)
    dropped = left / total < params.w_min or left < LEAST_COUNT
    while at + U1 < length:
        other, other_count = connection(memory, header, at + U1)
        if not dropped and comes_before(left, class_id, other_count, other):
            break
        put_connection(memory, header, at, other, other_count)
        at += U1
    if dropped:
        length -= U1
    else:
        put_connection(memory, header, at, class_id, left)
    return make_header(block_of(header), length, size_of(header), header)


@inlined
def is_roomy(header):
    capacity = wide_capacity(size_of(header)) if header & WIDE_FLAG else narrow_capacity(size_of(header))
    return capacity >= U2 * length_of(header) + U4


@inner
def shrink(memory, header):
    """Move a feature that lost most of its connections into a smaller block; return its new header."""
    wide = (header & WIDE_FLAG) != U0
    if length_of(header):
        return move(memory, header, size_for(length_of(header) + U1, wide), wide)
    release(memory, block_of(header), size_of(header))
    return make_header(U0, U0, U0, header)


@inlined
def only_adds(memory, params, header, new_total, value, place):
    """Return whether an update changes only the total: the class would be dropped at once, and no other is.

    This is the most frequent case for a feature that was seen often. The code has no branches, since none could be
    predicted.
    """
    end = block_of(header) + length_of(header)
    last = count_of(load_word(memory.arena, max(end, U1) - U1))
    absent = (place == end) & (header & WIDE_FLAG == U0) & (new_total <= params.memory)
    kept = (length_of(header) == U0) | (last / new_total >= params.w_min)
    return absent & (value / new_total < params.w_min) & kept


@inlined
def store_update(memory, feature, before, header, total):
    """Store a feature's new header and total, shrinking its block if possible; return the change of its length."""
    if length_of(header) < length_of(before) and is_roomy(header):
        header = shrink(memory, header)
    store_word(memory.headers, feature * U2, header)
    store_float(memory.headers, feature * U2 + U1, total)
    return length_of(header) - length_of(before)
