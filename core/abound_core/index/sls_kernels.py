"""Sparse least squares, the update rule ``sls``: a diagonal step on the squared errors of few classes.

Every instance is a small regression problem: its true classes should score 1, and all others 0. Of the others, only
the highest-scoring ones near a true class are corrected, and only connections of active features change. Learning
therefore costs as much as ranking. With m true classes and x as ``weigh`` makes it::

    s_c  = sum_f x_f w_fc                   over the connections of the active features
    u_c  = 1 - s_c                          for a true class with s_c < 1
    u_c  = .05 - s_c                        for the 8 + 4 (m - 1) best other classes with s_c > .05 and
                                            s_c > min(1, the least score of a true class) - .3
    e_c  = m^(-3/8) u_c
    g_fc <- (g_fc + x_f^2) (1 - kappa min(1, u_c^2)),  w_fc <- w_fc + eta x_f max(1 / (1 + g_fc), .1) e_c
    a new connection:      g_fc = x_f^2,  w_fc = eta x_f max(1 / (1 + x_f^2), .1) e_c

kappa is the parameter ``recovery``: where a prediction is wrong, steps become longer again, for data that changes.
u_c is clipped to -8 .. 8. A feature is connected to true classes with s_c < 1 and to corrected others with
s_c - .05 > .2, if abs(w_fc) is at least .02.

A feature has at most ``slots`` connections, or more while there are few features (``most_slots``). In a full list the
connection with the least absolute weight is replaced. Each connection has a **step sum** g and a weight w of either
sign. Connections stay in the order of their creation. The header's total is the number of instances with the feature.
Class ids of 2^24 and more do not fit into a record and are not learned.

A class that is rejected for an instance is corrected like those highest-scoring ones, wherever its score is above
their target. Without a true class, or if the true ones are not all, no other class is corrected, because it may be
true. An instance of weight w counts w times in the step sums, and its steps are w times as long, but no longer than 1
unless they would be with w = 1. With values of norm 1, a weight therefore never takes a score past its target.

A connection is a record of 8 bytes. The lower 24 bits hold the class as in a narrow record of
``abound_core.index.layout_kernels``. Above them are 16 bits of its step sum in units of 1/4096, and 24 bits of its
weight: a float32 without its last 8 bits.

The module also converts the connections to and from plain arrays.
"""

import numpy as np

from abound_core.index.fsu_kernels import MOST_VALUE, find_narrow, move
from abound_core.index.layout_kernels import (
    CLASS_MASK,
    LINE,
    LONGEST,
    N_CONNECTIONS,
    N_COUNTED,
    N_FEATURES,
    U4,
    U24,
    add_to,
    block_of,
    class_of,
    length_of,
    make_header,
    mark_dirty,
    memory_of,
    narrow_capacity,
    reserve,
    size_for,
    size_of,
    strength_of,
)
from abound_core.index.votes_kernels import BLOCKS_AHEAD, HEADERS_AHEAD, MOST_TERMS
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.exp_log import logarithm
from abound_core.numba.intrinsics import (
    NO,
    U0,
    U1,
    U2,
    as_single,
    gather_weights,
    load_float,
    load_id,
    load_word,
    memory_of_terms,
    prefetch_word,
    single_bits,
    store_float,
    store_id,
    store_word,
)
from abound_core.numba.top_k import comes_before, note_score

LEAST_IDF = 0.01
TOGETHER = np.uint64(64)
MOST_SLOTS = np.uint64(1024)

FLOOR, NEGATIVES, THETA_NEGATIVE, THETA_INSERT = 0.1, 8, 0.05, 0.2
"""The least part of the step that is taken; the number of wrong classes that are corrected, in addition to four for
each further true class; the score from which on they are corrected; and the error above which features are connected
to them.
"""

REACH, LEAST_WEIGHT, SHARED = 0.3, 0.02, 2**17
"""Distance below the worst true class within which a wrong class is corrected; the least initial weight of a
connection; and the number of connections that the features of a small model share, if that is more than ``slots`` for
each.
"""

MOST_ERROR = 8.0  # bound of the error of a score, so that nothing overflows with steps that are too long

TOUCHED = 2.0**-1000  # replaces a score of exactly 0, which would mean no vote


@inlined
def most_others(params, m):
    return params.negatives + U4 * (m - U1)


