"""Feature Focus: rank an instance, compute the margins of its true classes, update where due (paper, section 4.1)."""

import numpy as np

from abound_core.index.fsu_kernels import (
    only_adds,
    scale_values,
    store_update,
    total_after,
    update_connection,
    weaken_connection,
)
from abound_core.index.layout_kernels import (
    FORM,
    LINE,
    LONGEST,
    MAX_LENGTH,
    N_CONNECTIONS,
    N_FEATURES,
    NONE,
    U3,
    UNITS,
    USED,
    add_to,
    block_of,
    by_rule,
    length_of,
    mark_dirty,
    memory_of,
    size_for,
    size_of,
    strength_of,
)
from abound_core.index.sls_kernels import learn_squares, most_others, most_slots
from abound_core.index.sls_rows_kernels import (
    ROWS,
    change_form,
    is_leaving,
    lacks_rows,
    learn_rows,
    longest_list,
    may_have_rows,
    note_labels,
    units_as_lists,
)
from abound_core.index.votes_kernels import add_votes, pop_score
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import NO, U0, U1, U2, YES, load_float, load_id, load_word, store_float, store_word
from abound_core.numba.top_k import comes_before, note_score

MARGIN_CLASSES = 50  # a true class ranked below it counts as not scored in its margin

PADDING = LINE - U1

UNITS_UP_TO = np.cumsum(np.where(UNITS > 0, UNITS + PADDING, U0), dtype=np.uint64)
"""Units of one block of each size class up to this one, each with the units that may be skipped before it."""


@inlined
def update_one(memory, params, ids, values, class_id):
    """Update every active feature for one class, whose places ``add_votes`` has recorded."""
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


@inner
def update_several(memory, params, ids, values, class_ids, wrong, feedback):
    """Update every active feature for each class marked in ``scratch``, in the order given.

    The marks of the wrong classes begin at place ``2 m``.
    """
    change, longest = U0, load_word(memory.counters, LONGEST)
    marks = U2 * np.uint64(len(class_ids))
    for i in range(np.uint64(len(ids))):
        feature, value = np.uint64(ids[i]), np.float64(values[i])
        before, total = load_word(memory.headers, feature * U2), load_float(memory.headers, feature * U2 + U1)
        header = before
        for j in range(np.uint64(len(class_ids))):
            if load_word(memory.scratch, j):
                class_id, block = np.uint64(class_ids[j]), block_of(header)
                header, total = update_connection(memory, params, header, total, value, class_id, block)
                longest = max(longest, length_of(header))
        for j in range(np.uint64(len(wrong))):
            if load_word(memory.scratch, marks + j):
                own = value * strength_of(params, feedback, j)
                header = weaken_connection(memory, params, header, total, own, np.uint64(wrong[j]))
        mark_dirty(memory, feature)
        change += store_update(memory, feature, before, header, total)
    add_to(memory, N_CONNECTIONS, change)
    store_word(memory.counters, LONGEST, longest)


@inlined
def note_features(memory, ids):
    n_features = load_word(memory.counters, N_FEATURES)
    for i in range(np.uint64(len(ids))):
        n_features = max(n_features, np.uint64(ids[i]) + U1)
    store_word(memory.counters, N_FEATURES, n_features)


@inlined
def rank_one(memory, n_touched, class_id, ranks_out, best):
    """Compute the rank of the one true class, note all in ``best``, return the margin, and zero the scores."""
    true_score = pop_score(memory, class_id)
    note_score(best, np.int32(class_id), true_score)
    n_better, best_other = U0, 0.0
    for i in range(n_touched):
        other = np.uint64(load_id(memory.touched, i))
        score = pop_score(memory, other)
        note_score(best, np.int32(other), score)
        best_other = max(best_other, score)
        n_better += np.uint64((score > true_score) | ((score == true_score) & (other < class_id)))
    ranks_out[0] = n_better + U1 if true_score > 0.0 else U0
    return (true_score if n_better < MARGIN_CLASSES else 0.0) - best_other


