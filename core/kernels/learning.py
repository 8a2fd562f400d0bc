"""Feature Focus and the Feature Streaming Update: how one instance changes the index (paper, sections 4.1 and 4.2).

An update of one connection goes: find the class in the block; add the value to its count and to the total; move the
record forward to its place; drop from the tail what is below ``w_min``. Where a block is full, or a count does not fit
in a narrow record, the connections move to another block first. A new class that would be dropped at once is not
inserted at all.
"""

import numpy as np

from core.kernels.lanes import find_lane, place_lane
from core.kernels.machine import (
    U0,
    U1,
    U2,
    inlined,
    kernel,
    load_float,
    load_id,
    load_word,
    store_float,
    store_id,
    store_word,
)
from core.kernels.postings import (
    CLASS_MASK,
    LINE,
    LONGEST,
    MAX_LENGTH,
    N_CONNECTIONS,
    N_FEATURES,
    NONE,
    UNITS,
    USED,
    WIDE_FLAG,
    add_to,
    block_of,
    class_of,
    count_of,
    first_id,
    length_of,
    make_header,
    mark_dirty,
    memory_of,
    narrow_capacity,
    narrow_record,
    release,
    reserve,
    size_for,
    size_of,
    wide_capacity,
)
from core.kernels.ranking import add_votes, comes_before, connection, take_score

BEST = 50
"""A true class that is ranked after this many counts as not scored when its margin is taken."""

PADDING = LINE - U1
U4 = np.uint64(4)


@kernel
def move(memory, header, size, wide):
    """Move a feature's connections into a block of another size class or form; its new header."""
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


@kernel
def place_wide(arena, counts, ids, at, count):
    """Put a count and its class, of place ``at`` in a wide block, where they belong in the order: there or before."""
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


@kernel
def update_wide(memory, params, header, total, value, class_id):
    """FSU on a wide block that has room for one more; the new header and total."""
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
    """The total of a feature after its drops: without leakage, what was dropped leaves it."""
    if params.leak:
        return total
    return max(total - dropped, 0.0) if length else 0.0


@kernel
def widened_update(memory, params, header, total, value, class_id):
    """``update_wide``, after the block was made wide and large enough."""
    length = length_of(header)
    if not header & WIDE_FLAG or length == wide_capacity(size_of(header)):
        header = move(memory, header, size_for(length + U1, True), True)
    return update_wide(memory, params, header, total, value, class_id)


@inlined
def find_narrow(arena, first, end, class_id):
    """The place of a class among narrow records, or ``end``."""
    key = CLASS_MASK - class_id
    place = end
    for at in range(first, end, LINE):
        lane = find_lane(arena, at, min(end - at, LINE), key)
        place = at + lane if lane < LINE else place
    return place