@inlined
def slots_of(slots, shared, n_features):
    return max(slots, min(shared // max(n_features, U1), MOST_SLOTS))


@inlined
def most_slots(memory, params):
    return slots_of(params.slots, params.shared, load_word(memory.counters, N_FEATURES))


@inlined
def share_of(m):
    """Return the factor of a step with ``m`` true classes, m^(-3/8); uses roots, which are exact on every processor."""
    root = np.sqrt(np.sqrt(np.float64(m)))
    return 1.0 / (root * np.sqrt(root))


@inlined
def bounded(error):
    error = error if error < MOST_ERROR else MOST_ERROR
    return error if error > -MOST_ERROR else -MOST_ERROR


@inlined
def step_of(params, steps):
    return max(1.0 / (1.0 + steps), params.floor)


@inlined
def weighted_step(step, weight, most):
    """Return a step times the weight of its instance; at most ``most``, unless the step alone is longer."""
    return min(step * weight, max(step, most))


@inlined
def note_rarities(memory, n_counted, ids, first, n):
    """Write (N + 1) / (df + 1/2) of ``n`` features, beginning with the ``first``, into ``scratch``."""
    for i in range(n):
        feature = np.uint64(ids[first + i])
        seen = load_float(memory.headers, feature * U2 + U1) if feature < memory.n_headers else 0.0
        store_float(memory.scratch, i, (n_counted + 1.0) / (seen + 0.5))


@inlined
def weigh(memory, params, ids, values):
    """Multiply values by the inverse frequency of their features and normalise them, in place (float32).

    idf = max(0.01, ln((N + 1) / (df + 1/2))) with the present N and df; an unknown feature has df 0. Uses ``scratch``
    to compute several logarithms at once.
    """
    n, n_counted = np.uint64(len(ids)), np.float64(load_word(memory.counters, N_COUNTED))
    squares, first = 0.0, U0
    while first < n:
        size = min(n - first, TOGETHER)
        if params.idf:
            note_rarities(memory, n_counted, ids, first, size)
            for i in range(size):
                store_float(memory.scratch, i, max(logarithm(load_float(memory.scratch, i)), LEAST_IDF))
        for i in range(size):
            value = np.float64(values[first + i])
            if params.idf:
                value *= load_float(memory.scratch, i)
            value = value if value < MOST_VALUE else MOST_VALUE
            values[first + i] = value
            squares += value * value
        first += size
    scale = 1.0 / np.sqrt(squares)
    for i in range(n):
        values[i] = np.float64(values[i]) * scale


@inlined
def fetch_slots(memory, feature):
    """Prefetch the first eight cache lines of a feature's connections, or as many as exist, without a branch."""
    header = load_word(memory.headers, feature * U2 if feature < memory.n_headers else U0)
    block, length = block_of(header), length_of(header)
    last = length - U1 if length else U0
    for line in range(np.uint64(8)):
        prefetch_word(memory.arena, block + min(last, line * LINE))


@inlined
def add_weights(memory, terms, class_ids, n, n_touched):
    """Add ``n`` gathered terms to the scores, in their order; return the new number of touched classes."""
    for k in range(n):
        class_id = np.uint64(load_id(class_ids, k))
        before = load_float(memory.scores, class_id)
        score = before + load_float(terms, k)
        store_id(memory.touched, n_touched, np.uint32(class_id))
        store_float(memory.scores, class_id, score if score != 0.0 else TOUCHED)
        n_touched += np.uint64(before == 0.0)
    return n_touched


@inlined
def add_weighted(memory, params, ids, values):
    """Add the votes of all connections of the active features to the scores; return the number of touched classes."""
    n = np.uint64(len(ids))
    n_touched, n_terms = U0, U0
    terms, class_ids = memory_of_terms()
    for i in range(min(n, HEADERS_AHEAD)):
        prefetch_word(memory.headers, np.uint64(ids[i]) * U2)
    for i in range(min(n, BLOCKS_AHEAD)):
        fetch_slots(memory, np.uint64(ids[i]))
    for i in range(n):
        if i + HEADERS_AHEAD < n:
            prefetch_word(memory.headers, np.uint64(ids[i + HEADERS_AHEAD]) * U2)
        if i + BLOCKS_AHEAD < n:
            fetch_slots(memory, np.uint64(ids[i + BLOCKS_AHEAD]))
        feature, value = np.uint64(ids[i]), np.float64(values[i])
        if feature >= memory.n_headers:
            continue
        header = load_word(memory.headers, feature * U2)
        block, end = block_of(header), block_of(header) + length_of(header)
        while block < end:
            size = min(end - block, LINE)
            gather_weights(memory.arena, block, size, value, terms, n_terms)
            n_terms += size
            block += LINE
            if n_terms > MOST_TERMS:
                n_touched = add_weights(memory, terms, class_ids, n_terms, n_touched)
                n_terms = U0
    return add_weights(memory, terms, class_ids, n_terms, n_touched)


@inlined
def order_true(memory, class_ids, own, order, best):
    """Move the scores of the true classes into ``own``, write their places, best first, and note them in ``best``."""
    for j in range(np.uint64(len(class_ids))):
        class_id, at = np.uint64(class_ids[j]), j
        score = load_float(memory.scores, class_id)
        note_score(best, class_ids[j], score)
        store_float(own, j, score)
        store_float(memory.scores, class_id, 0.0)
        while at:
            other = load_word(order, at - U1)
            if not comes_before(score, class_ids[j], load_float(own, other), class_ids[other]):
                break
            store_word(order, at, other)
            at -= U1
        store_word(order, at, j)


@inner
def rank_true(memory, params, n_touched, class_ids, partial, ranks_out, most, best):
    """Compute the ranks of the true classes, select the best other classes, note all in ``best``, and zero all scores.

    ``scratch`` receives the scores of the true classes, then their places from best to worst. From ``2 m`` on it
    receives classes and scores of up to ``most`` others, best first: those above ``theta_negative`` within ``reach``
    of the worst true class; none without a true class, and if ``partial``. Returns the number of others. Without rows,
    a true class without a score counts as ranked before one with a score below 0. Models without rows have always
    counted so, and their reported figures must not change.
    """
    m = np.uint64(len(class_ids))
    word = np.uint64(8)
    own, order = memory.scratch, memory.scratch + m * word
    names, heights = order + m * word, order + (m + most) * word
    order_true(memory, class_ids, own, order, best)
    lowest = np.inf
    if m and not partial:
        worst = load_float(own, load_word(order, m - U1))
        lowest = max(params.theta_negative, min(worst, 1.0) - params.reach)
    for j in range(m):
        ranks_out[j] = 0
    n_kept = U0
    for i in range(n_touched):
        other = np.uint64(load_id(memory.touched, i))
        score = load_float(memory.scores, other)
        if score == 0.0:
            continue  # a true class
        note_score(best, np.int32(other), score)
        store_float(memory.scores, other, 0.0)
        at = m
        while at:
            j = load_word(order, at - U1)
            if not comes_before(score, np.int64(other), load_float(own, j), np.int64(class_ids[j])):
                break
            at -= U1
        if at < m:
            ranks_out[load_word(order, at)] += 1
        if score <= lowest:
            continue
        at = n_kept
        while at and comes_before(
            score, np.int64(other), load_float(heights, at - U1), np.int64(load_word(names, at - U1))
        ):
            at -= U1
        if at == most:
            continue
        n_kept = min(n_kept + U1, most)
        place = n_kept - U1
        while place > at:
            store_float(heights, place, load_float(heights, place - U1))
            store_word(names, place, load_word(names, place - U1))
            place -= U1
        store_float(heights, at, score)
        store_word(names, at, other)
    n_before = 0
    for at in range(m):
        j = load_word(order, at)
        n_before += ranks_out[j]
        retrieved = load_float(own, j) != 0.0
        ranks_out[j] = n_before + 1 if retrieved else 0
        n_before += np.int64(retrieved | (params.most_cells == U0))
    return n_kept


@inlined
def weakest(arena, first, length):
    place, least = first, np.inf
    for at in range(first, first + length):
        size = abs(weight_of(load_word(arena, at)))
        if size < least:
            place, least = at, size
    return place


@inlined
def insert(memory, header, record, slots):
    """Connect a feature to a new class, replacing the weakest connection of a full list; return the new header."""
    length = length_of(header)
    if length >= slots:
        store_word(memory.arena, weakest(memory.arena, block_of(header), length), record)
        return header
    if length == narrow_capacity(size_of(header)):
        header = move(memory, header, size_for(length + U1, NO), NO)
    store_word(memory.arena, block_of(header) + length, record)
    return make_header(block_of(header), length + U1, size_of(header), header)


@inlined
def correct(memory, params, header, value, weight, recovery):
    first = block_of(header)
    for at in range(first, first + length_of(header)):
        record = load_word(memory.arena, at)
        class_id = class_of(record)
        error = load_float(memory.scores, class_id)
        if error != 0.0:
            steps = steps_of(record) + weight * (value * value)
            steps *= 1.0 - min(recovery * (error * error), params.recovery)
            step = weighted_step(step_of(params, steps), weight, 1.0 / params.eta)
            corrected = weight_of(record) + params.eta * error * value * step
            store_word(memory.arena, at, weighted_record(class_id, corrected, steps))


@inner
def update_squares(memory, params, ids, values, weight, share, inserted, n_inserted):
    """Correct all active features, and connect them to the ``n_inserted`` classes listed at ``inserted``."""
    change, longest, slots = U0, load_word(memory.counters, LONGEST), most_slots(memory, params)
    recovery = params.recovery / (share * share)
    for i in range(np.uint64(len(ids))):
        feature, value = np.uint64(ids[i]), np.float64(values[i])
        header = load_word(memory.headers, feature * U2)
        before = length_of(header)
        correct(memory, params, header, value, weight, recovery)
        steps = weight * (value * value)
        step = params.eta * value * weighted_step(step_of(params, steps), weight, 1.0 / params.eta)
        for j in range(n_inserted):
            class_id = load_word(inserted, j)
            initial = step * load_float(memory.scores, class_id)
            end = block_of(header) + length_of(header)
            if abs(initial) < params.least_weight:
                continue
            if find_narrow(memory.arena, block_of(header), end, class_id) == end:
                header = insert(memory, header, weighted_record(class_id, initial, steps), slots)
        store_word(memory.headers, feature * U2, header)
        longest = max(longest, length_of(header))
        change += length_of(header) - before
        mark_dirty(memory, feature)
    add_to(memory, N_CONNECTIONS, change)
    store_word(memory.counters, LONGEST, longest)


@inlined
def count_features(memory, ids):
    highest = load_word(memory.counters, N_FEATURES)
    for i in range(np.uint64(len(ids))):
        feature = np.uint64(ids[i])
        highest = max(highest, feature + U1)
        store_float(memory.headers, feature * U2 + U1, load_float(memory.headers, feature * U2 + U1) + 1.0)
        mark_dirty(memory, feature)
    store_word(memory.counters, N_FEATURES, highest)
    add_to(memory, N_COUNTED, U1)


@inner
def note_wrong(memory, params, wrong, feedback, names, heights):
    """Write the wrong classes above ``theta_negative`` and their scores into scratch; return their number.

    The score of an ignored class is moved towards ``theta_negative``: its error is ``implicit`` times that of a
    rejected one.
    """
    n, target = U0, params.theta_negative
    for j in range(np.uint64(len(wrong))):
        class_id = np.uint64(wrong[j])
        height = target + strength_of(params, feedback, j) * (load_float(memory.scores, class_id) - target)
        if height > target:
            store_word(names, n, class_id)
            store_float(heights, n, height)
            n += U1
    return n


@inlined
def put_errors(memory, params, names, heights, n, share, inserted, n_inserted):
    """Store the errors of ``n`` classes that have none yet; return the number of classes to be connected."""
    for at in range(n):
        class_id, error = load_word(names, at), bounded(params.theta_negative - load_float(heights, at))
        if load_float(memory.scores, class_id) == 0.0:
            store_float(memory.scores, class_id, error * share)
            if -error > params.theta_insert:
                store_word(inserted, n_inserted, class_id)
                n_inserted += U1
    return n_inserted


@inner
def learn_squares(memory, params, ids, values, class_ids, feedback, counted, ranks_out, best):
    """Learn one instance in lists, like ``learn_fsu``; ``values`` are overwritten."""
    if counted:
        count_features(memory, ids)
    weigh(memory, params, ids, values)
    n_touched = add_weighted(memory, params, ids, values)
    true, m, word = class_ids[: feedback.n_true], np.uint64(feedback.n_true), np.uint64(8)
    most, share = most_others(params, max(m, U1)), share_of(max(m, U1))
    own, names = memory.scratch, memory.scratch + U2 * m * word
    heights, wrong = names + most * word, names + U2 * most * word
    n_wrong = np.uint64(len(class_ids)) - m
    wrong_heights, inserted = wrong + n_wrong * word, wrong + U2 * n_wrong * word
    n_wrong = note_wrong(memory, params, class_ids[feedback.n_true :], feedback, wrong, wrong_heights)
    n_others = rank_true(memory, params, n_touched, true, feedback.partial, ranks_out, most, best)
    n_inserted = U0
    for j in range(m):
        score = load_float(own, j)
        if score < 1.0 and np.uint64(true[j]) <= CLASS_MASK:
            store_float(memory.scores, np.uint64(true[j]), bounded(1.0 - score) * share)
            store_word(inserted, n_inserted, np.uint64(true[j]))
            n_inserted += U1
    updated = n_inserted + n_others + n_wrong > U0
    n_inserted = put_errors(memory, params, names, heights, n_others, share, inserted, n_inserted)
    n_inserted = put_errors(memory, params, wrong, wrong_heights, n_wrong, share, inserted, n_inserted)
    if updated:
        update_squares(memory, params, ids, values, feedback.weight, share, inserted, n_inserted)
        for j in range(m):
            store_float(memory.scores, np.uint64(true[j]), 0.0)
        for at in range(n_others):
            store_float(memory.scores, load_word(names, at), 0.0)
        for at in range(n_wrong):
            store_float(memory.scores, load_word(wrong, at), 0.0)
    return updated


@inner
def explain_squares(memory, params, ids, values, class_id, contributions_out):
    weigh(memory, params, ids, values)
    for i in range(np.uint64(len(ids))):
        contributions_out[i] = 0.0
        feature = np.uint64(ids[i])
        if feature >= memory.n_headers:
            continue
        header = load_word(memory.headers, feature * U2)
        end = block_of(header) + length_of(header)
        at = find_narrow(memory.arena, block_of(header), end, class_id)
        if at < end:
            contributions_out[i] = np.float64(values[i]) * weight_of(load_word(memory.arena, at))


U40 = np.uint64(40)
STEPS_MASK = np.uint64(0xFFFF)
STEPS_ONE = 4096.0
STEPS_FULL = 65_535.0
WEIGHT_ROUNDING, WEIGHT_SHIFT = np.uint64(0x80), np.uint64(8)


@inlined
def weight_of(record):
    return np.float64(as_single((record >> U40) << WEIGHT_SHIFT))


@inlined
def steps_of(record):
    return np.float64((record >> U24) & STEPS_MASK) / STEPS_ONE


@inlined
def weighted_record(class_id, weight, steps):
    """Return a record; the weight is rounded to 16 bits of mantissa, the step sum to 1/4096 and at most 16."""
    bits = (single_bits(weight) + WEIGHT_ROUNDING) >> WEIGHT_SHIFT
    units = steps * STEPS_ONE + 0.5
    units = np.uint64(units if units < STEPS_FULL else STEPS_FULL)
    return (bits << U40) | (units << U24) | (CLASS_MASK - class_id)


@kernel
def export_squares(arrays, lengths, totals, class_ids, weights, steps, counted):
    """Write the logical state into plain arrays.

    Parameters
    ----------
    lengths, totals : uint16, float64, shape (n_features,)
    class_ids, weights, steps : uint32, float32, uint16, shape (n_connections,)
        Feature after feature, connections in the order of their creation; steps in units of 1/4096.
    counted : int64, shape (1,)
        Number of instances counted.
    """
    memory, place = memory_of(arrays), U0
    for feature in range(np.uint64(len(lengths))):
        header = load_word(memory.headers, feature * U2)
        lengths[feature] = length_of(header)
        totals[feature] = load_float(memory.headers, feature * U2 + U1)
        for at in range(block_of(header), block_of(header) + length_of(header)):
            record = load_word(memory.arena, at)
            class_ids[place] = class_of(record)
            weights[place] = weight_of(record)
            steps[place] = (record >> U24) & STEPS_MASK
            place += U1
    counted[0] = load_word(memory.counters, N_COUNTED)


@kernel
def import_squares(arrays, lengths, totals, class_ids, weights, steps, counted):
    """Fill an empty index that is large enough, the reverse of ``export_squares``.

    Each array is valid by itself (``abound_core.index.arrays``). Returns False if they contradict each other.
    """
    memory, first = memory_of(arrays), U0
    for feature in range(np.uint64(len(lengths))):
        length = np.uint64(lengths[feature])
        if totals[feature] > np.float64(counted[0]) or (length and totals[feature] == 0.0):
            return False
        size = size_for(length, NO)
        header = make_header(reserve(memory, size) if length else U0, length, size, U0)
        block = block_of(header)
        for at in range(length):
            class_id, weight = np.uint64(class_ids[first + at]), np.float64(weights[first + at])
            record = weighted_record(class_id, weight, np.float64(steps[first + at]) / STEPS_ONE)
            if class_id > CLASS_MASK or weight_of(record) != weight:
                return False
            if find_narrow(memory.arena, block, block + at, class_id) != block + at:
                return False
            store_word(memory.arena, block + at, record)
        store_word(memory.headers, feature * U2, header)
        store_float(memory.headers, feature * U2 + U1, totals[feature])
        store_word(memory.counters, LONGEST, max(load_word(memory.counters, LONGEST), length))
        first += length
    store_word(memory.counters, N_CONNECTIONS, first)
    store_word(memory.counters, N_FEATURES, np.uint64(len(lengths)))
    store_word(memory.counters, N_COUNTED, np.uint64(counted[0]))
    return True
