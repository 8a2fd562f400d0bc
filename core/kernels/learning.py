"""Feature Focus and the Feature Streaming Update: how one instance changes the index (paper, sections 4.1 and 4.2).

An update of one connection goes: find the class in the block; add the value to its count and to the total; move the
record forward to its place; drop from the tail what is below ``w_min``. Where a block is full, or a count does not fit
in a narrow record, the connections move to another block first. A new class that would be dropped at once is not
inserted at all.
"""

import numpy as np
from numba import njit

from core.kernels.machine import U0, U1, U2, as_bits, as_float
from core.kernels.postings import (
    CLASS_MASK,
    LINE,
    LONGEST,
    MAX_LENGTH,
    N_CONNECTIONS,
    N_FEATURES,
    PAGE_BITS,
    UNITS,
    USED,
    WIDE_FLAG,
    block_of,
    class_of,
    count_of,
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
from core.kernels.ranking import add_votes, comes_before

BEST = 50
"""A true class that is ranked after this many counts as not scored when its margin is taken."""

PADDING = np.uint64(LINE - 1)
FULL = np.uint64(MAX_LENGTH)


@njit(cache=True, nogil=True, error_model="numpy")
def move(arrays, header, size, wide):
    """Move a feature's connections into a block of another size class or form; its new header."""
    arena, ids = arrays.arena, arrays.arena_ids
    length, old = length_of(header), block_of(header)
    new = reserve(arrays, size)
    if header & WIDE_FLAG:
        source, target = (old + wide_capacity(size_of(header))) * U2, (new + wide_capacity(size)) * U2
        for i in range(length):
            arena[new + i] = arena[old + i]
            ids[target + i] = ids[source + i]
    elif wide:
        target = (new + wide_capacity(size)) * U2
        for i in range(length):
            arena[new + i] = as_bits(count_of(arena[old + i]))
            ids[target + i] = np.uint32(class_of(arena[old + i]))
    else:
        for i in range(length):
            arena[new + i] = arena[old + i]
    release(arrays, old, size_of(header))
    flags = header | WIDE_FLAG if wide else header
    return make_header(new, length, size, flags)


@njit(cache=True, nogil=True, error_model="numpy")
def place_wide(arena, ids, at):
    """Move the connection at the end of ``at + 1`` wide ones forward to its place: counts from ``arena[0]``."""
    count, class_id = as_float(arena[at]), ids[at]
    while at and comes_before(count, class_id, as_float(arena[at - U1]), ids[at - U1]):
        arena[at], ids[at] = arena[at - U1], ids[at - U1]
        at -= U1
    arena[at], ids[at] = as_bits(count), class_id


@njit(cache=True, nogil=True, error_model="numpy")
def cap_total(arena, ids, length, factor):
    """Multiply all counts by ``factor``; counts that became equal by rounding are ordered by class id again."""
    for i in range(length):
        arena[i] = as_bits(as_float(arena[i]) * factor)
        place_wide(arena, ids, i)


@njit(cache=True, nogil=True, error_model="numpy")
def update_wide(arrays, params, header, total, value, class_id):
    """FSU on a wide block that has room for one more; the new header and total."""
    block, length = block_of(header), length_of(header)
    arena = arrays.arena[block:]
    ids = arrays.arena_ids[(block + wide_capacity(size_of(header))) * U2 :]
    at = U0
    while at < length and np.uint64(ids[at]) != class_id:
        at += U1
    if at == length:
        arena[at], ids[at] = as_bits(value), np.uint32(class_id)
        length += U1
    else:
        arena[at] = as_bits(as_float(arena[at]) + value)
    place_wide(arena, ids, at)
    total += value
    if total > params.memory:
        cap_total(arena, ids, length, params.memory / total)
        total = params.memory
    dropped = 0.0
    while length:
        count = as_float(arena[length - U1])
        if not (count / total < params.w_min or length > FULL):
            break
        dropped += count
        length -= U1
    return make_header(block, length, size_of(header), header), total_after(params, total, dropped, length)


@njit(cache=True, nogil=True, error_model="numpy")
def total_after(params, total, dropped, length):
    """The total of a feature after its drops: without leakage, what was dropped leaves it."""
    if params.leak:
        return total
    return max(total - dropped, 0.0) if length else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def update_connection(arrays, params, header, total, value, class_id):
    """FSU(f, c, v): steps 1 to 4 for one feature and one class.

    Parameters
    ----------
    header, total : uint64, float64
        Of the feature.
    value : float64
        The feature's value in the instance, > 0.
    class_id : uint64

    Returns
    -------
    header, total : uint64, float64
        To be stored by the caller.
    """
    if header & WIDE_FLAG:
        return widened_update(arrays, params, header, total, value, class_id)
    arena = arrays.arena
    block, length = block_of(header), length_of(header)
    end = block + length
    key = CLASS_MASK - class_id
    at = block
    while at < end and (arena[at] & CLASS_MASK) != key:
        at += U1
    new_total = total + value
    record = narrow_record(count_of(arena[at]) + value if at < end else value, class_id)
    if record == U0 or new_total > params.memory:
        return widened_update(arrays, params, header, total, value, class_id)
    dropped = 0.0
    if at == end:
        if value / new_total < params.w_min or (length == FULL and record < arena[end - U1]):
            dropped = value
        else:
            if length == narrow_capacity(size_of(header)):
                header = move(arrays, header, size_for(length + U1, False), False)
                block = block_of(header)
                at = block + length
            end = block + length + U1
    if dropped == 0.0:
        while at > block and arena[at - U1] < record:
            arena[at] = arena[at - U1]
            at -= U1
        arena[at] = record
    while end > block:
        count = count_of(arena[end - U1])
        if not (count / new_total < params.w_min or end - block > FULL):
            break
        dropped += count
        end -= U1
    length = end - block
    return make_header(block, length, size_of(header), header), total_after(params, new_total, dropped, length)


@njit(cache=True, nogil=True, error_model="numpy")
def widened_update(arrays, params, header, total, value, class_id):
    """``update_wide``, after the block was made wide and large enough."""
    length = length_of(header)
    if not header & WIDE_FLAG or length == wide_capacity(size_of(header)):
        header = move(arrays, header, size_for(length + U1, True), True)
    return update_wide(arrays, params, header, total, value, class_id)


@njit(cache=True, nogil=True, error_model="numpy")
def shrink(arrays, header):
    """Move a feature that has lost most of its connections into a smaller block; its new header."""
    wide = (header & WIDE_FLAG) != U0
    size, length = size_of(header), length_of(header)
    capacity = wide_capacity(size) if wide else narrow_capacity(size)
    if capacity < U2 * length + np.uint64(4):
        return header
    if length:
        return move(arrays, header, size_for(length + U1, wide), wide)
    release(arrays, block_of(header), size)
    return make_header(U0, U0, U0, header)


@njit(cache=True, nogil=True, error_model="numpy")
def update_features(arrays, params, ids, values, class_ids, due):
    """Update every active feature for each class that is due, in the order given."""
    headers, counters = arrays.headers, arrays.counters
    change = 0
    longest = np.uint64(counters[LONGEST])
    for i in range(np.uint64(len(ids))):
        feature = np.uint64(ids[i])
        value = np.float64(values[i])
        header, total = headers[feature * U2], as_float(headers[feature * U2 + U1])
        before = length_of(header)
        for j in range(np.uint64(len(class_ids))):
            if due[j]:
                header, total = update_connection(arrays, params, header, total, value, np.uint64(class_ids[j]))
                longest = max(longest, length_of(header))
        header = shrink(arrays, header)
        change += np.int64(length_of(header)) - np.int64(before)
        headers[feature * U2] = header
        headers[feature * U2 + U1] = as_bits(total)
        arrays.dirty[feature >> PAGE_BITS] = 1
        counters[N_FEATURES] = max(counters[N_FEATURES], np.int64(feature + U1))
    counters[N_CONNECTIONS] += change
    counters[LONGEST] = np.int64(longest)


@njit(cache=True, nogil=True, error_model="numpy")
def rank_one(arrays, n_touched, class_id, ranks_out):
    """The rank of the one true class and its margin; zeroes the scores."""
    scores, touched = arrays.scores, arrays.touched
    true_id = np.int32(class_id)
    true_score = scores[np.uint64(class_id)]
    scores[np.uint64(class_id)] = 0.0
    n_better, best_other = 0, 0.0
    for i in range(n_touched):
        other = touched[i]
        score = scores[np.uint64(other)]
        scores[np.uint64(other)] = 0.0
        best_other = max(best_other, score)
        n_better += (score > true_score) | ((score == true_score) & (other < true_id))
    ranks_out[0] = n_better + 1 if true_score > 0.0 else 0
    return (true_score if n_better < BEST else 0.0) - best_other


@njit(cache=True, nogil=True, error_model="numpy")
def rank_several(arrays, n_touched, class_ids, ranks_out):
    """The ranks of all true classes and the best score of another class; zeroes the scores.

    ``arrays.scratch`` holds the bits of the true scores, and then the places of the true classes, best to worst.
    """
    scores, touched, scratch = arrays.scores, arrays.touched, arrays.scratch
    m = len(class_ids)
    order = scratch[m:]
    for j in range(m):
        own = scores[np.uint64(class_ids[j])]
        scratch[j] = as_bits(own)
        at = j
        while at > 0 and comes_before(own, class_ids[j], as_float(scratch[order[at - 1]]), class_ids[order[at - 1]]):
            order[at] = order[at - 1]
            at -= 1
        order[at] = np.uint64(j)
        ranks_out[j] = 0
    for j in range(m):
        scores[np.uint64(class_ids[j])] = 0.0
    best_other = 0.0
    for i in range(n_touched):
        other = touched[i]
        score = scores[np.uint64(other)]
        scores[np.uint64(other)] = 0.0
        best_other = max(best_other, score)
        at = m
        while at > 0 and comes_before(score, other, as_float(scratch[order[at - 1]]), class_ids[order[at - 1]]):
            at -= 1
        if at < m:
            ranks_out[order[at]] += 1
    n_better = 0
    for at in range(m):
        n_better += ranks_out[order[at]]
        ranks_out[order[at]] = n_better + at + 1 if scratch[order[at]] else 0
    return best_other


@njit(cache=True, nogil=True, error_model="numpy")
def learn_instance(arrays, params, ids, values, class_ids, counted, ranks_out):
    """FF: rank, take the margins, update what is due. The index must have room (``has_room``).

    Parameters
    ----------
    arrays, params : IndexArrays, KernelParams
    ids : int32, shape (l,)
        Active features, unique.
    values : float32, shape (l,)
        > 0 and finite.
    class_ids : int32, shape (m,)
        True classes, unique.
    counted : bool
        Whether this counts as having seen the features: False in all passes but the first.
    ranks_out : int32, shape (m,)
        Written: the rank that each true class had before learning, from 1; 0 when not retrieved.

    Returns
    -------
    updated : bool
        Whether a margin was at most ``params.margin``, so that connections were updated.
    """
    n_touched = add_votes(arrays, params, ids, values, counted)
    m = len(class_ids)
    due = arrays.scratch
    updated = False
    if m == 1:
        updated = rank_one(arrays, n_touched, class_ids[0], ranks_out) <= params.margin
        due[0] = np.uint64(updated)
    else:
        best_other = rank_several(arrays, n_touched, class_ids, ranks_out)
        for j in range(m):
            own = as_float(due[j]) if 0 < ranks_out[j] <= BEST else 0.0
            due[j] = np.uint64(own - best_other <= params.margin)
            updated |= due[j] != U0
    if updated:
        update_features(arrays, params, ids, values, class_ids, due)
    return updated


@njit(cache=True, nogil=True, error_model="numpy")
def most_units(size, length, m):
    """A bound of the units that ``m`` updates of one feature can take from the arena's front."""
    last = size_for(min(length + m, FULL + U1), True)
    units = UNITS[last] + PADDING
    if m == 1:
        return U2 * units
    for between in range(size + U1, last + U1):
        units += UNITS[between] + PADDING
    return units


@njit(cache=True, nogil=True, error_model="numpy")
def units_needed(arrays, ids, m):
    """A bound of the arena units that learning ``m`` classes of these features can take."""
    units = U0
    for i in range(len(ids)):
        header = arrays.headers[np.uint64(ids[i]) * U2]
        units += most_units(size_of(header), length_of(header), m)
    return units


@njit(cache=True, nogil=True, error_model="numpy")
def has_room(arrays, ids, class_ids):
    """Whether ``learn_instance`` can run without any array growing.

    Parameters
    ----------
    arrays : IndexArrays
    ids, class_ids : int32, shape (l,), (m,)
        As for ``learn_instance``.

    Notes
    -----
    One multiplication while the arena has much room left; near its end the headers are looked at.
    """
    end = np.uint64(len(arrays.headers)) // U2
    for i in range(len(ids)):
        if np.uint64(ids[i]) >= end:
            return False
    for j in range(len(class_ids)):
        if np.uint64(class_ids[j]) >= np.uint64(len(arrays.scores)):
            return False
    m = np.uint64(len(class_ids))
    if U2 * m > np.uint64(len(arrays.scratch)):
        return False
    left = np.uint64(len(arrays.arena)) - np.uint64(arrays.counters[USED])
    if np.uint64(len(ids)) * most_units(U0, np.uint64(arrays.counters[LONGEST]), m) <= left:
        return True
    return units_needed(arrays, ids, m) <= left