@inlined
def place_narrow(arena, first, at, record):
    """Put a record where it belongs in the order: at place ``at`` or before; what it passes moves on by one."""
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
    """FSU(f, c, v): steps 1 to 4 for one feature and one class.

    Parameters
    ----------
    header, total : uint64, float64
        Of the feature.
    value : float64
        The feature's value in the instance, > 0.
    class_id, known : uint64
        The class, and a place in the block: no connection before it is to the class.

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
    at = known
    if known < end and class_of(load_word(arena, known)) != class_id:
        at = find_narrow(arena, known, end, class_id)
    dropped = 0.0
    if at < end:
        record = narrow_record(count_of(load_word(arena, at)) + value, class_id)
        if record == U0:
            return widened_update(memory, params, header, total, value, class_id)
        place_narrow(arena, first, at, record)
    elif value / new_total < params.w_min:
        if not params.leak and length and count_of(load_word(arena, end - U1)) / new_total < params.w_min:
            # What is dropped together is added up in the order of the block, which the wide form has at hand.
            return widened_update(memory, params, header, total, value, class_id)
        dropped = value
    else:
        record = narrow_record(value, class_id)
        if record == U0 or length == MAX_LENGTH:
            return widened_update(memory, params, header, total, value, class_id)
        if length == narrow_capacity(size_of(header)):
            header = move(memory, header, size_for(length + U1, False), False)
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


@inlined
def is_roomy(header):
    """Whether a block holds less than half of what it could, and more than a little."""
    capacity = wide_capacity(size_of(header)) if header & WIDE_FLAG else narrow_capacity(size_of(header))
    return capacity >= U2 * length_of(header) + U4


@kernel
def shrink(memory, header):
    """Move a feature that has lost most of its connections into a smaller block; its new header."""
    wide = (header & WIDE_FLAG) != U0
    if length_of(header):
        return move(memory, header, size_for(length_of(header) + U1, wide), wide)
    release(memory, block_of(header), size_of(header))
    return make_header(U0, U0, U0, header)


@inlined
def only_adds(memory, params, header, new_total, value, place):
    """Whether an update changes only the total: the class is not there and would be dropped at once, and no other.

    It is what happens most to a feature that was seen often. Without a branch, as none could be guessed.
    """
    end = block_of(header) + length_of(header)
    last = count_of(load_word(memory.arena, max(end, U1) - U1))
    absent = (place == end) & (header & WIDE_FLAG == U0) & (new_total <= params.memory)
    kept = (length_of(header) == U0) | (last / new_total >= params.w_min)
    return absent & (value / new_total < params.w_min) & kept


@inlined
def store_update(memory, feature, before, header, total):
    """Store a feature's new header and total, its block made smaller where it can be; the change of its length."""
    if length_of(header) < length_of(before) and is_roomy(header):
        header = shrink(memory, header)
    store_word(memory.headers, feature * U2, header)
    store_float(memory.headers, feature * U2 + U1, total)
    return length_of(header) - length_of(before)


@inlined
def update_one(memory, params, ids, values, class_id):
    """Update every active feature for one class, whose places ``add_votes`` has noted."""
    change, longest = U0, load_word(memory.counters, LONGEST)
    for i in range(np.uint64(len(ids))):
        feature, value = np.uint64(ids[i]), np.float64(values[i])
        before, total = load_word(memory.headers, feature * U2), load_float(memory.headers, feature * U2 + U1)
        place = load_word(memory.scratch, i + U1)
        mark_dirty(memory, feature)
        if only_adds(memory, params, before, total + value, value, place):
            total = total_after(params, total + value, value, length_of(before))
            store_float(memory.headers, feature * U2 + U1, total)
            continue
        header, total = update_connection(memory, params, before, total, value, class_id, place)
        longest = max(longest, length_of(header))
        change += store_update(memory, feature, before, header, total)
    add_to(memory, N_CONNECTIONS, change)
    store_word(memory.counters, LONGEST, longest)


@kernel
def update_several(memory, params, ids, values, class_ids):
    """Update every active feature for each class that is due by ``scratch``, in the order given."""
    change, longest = U0, load_word(memory.counters, LONGEST)
    for i in range(np.uint64(len(ids))):
        feature, value = np.uint64(ids[i]), np.float64(values[i])
        before, total = load_word(memory.headers, feature * U2), load_float(memory.headers, feature * U2 + U1)
        header = before
        for j in range(np.uint64(len(class_ids))):
            if load_word(memory.scratch, j):
                class_id, block = np.uint64(class_ids[j]), block_of(header)
                header, total = update_connection(memory, params, header, total, value, class_id, block)
                longest = max(longest, length_of(header))
        mark_dirty(memory, feature)
        change += store_update(memory, feature, before, header, total)
    add_to(memory, N_CONNECTIONS, change)
    store_word(memory.counters, LONGEST, longest)


@inlined
def note_features(memory, ids):
    """Make the number of features at least 1 + the highest of these ids."""
    n_features = load_word(memory.counters, N_FEATURES)
    for i in range(np.uint64(len(ids))):
        n_features = max(n_features, np.uint64(ids[i]) + U1)
    store_word(memory.counters, N_FEATURES, n_features)


@inlined
def rank_one(memory, n_touched, class_id, ranks_out):
    """The rank of the one true class and its margin; zeroes the scores."""
    true_score = take_score(memory, class_id)
    n_better, best_other = U0, 0.0
    for i in range(n_touched):
        other = np.uint64(load_id(memory.touched, i))
        score = take_score(memory, other)
        best_other = max(best_other, score)
        n_better += np.uint64((score > true_score) | ((score == true_score) & (other < class_id)))
    ranks_out[0] = n_better + U1 if true_score > 0.0 else U0
    return (true_score if n_better < BEST else 0.0) - best_other