@inner
def rank_several(memory, n_touched, class_ids, ranks_out, best):
    """Compute the ranks of all true classes, return the best score of another class, and zero the scores.

    All classes are noted in ``best``. Afterwards ``scratch`` holds the bits of the true scores, and the places of the
    true classes, best to worst.
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
        note_score(best, class_ids[j], pop_score(memory, np.uint64(class_ids[j])))
    best_other = 0.0
    for i in range(n_touched):
        other = load_id(memory.touched, i)
        score, at = pop_score(memory, np.uint64(other)), m
        note_score(best, np.int32(other), score)
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


@inner
def mark_wrong(memory, params, class_ids, wrong):
    """Mark the wrong classes that are due in ``scratch`` from ``2 m`` on; return whether there are any.

    Due is a wrong class with a score that does not lie more than the margin below the best true class.
    """
    m, best, any_due = np.uint64(len(class_ids)), 0.0, False
    for j in range(m):
        best = max(best, load_float(memory.scores, np.uint64(class_ids[j])))
    for j in range(np.uint64(len(wrong))):
        own = load_float(memory.scores, np.uint64(wrong[j]))
        due = (own > 0.0) & (best - own <= params.margin)
        store_word(memory.scratch, U2 * m + j, np.uint64(due))
        any_due |= due
    return any_due


@inner
def learn_fsu(arrays, params, ids, values, class_ids, feedback, counted, ranks_out, best):
    """Run ``learn_feedback`` for ``fsu``, and note the classes that were ranked in ``best``, an empty Best or None."""
    memory = memory_of(arrays)
    if len(class_ids) == 1 and feedback.n_true == 1:
        class_id = np.uint64(class_ids[0])
        n_touched = add_votes(memory, params, ids, values, counted, class_id)
        updated = rank_one(memory, n_touched, class_id, ranks_out, best) <= params.margin
        if updated:
            scale_values(values, feedback.weight)
            update_one(memory, params, ids, values, class_id)
    else:
        true, wrong = class_ids[: feedback.n_true], class_ids[feedback.n_true :]
        n_touched = add_votes(memory, params, ids, values, counted, NONE)
        updated = mark_wrong(memory, params, true, wrong)
        best_other = rank_several(memory, n_touched, true, ranks_out, best)
        for j in range(len(true)):
            own = load_float(memory.scratch, np.uint64(j)) if 0 < ranks_out[j] <= MARGIN_CLASSES else 0.0
            due = own - best_other <= params.margin
            store_word(memory.scratch, np.uint64(j), np.uint64(due))
            updated |= due
        if updated:
            scale_values(values, feedback.weight)
            update_several(memory, params, ids, values, true, wrong, feedback)
    if updated:
        note_features(memory, ids)
    return updated


@inner
def learn_sls(arrays, params, ids, values, class_ids, feedback, counted, ranks_out, best):
    memory = memory_of(arrays)
    if may_have_rows(memory, params):
        if change_form(memory, params, ids, class_ids, feedback, counted):
            return learn_rows(memory, params, ids, values, class_ids, feedback, counted, ranks_out, best)
    elif params.most_cells:
        note_labels(memory, class_ids, feedback, counted)
    return learn_squares(memory, params, ids, values, class_ids, feedback, counted, ranks_out, best)


@kernel
def learn_feedback(arrays, params, ids, values, class_ids, feedback, counted, ranks_out):
    """Learn one instance by FF: rank, compute the margins, update where needed. ``has_room`` must have returned true.

    Parameters
    ----------
    arrays, params : IndexArrays, KernelParams
    ids : int32, shape (l,)
        Active features, unique.
    values : float32, shape (l,)
        > 0 and finite; overwritten.
    class_ids : int32, shape (c,)
        Classes, unique: first the true ones, then wrong ones. Ignored ones only if ``params.implicit`` is above 0.
    feedback : Feedback
    counted : bool
        Whether to count the features as seen: False in all passes but the first.
    ranks_out : int32, shape (feedback.n_true,)
        Written: the rank of each true class before learning, from 1; 0 if not retrieved.

    Returns
    -------
    updated : bool
        Whether a margin was at most ``params.margin`` or a wrong class was due, so that connections were updated.
    """
    learn = by_rule(params, learn_fsu, learn_sls)
    return learn(memory_of(arrays), params, ids, values, class_ids, feedback, counted, ranks_out, None)


@inlined
def units_between(size, last):
    """Return a bound of the units from the front for one block of each size class above ``size`` up to ``last``."""
    return UNITS_UP_TO[max(size, last)] - UNITS_UP_TO[size]


@inner
def most_units(size, length, m):
    """Return a bound of the units that ``fsu`` takes from the arena's front to update one feature for ``m`` classes.

    A full narrow block moves to the next size class. A block that becomes wide may move to any size class, including
    its own or a smaller one. A full wide block moves to the next size class. At the end the rest may move to a smaller
    block. Apart from the change of form and the last move, no size class is used twice, unless many connections were
    dropped in between; then the blocks are smaller by as much.
    """
    last = size_for(min(length + m, MAX_LENGTH + U1), YES)
    units = U2 * (UNITS[last] + PADDING)
    return units if m == U1 else units + units_between(size, last)


@inlined
def most_units_in_lists(size, length, m, slots):
    """Return a bound of the units from the arena's front with which ``sls`` connects a feature to ``m`` classes.

    Blocks only grow, from one size class to the next, and lists of ``slots`` connections or more do not grow.
    """
    return units_between(size, size_for(max(length, min(length + m, slots)), NO))


@kernel
def units_needed(arrays, params, ids, m):
    memory = memory_of(arrays)
    units, slots = U0, most_slots(memory, params)
    for i in range(len(ids)):
        header = load_word(memory.headers, np.uint64(ids[i]) * U2)
        size, length = size_of(header), length_of(header)
        if params.squares:
            units += most_units_in_lists(size, length, m, slots)
        else:
            units += most_units(size, length, m)
    return units


@kernel
def most_units_of_any(memory, params, m):
    longest = load_word(memory.counters, LONGEST)
    if not params.squares:
        return most_units(U0, longest, m)
    # A list of m connections or more at most doubles, which is two size classes; a shorter one stays below 2 m.
    slots = most_slots(memory, params)
    last = max(size_for(min(min(longest, slots) + m, slots), NO), U2)
    return max(units_between(last - U2, last), units_between(U0, size_for(min(U2 * m, slots), NO)))


@kernel
def units_to_leave(arrays, params, ids, m):
    """Return an upper bound of the arena units needed to convert rows to lists and then learn ``m`` classes."""
    memory = memory_of(arrays)
    units, n_features = units_as_lists(memory, params), load_word(memory.counters, N_FEATURES)
    slots = most_slots(memory, params)
    known = most_units_in_lists(U0, U0, longest_list(memory, params) + m, slots)
    new = most_units_in_lists(U0, U0, m, slots)
    for i in range(np.uint64(len(ids))):
        units += known if np.uint64(ids[i]) < n_features else new
    return units


@kernel
def room_for_form(arrays, params, ids, class_ids, m):
    """Return whether rows must grow, and a bound of the arena units to convert rows to lists if that is due."""
    memory = memory_of(arrays)
    leaving = is_leaving(memory, params, ids, class_ids)
    return lacks_rows(memory, params, ids, class_ids), units_to_leave(memory, params, ids, m) if leaving else U0


@kernel
def new_classes(params, m):
    """Return the maximum number of classes to which an instance with ``m`` true ones may connect a feature."""
    return m + most_others(params, m) if params.squares else m


@kernel
def scratch_needed(params, n, m):
    """Return the words of scratch for learning an instance with ``n`` features and ``m`` true and wrong classes."""
    return U3 * (m + most_others(params, m)) if params.squares else max(U2 * m, n + U1)


LACKING, ENOUGH, UNKNOWN = range(3)  # whether the rows have space; unknown: the lists decide


@inlined
def has_no_rows(memory, params, ids, class_ids, m, left):
    """The variant of ``has_room_in_rows`` for ``fsu``."""
    return UNKNOWN


@inner
def has_room_in_rows(memory, params, ids, class_ids, m, left):
    if may_have_rows(memory, params):
        if lacks_rows(memory, params, ids, class_ids):
            return LACKING
        if load_word(memory.counters, FORM) == ROWS:
            enough = not is_leaving(memory, params, ids, class_ids) or units_to_leave(memory, params, ids, m) <= left
            return ENOUGH if enough else LACKING
    return UNKNOWN


@kernel
def has_room(arrays, params, ids, class_ids):
    """Return whether ``learn_feedback`` can run without growth of any array.

    Costs one multiplication while the arena has much free space; near its end the kernel reads the headers.
    """
    memory = memory_of(arrays)
    m, highest = np.uint64(len(class_ids)), U0
    for i in range(np.uint64(len(ids))):
        highest = max(highest, np.uint64(np.uint32(ids[i])))
    if highest >= memory.n_headers:
        return False
    for j in range(m):
        if np.uint64(class_ids[j]) >= memory.n_scores:
            return False
    if scratch_needed(params, np.uint64(len(ids)), m) > memory.n_scratch:
        return False
    m = new_classes(params, m)
    left = memory.n_units - load_word(memory.counters, USED)
    room = by_rule(params, has_no_rows, has_room_in_rows)(memory, params, ids, class_ids, m, left)
    if room != UNKNOWN:
        return room == ENOUGH
    if np.uint64(len(ids)) * most_units_of_any(memory, params, m) <= left:
        return True
    return units_needed(memory, params, ids, m) <= left
