"""Counts of the ranks that true labels had before they were learned."""

from typing import Any, NamedTuple

import numpy as np

from abound_core.numba.decorators import inner, kernel, unless
from abound_core.numba.intrinsics import I0, pointer

LEARNED, UPDATED, HITS_AT_1, HITS_AT_5, LABELS = range(5)
"""Columns of the counts. LABELS counts single labels and is used in row 0 only."""

N_COUNTS = 5
N_GROUPS = 3
N_ROWS = N_GROUPS + 1
N_CELLS = N_ROWS * N_COUNTS
GROUP_BITS = 2

TORSO_FROM = 10
HEAD_FROM = 100


class ScorePointers(NamedTuple):
    """The arrays of ``PrequentialArrays`` as pointers, which cost nothing to pass to a function, and their sizes."""

    counts: Any
    reciprocal: Any
    window: Any
    label_window: Any
    label_ids: Any
    label_answers: Any
    trace_counts: Any
    trace_reciprocal: Any
    stride: Any
    trace_times: Any
    now: Any
    n_window: int
    n_points: int


@unless(ScorePointers)
def score_pointers(score):
    """Return the pointers of ``PrequentialArrays``, valid as long as the caller holds the arrays."""
    return ScorePointers(
        pointer(score.counts),
        pointer(score.reciprocal),
        pointer(score.window),
        pointer(score.label_window),
        pointer(score.label_ids),
        pointer(score.label_answers),
        pointer(score.trace_counts),
        pointer(score.trace_reciprocal),
        pointer(score.stride),
        pointer(score.trace_times),
        pointer(score.now),
        len(score.window),
        len(score.trace_counts),
    )


@kernel
def count_ranks(score, label_counts, class_ids, ranks, updated, first):
    """Count one learned instance, in place; return the rank of the best true class, 0 if none was retrieved.

    Parameters
    ----------
    label_counts : int64 array, shape (>= n_classes,)
        Times each class was learned before this instance; not changed here.
    class_ids, ranks : int32 array, shape (m,)
        The true classes, and the rank of each before learning, from 1; 0 if not retrieved.
    first : int64
        The class that was ranked first, -1 if there was none.
    """
    score, best = score_pointers(score), I0
    for j in range(class_ids.shape[0]):
        first = -1 if class_ids[j] == first else first
    for j in range(class_ids.shape[0]):
        rank = ranks[j]
        if rank > 0 and (best == 0 or rank < best):
            best = rank
        seen = label_counts[class_ids[j]]
        group = 2 if seen >= HEAD_FROM else (1 if seen >= TORSO_FROM else 0)
        at = score.counts[LABELS] % score.n_window
        score.label_window[at] = (rank << GROUP_BITS) | group
        score.label_ids[at], score.label_answers[at] = class_ids[j], first
        score.counts[LABELS] += 1
        _count(score, np.int64(group + 1), np.int64(rank))
    score.window[score.counts[LEARNED] % score.n_window] = best
    _count(score, I0, best)
    if updated:
        score.counts[UPDATED] += 1
    if score.counts[LEARNED] % score.stride[0] == 0:
        _add_point(score)
    return best


@inner
def _add_point(score):
    """Append the present counts to the trace; if the trace is full, first drop every second point."""
    point = score.counts[LEARNED] // score.stride[0] - 1
    if point == score.n_points:
        half = point // 2
        for i in range(half):
            _copy_point(score, i, 2 * i + 1)
        for at in range(half * N_ROWS, point * N_ROWS):
            score.trace_reciprocal[at] = 0.0
        for at in range(half * N_CELLS, point * N_CELLS):
            score.trace_counts[at] = 0
        for at in range(half, point):
            score.trace_times[at] = 0
        score.stride[0] *= 2
        if score.counts[LEARNED] % score.stride[0] != 0:
            return
        point = half
    for row in range(N_ROWS):
        score.trace_reciprocal[point * N_ROWS + row] = score.reciprocal[row]
    for at in range(N_CELLS):
        score.trace_counts[point * N_CELLS + at] = score.counts[at]
    score.trace_times[point] = score.now[0]


@inner
def _copy_point(score, to, point):
    for row in range(N_ROWS):
        score.trace_reciprocal[to * N_ROWS + row] = score.trace_reciprocal[point * N_ROWS + row]
    for at in range(N_CELLS):
        score.trace_counts[to * N_CELLS + at] = score.trace_counts[point * N_CELLS + at]
    score.trace_times[to] = score.trace_times[point]


@inner
def _count(score, row, rank):
    first = row * N_COUNTS
    score.counts[first + LEARNED] += 1
    if rank > 0:
        score.reciprocal[row] += 1.0 / rank
        if rank == 1:
            score.counts[first + HITS_AT_1] += 1
        if rank <= 5:
            score.counts[first + HITS_AT_5] += 1