@kernel
def rank_several(memory, n_touched, class_ids, ranks_out):
    """The ranks of all true classes and the best score of another class; zeroes the scores.

    ``scratch`` then holds the bits of the true scores, and the places of the true classes, best to worst.
    """
    m = np.uint64(len(class_ids))
    scores, order = memory.scratch, memory.scratch + m * np.uint64(8)
    for j in range(m):
        own, at = load_float(memory.scores, np.uint64(class_ids[j])), j
        store_float(scores, j, own)
        while at:
            other = load_word(order, at - U1)
            if not comes_before(own, class_ids[j], load_float(scores, other), class_ids[other]):
                break
            store_word(order, at, other)
            at -= U1
        store_word(order, at, j)
        ranks_out[j] = 0
    for j in range(m):
        take_score(memory, np.uint64(class_ids[j]))
    best_other = 0.0
    for i in range(n_touched):
        other = load_id(memory.touched, i)
        score, at = take_score(memory, np.uint64(other)), m
        best_other = max(best_other, score)
        while at:
            j = load_word(order, at - U1)
            if not comes_before(score, np.int32(other), load_float(scores, j), class_ids[j]):
                break
            at -= U1
        if at < m:
            ranks_out[load_word(order, at)] += 1
    n_better = 0
    for at in range(m):
        j = load_word(order, at)
        n_better += ranks_out[j]
        ranks_out[j] = n_better + np.int64(at) + 1 if load_word(scores, j) else 0
    return best_other


@kernel
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
    memory = memory_of(arrays)
    if len(class_ids) == 1:
        class_id = np.uint64(class_ids[0])
        n_touched = add_votes(memory, params, ids, values, counted, class_id)
        updated = rank_one(memory, n_touched, class_id, ranks_out) <= params.margin
        if updated:
            update_one(memory, params, ids, values, class_id)
    else:
        n_touched = add_votes(memory, params, ids, values, counted, NONE)
        best_other = rank_several(memory, n_touched, class_ids, ranks_out)
        updated = False
        for j in range(len(class_ids)):
            own = load_float(memory.scratch, np.uint64(j)) if 0 < ranks_out[j] <= BEST else 0.0
            due = own - best_other <= params.margin
            store_word(memory.scratch, np.uint64(j), np.uint64(due))
            updated |= due
        if updated:
            update_several(memory, params, ids, values, class_ids)
    if updated:
        note_features(memory, ids)
    return updated


@kernel
def most_units(size, length, m):
    """A bound of the units that ``m`` updates of one feature can take from the arena's front."""
    last = size_for(min(length + m, MAX_LENGTH + U1), True)
    units = UNITS[last] + PADDING
    if m == U1:
        return U2 * units
    for between in range(size + U1, last + U1):
        units += UNITS[between] + PADDING
    return units


@kernel
def units_needed(arrays, ids, m):
    """A bound of the arena units that learning ``m`` classes of these features can take."""
    units = U0
    for i in range(len(ids)):
        header = arrays.headers[np.uint64(ids[i]) * U2]
        units += most_units(size_of(header), length_of(header), m)
    return units


@kernel
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
    memory = memory_of(arrays)
    m, highest = np.uint64(len(class_ids)), U0
    for i in range(np.uint64(len(ids))):
        highest = max(highest, np.uint64(np.uint32(ids[i])))
    if highest >= memory.n_headers:
        return False
    for j in range(m):
        if np.uint64(class_ids[j]) >= np.uint64(len(arrays.scores)):
            return False
    if max(U2 * m, np.uint64(len(ids)) + U1) > np.uint64(len(arrays.scratch)):
        return False
    left = np.uint64(len(arrays.arena)) - load_word(memory.counters, USED)
    if np.uint64(len(ids)) * most_units(U0, load_word(memory.counters, LONGEST), m) <= left:
        return True
    return units_needed(arrays, ids, m) <= left
