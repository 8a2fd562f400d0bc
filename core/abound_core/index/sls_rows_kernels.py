"""``sls`` in rows, for a small model with many labels: a weight for every feature and class.

The weights (float32) of features times classes lie in one array with one row per feature. Each feature has a step sum
g. Each class has an intercept b and the number n_c of instances for which it was true. With m true classes, x as
``weigh`` makes it, and all classes that were ever learned::

    s_c = b_c + sum_f x_f W_fc
    e_c = m^(-3/8) (y_c - s_c)              y_c is 1 for a true class, else 0
    n   <- n + 1,           b_c  <- b_c  + eta max(1 / (1 + n / 3), .02) e_c
    g_f <- g_f + x_f^2 / 3, W_fc <- W_fc + eta x_f max(1 / (1 + g_f), .2) e_c

n counts the instances learned in rows. y_c - s_c is clipped to -8 .. 8. Only in the step of W, e_c of a true class is
multiplied by 1 + 4 / (1 + n_c), with n_c before this instance.

An instance without a true class, or whose true classes are not all, corrects of the others only wrong ones that score
above 0, because the rest may be true. With all true classes every other class is corrected anyway. A weight multiplies
x_f^2 in the step sums, and both kinds of steps, but the product is at most 1/2 unless the step alone is longer.

Scores are sums in double precision, in the order of the features; W and e are in single. No class is selected or left
out, so learning is a pass over contiguous numbers. Meanwhile the headers have no connections; their totals keep their
meaning.

The arrays lie outside of those of the index, because five more arguments would slow down learning in lists.
``counters`` holds their addresses (``abound_core.index.dense_rows`` owns them) and the other numbers of their state.

``sls`` keeps weights in one of two forms, lists of connections or rows, and this module converts between them. An
index begins in lists. Before it learns instance number 8, 16, 32 and so on, it may change its form. It changes to
rows if its instances had two labels or more on average so far and features times classes are few enough. It changes
back to lists if they had fewer. An instance that makes the index too large changes it permanently to lists. All of
this depends only on the learned instances in their order. Passes that do not count the features as seen change the
form only by growth.
"""

import numpy as np

from abound_core.index import layout_kernels as layout
from abound_core.index.layout_kernels import (
    FORM,
    LINE,
    LONGEST,
    N_CONNECTIONS,
    N_COUNTED,
    N_FEATURES,
    PAGE_BITS,
    U3,
    U4,
    UNITS,
    add_to,
    block_of,
    class_of,
    length_of,
    make_header,
    mark_dirty,
    memory_of,
    release,
    reserve,
    size_for,
    size_of,
    strength_of,
)
from abound_core.index.sls_kernels import (
    bounded,
    count_features,
    most_slots,
    share_of,
    steps_of,
    weigh,
    weight_of,
    weighted_record,
    weighted_step,
)
from abound_core.instances.siphash_kernels import mix, mix_end
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import (
    NO,
    U0,
    U1,
    U2,
    floats_at,
    ids_at,
    load_float,
    load_id,
    load_single,
    load_word,
    single_bits,
    store_float,
    store_id,
    store_single,
    store_word,
)
from abound_core.numba.top_k import comes_before, make_heap, note_score, sift_down, sort_heap

LISTS, ROWS = np.uint64(0), np.uint64(1)  # the values of ``FORM``

N_CLASSES, N_LABELS, N_IN_ROWS, WEIGHTS, ROW_STEPS, INTERCEPTS, TIMES, STRIDE, CAPACITY = (
    np.uint64(n) for n in range(8, 17)
)
"""Places in ``counters``: 1 + highest class id and total labels learned (both kept in either form if rows are
allowed), n; the addresses of weights, step sums, intercepts and n_c; the distance of rows in weights, and the number
of rows.
"""

HORIZON = 3.0  # factor by which a step sum must grow further than in lists for the same step

ROW_FLOOR, INTERCEPT_FLOOR = 0.2, 0.02  # the least part of the step

NOVELTY = 4.0  # additional correction of a new class where it is true


@inlined
def row_of(memory, feature):
    return load_word(memory.counters, WEIGHTS) + feature * load_word(memory.counters, STRIDE) * U4


@inlined
def weight_at(row, c):
    return np.float64(load_single(row, c))


@inner
def add_row(scores, n, row, value):
    for c in range(n):
        store_float(scores, c, load_float(scores, c) + value * weight_at(row, c))


