"""The two forms that ``sls`` keeps weights in, lists of connections or ``rows``, and how one becomes the other.

An index begins in lists. Before it learns instance number 8, 16, 32 and so on, it goes over to rows if its instances
had two labels or more in the mean so far and features times classes are few enough, or back to lists if they had fewer.
An instance that makes it too large makes it lists for good. All of this depends on what was learned, in its order, and
on nothing else; passes that do not count the features as seen change the form only by growth.
"""

import numpy as np

from core.kernels.machine import (
    U0,
    U1,
    U2,
    inlined,
    kernel,
    load_float,
    load_word,
    store_float,
    store_single,
    store_word,
)
from core.kernels.postings import (
    FORM,
    LINE,
    LONGEST,
    N_CONNECTIONS,
    N_COUNTED,
    N_FEATURES,
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
)
from core.kernels.ranking import comes_before, make_heap, sift_down, sort_heap
from core.kernels.rows import (
    CAPACITY,
    HORIZON,
    INTERCEPTS,
    LISTS,
    N_CLASSES,
    N_IN_ROWS,
    N_LABELS,
    NOVELTY,
    ROW_STEPS,
    ROWS,
    STRIDE,
    TIMES,
    row_of,
    weight_at,
)
from core.kernels.squares import most_slots
from core.kernels.weighted import steps_of, weight_of, weighted_record

MOST_CELLS, MOST_IN_ROW = 2**19, np.uint64(4096)
"""Features times classes of an index in rows, at most, so that becoming lists takes some 15 ms; and classes, since with
few features and very many classes lists are faster."""

FIRST_CHOICE = np.uint64(8)
"""The first instance before which the form is chosen."""

MANY_LABELS = np.uint64(2)
"""Labels an instance from which on rows are better."""

TIMES_BEFORE = 4.0
"""As how many instances of each class count what was learned in lists."""


@inlined
def size_with(memory, ids, class_ids):
    """1 + the highest id of a feature, of a class, that is in the index or in the instance."""
    n_features, n_classes = load_word(memory.counters, N_FEATURES), load_word(memory.counters, N_CLASSES)
    for i in range(np.uint64(len(ids))):
        n_features = max(n_features, np.uint64(ids[i]) + U1)
    for j in range(np.uint64(len(class_ids))):
        n_classes = max(n_classes, np.uint64(class_ids[j]) + U1)
    return n_features, n_classes


@inlined
def are_few(params, n_features, n_classes):
    """Whether so many features and classes may be in rows."""
    return params.most_cells > U0 and n_classes <= MOST_IN_ROW and max(n_features, U1) * n_classes <= params.most_cells


@inlined
def may_have_rows(memory, params):
    """Whether the index may be in rows, now or later: not without them, nor once it is too large."""
    return are_few(params, load_word(memory.counters, N_FEATURES), load_word(memory.counters, N_CLASSES))


@inlined
def next_form(memory, params, n_features, n_classes, counted):
    """The form in which an instance is learned that makes the index so large."""
    if not are_few(params, n_features, n_classes):
        return LISTS
    n_before = load_word(memory.counters, N_COUNTED)
    number = n_before + U1
    if counted and number >= FIRST_CHOICE and number & n_before == U0:
        return ROWS if load_word(memory.counters, N_LABELS) >= MANY_LABELS * n_before else LISTS
    return load_word(memory.counters, FORM)


@inlined
def note_labels(memory, class_ids, counted):
    """Note the highest class, and how many labels were learned."""
    n_classes = load_word(memory.counters, N_CLASSES)
    for j in range(np.uint64(len(class_ids))):
        n_classes = max(n_classes, np.uint64(class_ids[j]) + U1)
    store_word(memory.counters, N_CLASSES, n_classes)
    if counted:
        add_to(memory, N_LABELS, np.uint64(len(class_ids)))


