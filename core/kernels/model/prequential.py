"""Counts of the ranks that true labels had before they were learned."""

import numpy as np

from abound.core.kernels.intrinsics import I0, inner, kernel

LEARNED, UPDATED, HITS_AT_1, HITS_AT_5, LABELS = range(5)
"""Columns of the counts. LABELS counts single labels and is used in row 0 only."""

N_COUNTS = 5
N_GROUPS = 3
GROUP_BITS = 2

TORSO_FROM = 10
HEAD_FROM = 100


@kernel
def count_ranks(score, label_counts, class_ids, ranks, updated):
    """Count one learned instance, in place.

    Parameters
    ----------
    score : PrequentialArrays
    label_counts : int64 array, shape (>= n_classes,)
        Times each class was learned before this instance; not changed here.
    class_ids : int32 array, shape (m,)
        The true classes.
    ranks : int32 array, shape (m,)
        The rank of each before learning, from 1; 0 if not retrieved.
    updated : bool
        Whether the index changed.

    Returns
    -------
    best : int
        The rank of the best true class, 0 if none was retrieved.
    """
    best = I0
    for j in range(class_ids.shape[0]):
        rank = ranks[j]
        if rank > 0 and (best == 0 or rank < best):
            best = rank
        seen = label_counts[class_ids[j]]
        group = 2 if seen >= HEAD_FROM else (1 if seen >= TORSO_FROM else 0)
        score.label_window[score.counts[0, LABELS] % score.label_window.shape[0]] = (rank << GROUP_BITS) | group
        score.counts[0, LABELS] += 1
        _count(score, np.int64(group + 1), np.int64(rank))
    score.window[score.counts[0, LEARNED] % score.window.shape[0]] = best
    _count(score, I0, best)
    if updated:
        score.counts[0, UPDATED] += 1
    if score.counts[0, LEARNED] % score.stride[0] == 0:
        _add_point(score)
    return best


@inner
def _add_point(score):
    """Append the present counts to the trace; if the trace is full, first drop every second point."""
    point = score.counts[0, LEARNED] // score.stride[0] - 1
    if point == len(score.trace_counts):
        half = point // 2
        for i in range(half):
            _put_point(score, i, score.trace_counts[2 * i + 1], score.trace_reciprocal[2 * i + 1])
        for i in range(half, point):
            for row in range(score.trace_reciprocal.shape[1]):
                score.trace_reciprocal[i, row] = 0.0
                for at in range(N_COUNTS):
                    score.trace_counts[i, row, at] = 0
        score.stride[0] *= 2
        if score.counts[0, LEARNED] % score.stride[0] != 0:
            return
        point = half
    _put_point(score, point, score.counts, score.reciprocal)


@inner
def _put_point(score, point, counts, reciprocal):
    """Write a point of the trace. Uses loops, because assignments of whole arrays take seconds to compile."""
    for row in range(len(reciprocal)):
        score.trace_reciprocal[point, row] = reciprocal[row]
        for at in range(N_COUNTS):
            score.trace_counts[point, row, at] = counts[row, at]


@inner
def _count(score, row, rank):
    score.counts[row, LEARNED] += 1
    if rank > 0:
        score.reciprocal[row] += 1.0 / rank
        if rank == 1:
            score.counts[row, HITS_AT_1] += 1
        if rank <= 5:
            score.counts[row, HITS_AT_5] += 1