@inner
def add_rows(scores, n, found, values):
    """Add four rows at once, with the same sums as ``add_row`` for one after the other."""
    first, second, third, fourth = found
    x, y, z, v = values
    for c in range(n):
        score = load_float(scores, c) + x * weight_at(first, c)
        score += y * weight_at(second, c)
        score += z * weight_at(third, c)
        store_float(scores, c, score + v * weight_at(fourth, c))


@inner
def add_errors(row, errors, step, n):
    for c in range(n):
        store_single(row, c, load_single(row, c) + step * load_single(errors, c))


@inlined
def find_row(memory, ids, values, i, n_features):
    """Return the row and the value of the i-th feature; any row and 0 for a feature that is not in the index."""
    feature = np.uint64(ids[i])
    if feature < n_features:
        return row_of(memory, feature), np.float64(values[i])
    return row_of(memory, U0), 0.0


@inner
def score_all(memory, ids, values):
    n, n_features = load_word(memory.counters, N_CLASSES), load_word(memory.counters, N_FEATURES)
    intercepts, length, i = load_word(memory.counters, INTERCEPTS), np.uint64(len(ids)), U0
    for c in range(n):
        store_float(memory.scores, c, load_float(intercepts, c))
    if n_features == U0:
        return n
    while i + U4 <= length:
        first, x = find_row(memory, ids, values, i, n_features)
        second, y = find_row(memory, ids, values, i + U1, n_features)
        third, z = find_row(memory, ids, values, i + U2, n_features)
        fourth, v = find_row(memory, ids, values, i + U3, n_features)
        add_rows(memory.scores, n, (first, second, third, fourth), (x, y, z, v))
        i += U4
    while i < length:
        row, x = find_row(memory, ids, values, i, n_features)
        add_row(memory.scores, n, row, x)
        i += U1
    return n


@inner
def touch_all(memory, params, ids, values):
    """Weigh an instance, write the score of every class and mark it as touched; return the number of classes."""
    weigh(memory, params, ids, values)
    n = score_all(memory, ids, values)
    for c in range(n):
        store_id(memory.touched, c, np.uint32(c))
    return n


@inner
def count_before(scores, n, class_id):
    """Return how many of ``n`` classes rank before ``class_id``, by higher score or equal score and smaller id."""
    own, n_before = load_float(scores, class_id), 0
    for c in range(class_id):
        n_before += np.int64(load_float(scores, c) >= own)
    for c in range(class_id, n):
        n_before += np.int64(load_float(scores, c) > own)
    return n_before


@inner
def rank_known(memory, n, class_ids, ranks_out):
    """Compute the ranks of the true classes among all ``n``, 0 for a new class; copy their scores into ``scratch``.

    Sets the scores of new classes to -infinity.
    """
    times = load_word(memory.counters, TIMES)
    for j in range(np.uint64(len(class_ids))):
        class_id = np.uint64(class_ids[j])
        store_float(memory.scratch, j, load_float(memory.scores, class_id))
        if load_float(times, class_id) == 0.0:
            store_float(memory.scores, class_id, -np.inf)
    for j in range(np.uint64(len(class_ids))):
        class_id = np.uint64(class_ids[j])
        known = load_float(times, class_id) != 0.0
        ranks_out[j] = count_before(memory.scores, n, class_id) + 1 if known else 0


@inlined
def intercept_step(memory, params, weight):
    add_to(memory, N_IN_ROWS, U1)
    total = np.float64(load_word(memory.counters, N_IN_ROWS)) / HORIZON
    return params.eta * weighted_step(max(1.0 / (1.0 + total), INTERCEPT_FLOOR), weight, 0.5 / params.eta)


@inner
def keep_wrong(memory, params, n, wrong, feedback):
    """Set the scores of all classes to 0, except wrong ones above 0; those of ignored ones times ``implicit``.

    ``scratch`` has the scores of the true classes at its beginning.
    """
    first = np.uint64(feedback.n_true)
    for j in range(np.uint64(len(wrong))):
        score = load_float(memory.scores, np.uint64(wrong[j]))
        store_float(memory.scratch, first + j, max(score, 0.0) * strength_of(params, feedback, j))
    for c in range(n):
        store_float(memory.scores, c, 0.0)
    for j in range(np.uint64(len(wrong))):
        store_float(memory.scores, np.uint64(wrong[j]), load_float(memory.scratch, first + j))