@kernel
def take_form(arrays, params, ids, class_ids, counted):
    """Bring the index into the form that an instance is learned in, and note its size and its labels; True: rows.

    For an index that ``may_have_rows``.
    """
    memory = memory_of(arrays)
    before, n_classes = load_word(memory.counters, FORM), load_word(memory.counters, N_CLASSES)
    n_features = load_word(memory.counters, N_FEATURES)
    with_it = size_with(memory, ids, class_ids)
    form = next_form(memory, params, with_it[0], with_it[1], counted)
    store_word(memory.counters, N_FEATURES, with_it[0])
    note_labels(memory, class_ids, counted)
    if form != before:
        if form == ROWS:
            to_rows(memory, n_features, n_classes)
        else:
            to_lists(arrays, params, n_features, n_classes)
        store_word(memory.counters, FORM, form)
    return form == ROWS


@kernel
def to_rows(memory, n_features, n_classes):
    """Move the weights of all connections into rows, which are all zero and have room for them."""
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


@kernel
def heaviest(arrays, params, row, n_classes, most):
    """The ``most`` heaviest weights of a row: their classes, best first, in ``touched``; how many, at most so many."""
    ids, sizes, n = arrays.touched, arrays.scores, 0
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
    sizes[:n] = 0.0
    return n


@kernel
def calm_row(memory, row, n_classes):
    """Make weights as large as they were without the factor of new classes: lists would not correct them for long."""
    times = load_word(memory.counters, TIMES)
    for c in range(n_classes):
        count = load_float(times, c)
        store_single(row, c, np.float32(weight_at(row, c) * (count / (count + NOVELTY))))


@kernel
def to_lists(arrays, params, n_features, n_classes):
    """Make connections of the heaviest weights of each feature; the rows are all zero afterwards."""
    memory = memory_of(arrays)
    most = np.int64(most_slots(memory, params))
    steps, longest = load_word(memory.counters, ROW_STEPS), load_word(memory.counters, LONGEST)
    for feature in range(n_features):
        row = row_of(memory, feature)
        calm_row(memory, row, n_classes)
        length = np.uint64(heaviest(arrays, params, row, n_classes, most))
        size = size_for(length, False)
        block = reserve(memory, size) if length else U0
        for at in range(length):
            class_id = np.uint64(arrays.touched[at])
            weight = weight_at(row, class_id)
            store_word(memory.arena, block + at, weighted_record(class_id, weight, load_float(steps, feature)))
        store_word(memory.headers, feature * U2, make_header(block, length, size, U0))
        add_to(memory, N_CONNECTIONS, length)
        longest = max(longest, length)
        mark_dirty(memory, feature)
    store_word(memory.counters, LONGEST, longest)
    clear_rows(memory, n_features, n_classes)


@kernel
def clear_rows(memory, n_features, n_classes):
    """Make all that is in rows zero."""
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


@kernel
def lacks_rows(memory, params, ids, class_ids):
    """Whether rows must grow, or be there, before an instance is learned; counted or not."""
    n_features, n_classes = size_with(memory, ids, class_ids)
    if not are_few(params, n_features, n_classes):
        return False
    form = load_word(memory.counters, FORM) | next_form(memory, params, n_features, n_classes, True)
    has_them = n_features <= load_word(memory.counters, CAPACITY) and n_classes <= load_word(memory.counters, STRIDE)
    return form == ROWS and not has_them


@kernel
def is_leaving(memory, params, ids, class_ids):
    """Whether an instance makes lists of rows, if it is counted."""
    n_features, n_classes = size_with(memory, ids, class_ids)
    in_rows = load_word(memory.counters, FORM) == ROWS
    return in_rows and next_form(memory, params, n_features, n_classes, True) == LISTS


@kernel
def longest_list(memory, params):
    """A bound of the connections that a feature has after rows became lists."""
    return min(most_slots(memory, params), load_word(memory.counters, N_CLASSES))


@kernel
def units_as_lists(memory, params):
    """A bound of the arena units that ``to_lists`` takes: all as long as may be, half of the cache lines skipped."""
    units = UNITS[size_for(longest_list(memory, params), False)]
    return load_word(memory.counters, N_FEATURES) * (units + min(units, LINE))
