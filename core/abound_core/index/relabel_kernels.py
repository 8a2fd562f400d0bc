"""Moves of connections from classes to others, when labels are merged or split.

Each connection of a class that moves is replaced by one for each of its targets; several of a feature to one target
become one. With ``fsu`` their counts are added, each times the part of the target; then connections below ``w_min`` are
dropped as in learning. With ``sls`` the largest weight in size is kept, and their step sums are added. The weights are
not, because learning leaves a wrong class alone that scores .3 less than the true one: together two of them would
score more. In a list of ``slots`` connections a new one replaces the weakest.
"""

import numpy as np

from abound_core.index.layout_kernels import MAX_LENGTH, U24, length_of, memory_of
from abound_core.index.sls_kernels import STEPS_MASK, STEPS_ONE, slots_of, weight_of, weighted_record
from abound_core.index.votes_kernels import connection
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import U2, load_word
from abound_core.numba.top_k import comes_before


@inlined
def _weakest(weights, first, end):
    place = first
    for at in range(first + 1, end):
        if abs(weights[at]) < abs(weights[place]):
            place = at
    return place


@inner
def _order(class_ids, counts, first, end):
    for i in range(first + 1, end):
        class_id, count, at = class_ids[i], counts[i], i
        while at > first and comes_before(count, class_id, counts[at - 1], class_ids[at - 1]):
            class_ids[at], counts[at] = class_ids[at - 1], counts[at - 1]
            at -= 1
        class_ids[at], counts[at] = class_id, count


@kernel
def count_connections(arrays, first, end, counts):
    """Add the connections of features ``first`` to ``end`` to the ``counts`` of their classes (int64)."""
    memory = memory_of(arrays)
    for feature in range(np.uint64(first), np.uint64(end)):
        header = load_word(memory.headers, feature * U2)
        for at in range(length_of(header)):
            counts[connection(memory, header, at)[0]] += 1


@kernel
def move_counts(lengths, totals, class_ids, counts, flows, w_min, leak, ids_out, counts_out):
    """Move the connections of an exported index with ``fsu``; ``lengths`` and ``totals`` change in place.

    Parameters
    ----------
    flows : tuple of int64, int32, float64 arrays
        For each class where its targets begin, with the end of the last; the targets; and their parts. A class that
        does not move is its own target.
    ids_out, counts_out
        Written, like ``class_ids`` and ``counts``; as long as if no two connections became one.

    Returns
    -------
    n : int
        Number of connections.
    """
    starts, targets, parts = flows
    places, end, n = np.full(len(starts) - 1, -1, np.int64), 0, 0
    for feature in range(len(lengths)):
        at, first, moved = end, n, False
        end += np.int64(lengths[feature])
        while at < end:
            class_id = class_ids[at]
            for j in range(starts[class_id], starts[class_id + 1]):
                target = targets[j]
                moved |= target != class_id
                if first <= places[target] < n:
                    counts_out[places[target]] += counts[at] * parts[j]
                else:
                    places[target], ids_out[n], counts_out[n] = n, target, counts[at] * parts[j]
                    n += 1
            at += 1
        if not moved:
            continue
        _order(ids_out, counts_out, first, n)
        dropped = 0.0
        while n > first and (counts_out[n - 1] / totals[feature] < w_min or n - first > np.int64(MAX_LENGTH)):
            n -= 1
            dropped += counts_out[n]
        lengths[feature] = n - first
        if not leak:
            totals[feature] = max(totals[feature] - dropped, 0.0) if n > first else 0.0
    return n


@kernel
def move_weights(lengths, class_ids, weights, steps, flows, slots, shared, ids_out, weights_out, steps_out):
    """Move the connections of an exported index with ``sls``, as ``move_counts`` does; parts are ignored."""
    starts, targets, _ = flows
    places, end, n = np.full(len(starts) - 1, -1, np.int64), 0, 0
    slots = slots_of(slots, shared, np.uint64(len(lengths)))
    for feature in range(len(lengths)):
        at, first = end, n
        end += np.int64(lengths[feature])
        most = max(np.int64(slots), end - at)
        while at < end:
            for j in range(starts[class_ids[at]], starts[class_ids[at] + 1]):
                target, weight, step = targets[j], np.float64(weights[at]), np.float64(steps[at]) / STEPS_ONE
                place = places[target]
                if first <= place < n and ids_out[place] == target:
                    other = np.float64(weights_out[place])
                    weight = weight if abs(weight) > abs(other) else other
                    step += np.float64(steps_out[place]) / STEPS_ONE
                elif n - first < most:
                    place, n = n, n + 1
                else:
                    place = _weakest(weights_out, first, n)
                record = weighted_record(np.uint64(0), weight, step)
                places[target], ids_out[place] = place, target
                weights_out[place], steps_out[place] = weight_of(record), (record >> U24) & STEPS_MASK
            at += 1
        lengths[feature] = n - first
    return n