@inner
def compute_errors(memory, params, n, class_ids, weight):
    """Correct all intercepts, write the errors of the weights into ``touched`` (float32), and count the true classes.

    Reads the scores of the true classes from ``scratch``, and zeroes all scores.
    """
    share, step = share_of(max(len(class_ids), 1)), intercept_step(memory, params, weight)
    errors, intercepts = memory.touched, load_word(memory.counters, INTERCEPTS)
    times = load_word(memory.counters, TIMES)
    for j in range(np.uint64(len(class_ids))):
        store_float(memory.scores, np.uint64(class_ids[j]), load_float(memory.scratch, j) - 1.0)
    for c in range(n):
        error = share * bounded(-load_float(memory.scores, c))
        store_single(errors, c, np.float32(error))
        store_float(intercepts, c, load_float(intercepts, c) + step * error)
        store_float(memory.scores, c, 0.0)
    for j in range(np.uint64(len(class_ids))):
        class_id = np.uint64(class_ids[j])
        count = load_float(times, class_id)
        novel = np.float64(load_single(errors, class_id)) * (1.0 + NOVELTY / (1.0 + count))
        store_single(errors, class_id, np.float32(novel))
        store_float(times, class_id, count + 1.0)


@inner
def correct_all(memory, params, ids, values, n, weight):
    """Take a step for each weight of the active features, by the errors in ``touched``."""
    steps, errors = load_word(memory.counters, ROW_STEPS), memory.touched
    for i in range(np.uint64(len(ids))):
        feature, value = np.uint64(ids[i]), np.float64(values[i])
        total = load_float(steps, feature) + weight * (value * value) / HORIZON
        store_float(steps, feature, total)
        step = params.eta * value * weighted_step(max(1.0 / (1.0 + total), ROW_FLOOR), weight, 0.5 / params.eta)
        add_errors(row_of(memory, feature), errors, np.float32(step), n)
        mark_dirty(memory, feature)


@inner
def learn_rows(memory, params, ids, values, class_ids, feedback, counted, ranks_out, best):
    """Learn one instance in rows, like ``learn_fsu``; ``values`` are overwritten.

    ``N_FEATURES`` and ``N_CLASSES`` already include this instance (``change_form``).
    """
    if counted:
        count_features(memory, ids)
    weigh(memory, params, ids, values)
    n = score_all(memory, ids, values)
    true = class_ids[: feedback.n_true]
    rank_known(memory, n, true, ranks_out)
    for c in range(n):
        note_score(best, np.int32(c), load_float(memory.scores, c))
    if len(true) == 0 or feedback.partial:
        keep_wrong(memory, params, n, class_ids[feedback.n_true :], feedback)
    compute_errors(memory, params, n, true, feedback.weight)
    correct_all(memory, params, ids, values, n, feedback.weight)
    return True


@inner
def explain_rows(memory, params, ids, values, class_id, contributions_out):
    weigh(memory, params, ids, values)
    known = class_id < load_word(memory.counters, N_CLASSES)
    for i in range(np.uint64(len(ids))):
        feature = np.uint64(ids[i])
        contributions_out[i] = 0.0
        if known and feature < load_word(memory.counters, N_FEATURES):
            contributions_out[i] = np.float64(values[i]) * weight_at(row_of(memory, feature), class_id)


@kernel
def forget(arrays, feature):
    """Reset a feature to the state before it was first seen, in either form."""
    memory = memory_of(arrays)
    layout.forget(memory, feature)
    if load_word(memory.counters, FORM) == ROWS and feature < load_word(memory.counters, N_FEATURES):
        row = row_of(memory, feature)
        for c in range(load_word(memory.counters, N_CLASSES)):
            store_single(row, c, np.float32(0.0))
        store_float(load_word(memory.counters, ROW_STEPS), feature, 0.0)


@inner
def digest_rows_page(memory, page):
    """Return the 64-bit hash of the logical state of 256 features. Weights of 0 are ignored, however many classes."""
    state, first = page, page << PAGE_BITS
    last = min(first + (U1 << PAGE_BITS), load_word(memory.counters, N_FEATURES))
    n, steps = load_word(memory.counters, N_CLASSES), load_word(memory.counters, ROW_STEPS)
    for feature in range(first, last):
        total, grown = load_word(memory.headers, feature * U2 + U1), load_word(steps, feature)
        if total == U0 and grown == U0:
            continue  # never learned: equal to an index that ends before it
        state = mix(mix(mix(state, feature), total), grown)
        row = row_of(memory, feature)
        for c in range(n):
            weight = weight_at(row, c)
            if weight != 0.0:
                state = mix(state, (c << layout.U32) | single_bits(weight))
    return mix_end(state)


