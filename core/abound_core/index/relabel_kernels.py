"""Moves of connections from classes to others, when labels are merged or split.

With ``fsu`` the count of a connection, times the part of the target, is added to that of the target like an
observation, but for the total. With ``sls`` the largest weight in size is kept, and step sums are added. The weights
are not, because learning leaves a wrong class alone that scores .3 less than the true one: together two of them would
score more.
"""

import numpy as np

from abound_core.index.fsu_kernels import find_narrow, store_update, update_connection
from abound_core.index.layout_kernels import (
    CLASS_MASK,
    LONGEST,
    MAX_LENGTH,
    N_CONNECTIONS,
    N_FEATURES,
    UNITS,
    USED,
    WIDE_FLAG,
    add_to,
    block_of,
    by_rule,
    class_of,
    first_id,
    length_of,
    make_header,
    mark_dirty,
    memory_of,
    size_of,
)
from abound_core.index.learning_kernels import PADDING, most_units, most_units_in_lists
from abound_core.index.sls_kernels import insert, most_slots, steps_of, weight_of, weighted_record
from abound_core.index.votes_kernels import connection
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import U0, U1, U2, load_float, load_id, load_word, store_id, store_word


@kernel
def count_connections(arrays, first, end, counts):
    """Add the connections of features ``first`` to ``end`` to the ``counts`` of their classes (int64)."""
    memory = memory_of(arrays)
    for feature in range(np.uint64(first), np.uint64(end)):
        header = load_word(memory.headers, feature * U2)
        for at in range(length_of(header)):
            counts[connection(memory, header, at)[0]] += 1


@inlined
def read_count(memory, header, at):
    class_id, count = connection(memory, header, at)
    return np.uint64(class_id), count, 0.0


@inlined
def read_weight(memory, header, at):
    record = load_word(memory.arena, block_of(header) + at)
    return class_of(record), weight_of(record), steps_of(record)


@inner
def add_count(memory, params, header, total, class_id, count, steps, most):
    return update_connection(memory, params, header, max(total - count, 0.0), count, class_id, block_of(header))


@inner
def add_weight(memory, params, header, total, class_id, weight, steps, most):
    first, end = block_of(header), block_of(header) + length_of(header)
    at = find_narrow(memory.arena, first, end, class_id)
    if at == end:
        return insert(memory, header, weighted_record(class_id, weight, steps), most), total
    other = load_word(memory.arena, at)
    weight = weight if abs(weight) > abs(weight_of(other)) else weight_of(other)
    store_word(memory.arena, at, weighted_record(class_id, weight, steps + steps_of(other)))
    return header, total


@inlined
def copy_connection(memory, header, at, to):
    first, ids = block_of(header), first_id(header)
    store_word(memory.arena, first + to, load_word(memory.arena, first + at))
    if header & WIDE_FLAG:
        store_id(memory.arena, ids + to, load_id(memory.arena, ids + at))


@kernel
def move_connections(arrays, params, flows, first):
    """Move the connections of features from ``first`` on.

    Parameters
    ----------
    flows : tuple of int64, int64, float64 arrays
        For each class where its targets begin, with the end of the last one; the targets; and their parts. A class
        without targets does not move.

    Returns
    -------
    feature, units : int
        The feature that needs so many units of free space in the arena; units 0: all have moved.
    """
    memory = memory_of(arrays)
    starts, targets, parts = flows
    read = by_rule(params, read_count, read_weight)
    add = by_rule(params, add_count, add_weight)
    moving = np.empty(np.int64(MAX_LENGTH) + 1, np.int64)
    values, steps = np.empty(len(moving)), np.empty(len(moving))
    for feature in range(np.uint64(first), load_word(memory.counters, N_FEATURES)):
        before, total = load_word(memory.headers, feature * U2), load_float(memory.headers, feature * U2 + U1)
        length, size, n, m = length_of(before), size_of(before), 0, U0
        for at in range(length):
            moving[n], values[n], steps[n] = read(memory, before, at)
            more = np.uint64(starts[moving[n] + 1] - starts[moving[n]])
            n, m = n + np.int64(more > U0), m + more
        if n == 0:
            continue
        most = max(most_slots(memory, params), length)
        units = most_units_in_lists(size, length, m, most) if params.squares else most_units(size, length, m)
        units += UNITS[size] + PADDING  # of a block that shrinks
        if units > memory.n_units - load_word(memory.counters, USED):
            return np.int64(feature), np.int64(units)
        left = U0
        for at in range(length):
            class_id = np.int64(read(memory, before, at)[0])
            if starts[class_id] == starts[class_id + 1]:
                copy_connection(memory, before, at, left)
                left += U1
        header = make_header(block_of(before), left, size, before)
        for i in range(n):
            for j in range(starts[moving[i]], starts[moving[i] + 1]):
                own, class_id = values[i] if params.squares else values[i] * parts[j], np.uint64(targets[j])
                if not params.squares or class_id <= CLASS_MASK:
                    header, total = add(memory, params, header, total, class_id, own, steps[i], most)
        mark_dirty(memory, feature)
        add_to(memory, N_CONNECTIONS, store_update(memory, feature, before, header, total))
        store_word(memory.counters, LONGEST, max(load_word(memory.counters, LONGEST), length_of(header)))
    return np.int64(load_word(memory.counters, N_FEATURES)), 0