MOST_CELLS, MOST_IN_ROW = 2**19, np.uint64(4096)
"""Maximum of features times classes in rows, so that a change to lists takes about 15 ms; and maximum of classes,
since lists are faster with few features and very many classes.
"""

FIRST_CHOICE = np.uint64(8)  # the first instance before which the form is chosen

MANY_LABELS = np.uint64(2)  # mean labels of an instance from which on rows are better

TIMES_BEFORE = 4.0  # n_c of each class after a change to rows, in place of its instances in lists


@inlined
def size_with(memory, ids, class_ids):
    n_features, n_classes = load_word(memory.counters, N_FEATURES), load_word(memory.counters, N_CLASSES)
    for i in range(np.uint64(len(ids))):
        n_features = max(n_features, np.uint64(ids[i]) + U1)
    for j in range(np.uint64(len(class_ids))):
        n_classes = max(n_classes, np.uint64(class_ids[j]) + U1)
    return n_features, n_classes


@kernel
def are_few(params, n_features, n_classes):
    return params.most_cells > U0 and n_classes <= MOST_IN_ROW and max(n_features, U1) * n_classes <= params.most_cells


@inlined
def may_have_rows(memory, params):
    """Return whether the index may be in rows, now or later: rows are allowed and the index is not too large."""
    return are_few(params, load_word(memory.counters, N_FEATURES), load_word(memory.counters, N_CLASSES))


@inlined
def next_form(memory, params, n_features, n_classes, counted):
    if not are_few(params, n_features, n_classes):
        return LISTS
    n_before = load_word(memory.counters, N_COUNTED)
    number = n_before + U1
    if counted and number >= FIRST_CHOICE and number & n_before == U0:
        return ROWS if load_word(memory.counters, N_LABELS) >= MANY_LABELS * n_before else LISTS
    return load_word(memory.counters, FORM)


@inlined
def note_labels(memory, class_ids, feedback, counted):
    """Record the highest class, and count the true labels.

    An instance without one counts as having the mean number, so that it does not change the form, and one whose labels
    are not all as having at least that.
    """
    n_classes = load_word(memory.counters, N_CLASSES)
    for j in range(np.uint64(len(class_ids))):
        n_classes = max(n_classes, np.uint64(class_ids[j]) + U1)
    store_word(memory.counters, N_CLASSES, n_classes)
    if counted:
        n_labels = np.uint64(feedback.n_true)
        if n_labels == U0 or feedback.partial:
            mean = load_word(memory.counters, N_LABELS) // max(load_word(memory.counters, N_COUNTED), U1)
            n_labels = max(n_labels, mean)
        add_to(memory, N_LABELS, n_labels)


@inner
def change_form(memory, params, ids, class_ids, feedback, counted):
    """Change an index that ``may_have_rows`` to the form for an instance, and record its size; return if it is rows."""
    before, n_classes = load_word(memory.counters, FORM), load_word(memory.counters, N_CLASSES)
    n_features = load_word(memory.counters, N_FEATURES)
    with_it = size_with(memory, ids, class_ids)
    form = next_form(memory, params, with_it[0], with_it[1], counted)
    store_word(memory.counters, N_FEATURES, with_it[0])
    note_labels(memory, class_ids, feedback, counted)
    if form != before:
        if form == ROWS:
            to_rows(memory, n_features, n_classes)
        else:
            to_lists(memory, params, n_features, n_classes)
        store_word(memory.counters, FORM, form)
    return form == ROWS


@inner
def to_rows(memory, n_features, n_classes):
    """Move the weights of all connections into rows, which must be zero and large enough."""
    steps, times = load_word(memory.counters, ROW_STEPS), load_word(memory.counters, TIMES)
    for feature in range(n_features):
        header, row, most = load_word(memory.headers, feature * U2), row_of(memory, feature), 0.0
        for at in range(block_of(header), block_of(header) + length_of(header)):
            record = load_word(memory.arena, at)
            store_single(row, class_of(record), np.float32(weight_of(record)))
            most = max(most, steps_of(record))
        store_float(steps, feature, most / HORIZON)
        release(memory, block_of(header), size_of(header))
        store_word(memory.headers, feature * U2, U0)
        mark_dirty(memory, feature)
    for c in range(n_classes):
        store_float(times, c, TIMES_BEFORE)
    store_word(memory.counters, N_CONNECTIONS, U0)
    store_word(memory.counters, N_IN_ROWS, U0)


@inner
def heaviest(memory, params, row, n_classes, most):
    """Write the classes of the ``most`` heaviest weights of a row into ``touched``, best first; return their number."""
    ids, sizes, n = ids_at(memory.touched), floats_at(memory.scores), 0
    for c in range(n_classes):
        size = abs(weight_at(row, c))
        if size < params.least_weight:
            continue
        if n < most:
            ids[n], sizes[n] = c, size
            n += 1
            if n == most:
                make_heap(ids, sizes, n)
        elif comes_before(size, np.int32(c), sizes[0], ids[0]):
            ids[0], sizes[0] = c, size
            sift_down(ids, sizes, 0, n)
    if n < most:
        make_heap(ids, sizes, n)
    sort_heap(ids, sizes, n)
    for i in range(n):
        sizes[i] = 0.0
    return n


@inner
def undo_novelty(memory, row, n_classes):
    """Undo the factor of new classes in the weights of a row, because lists would take long to correct them."""
    times = load_word(memory.counters, TIMES)
    for c in range(n_classes):
        count = load_float(times, c)
        store_single(row, c, np.float32(weight_at(row, c) * (count / (count + NOVELTY))))


@inner
def to_lists(memory, params, n_features, n_classes):
    """Convert the heaviest weights of each feature into connections, and zero the rows."""
    most = np.int64(most_slots(memory, params))
    steps, longest = load_word(memory.counters, ROW_STEPS), load_word(memory.counters, LONGEST)
    for feature in range(n_features):
        row = row_of(memory, feature)
        undo_novelty(memory, row, n_classes)
        length = np.uint64(heaviest(memory, params, row, n_classes, most))
        size = size_for(length, NO)
        block = reserve(memory, size) if length else U0
        for at in range(length):
            class_id = np.uint64(load_id(memory.touched, at))
            weight = weight_at(row, class_id)
            store_word(memory.arena, block + at, weighted_record(class_id, weight, load_float(steps, feature)))
        store_word(memory.headers, feature * U2, make_header(block, length, size, U0))
        add_to(memory, N_CONNECTIONS, length)
        longest = max(longest, length)
        mark_dirty(memory, feature)
    store_word(memory.counters, LONGEST, longest)
    clear_rows(memory, n_features, n_classes)


@inner
def clear_rows(memory, n_features, n_classes):
    steps = load_word(memory.counters, ROW_STEPS)
    for feature in range(n_features):
        store_float(steps, feature, 0.0)
        row = row_of(memory, feature)
        for c in range(n_classes):
            store_single(row, c, np.float32(0.0))
    intercepts, times = load_word(memory.counters, INTERCEPTS), load_word(memory.counters, TIMES)
    for c in range(n_classes):
        store_float(intercepts, c, 0.0)
        store_float(times, c, 0.0)
    store_word(memory.counters, N_IN_ROWS, U0)


@inner
def lacks_rows(memory, params, ids, class_ids):
    """Return whether rows must be created or grow before an instance is learned, whether or not it is counted."""
    n_features, n_classes = size_with(memory, ids, class_ids)
    if not are_few(params, n_features, n_classes):
        return False
    form = load_word(memory.counters, FORM) | next_form(memory, params, n_features, n_classes, True)
    has_them = n_features <= load_word(memory.counters, CAPACITY) and n_classes <= load_word(memory.counters, STRIDE)
    return form == ROWS and not has_them


@inner
def is_leaving(memory, params, ids, class_ids):
    n_features, n_classes = size_with(memory, ids, class_ids)
    in_rows = load_word(memory.counters, FORM) == ROWS
    return in_rows and next_form(memory, params, n_features, n_classes, True) == LISTS


@inner
def longest_list(memory, params):
    return min(most_slots(memory, params), load_word(memory.counters, N_CLASSES))


@inner
def units_as_lists(memory, params):
    """Return a bound of the arena units for ``to_lists``: longest lists, half of the cache lines skipped."""
    units = UNITS[size_for(longest_list(memory, params), NO)]
    return load_word(memory.counters, N_FEATURES) * (units + min(units, LINE))
