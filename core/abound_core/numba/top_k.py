"""The best classes: by heap, by insertion, and of rows of scores."""

from typing import Any, NamedTuple

import numpy as np

from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import I0


@inner
def top_of_row(scores, ids_out, scores_out):
    """Find the best labels of one row, best first, equal scores by label id; return their number, at most k.

    A label with -inf is not ranked. ``ids_out`` and ``scores_out``, shape (k,), are written.
    """
    n_kept = I0
    for label in range(len(scores)):
        score = np.float64(scores[label])
        if score != -np.inf and len(ids_out) > 0:
            n_kept = offer(np.int32(label), score, ids_out, scores_out, n_kept)
    sort_kept(ids_out, scores_out, n_kept)
    return n_kept


@kernel
def top_of_rows(scores, ids_out, scores_out, counts_out):
    """Run ``top_of_row`` for each row."""
    for row in range(scores.shape[0]):
        counts_out[row] = top_of_row(scores[row], ids_out[row], scores_out[row])


@inlined
def comes_before(score, class_id, other_score, other_id):
    """Return whether one class is ranked before another: the higher score, then the smaller id."""
    return score > other_score or (score == other_score and class_id < other_id)


@inlined
def offer(class_id, score, ids, scores, n_kept):
    """Offer a class to the heap of the best ``len(ids)``, at least one; return the new number of classes in it.

    The last-ranked class is on top of a full heap; a heap that is not full has no order.
    """
    most = len(ids)
    if n_kept < most:
        ids[n_kept], scores[n_kept] = class_id, score
        n_kept += 1
        if n_kept == most:
            make_heap(ids, scores, most)
    elif comes_before(score, class_id, scores[0], ids[0]):
        ids[0], scores[0] = class_id, score
        sift_down(ids, scores, I0, most)
    return n_kept


@inner
def sort_kept(ids, scores, n_kept):
    """Sort the classes that ``offer`` kept into a ranking, best first."""
    if n_kept < len(ids):
        make_heap(ids, scores, n_kept)
    sort_heap(ids, scores, n_kept)


@inner
def keep_best(score, class_id, ids_out, scores_out, n_kept, most):
    """Insert into the sorted ``n_kept`` best, dropping the last if there are ``most``; return the new ``n_kept``."""
    at = min(n_kept, most - 1)
    while at > 0 and comes_before(score, class_id, scores_out[at - 1], ids_out[at - 1]):
        scores_out[at] = scores_out[at - 1]
        ids_out[at] = ids_out[at - 1]
        at -= 1
    scores_out[at] = score
    ids_out[at] = class_id
    return min(n_kept + 1, most)


N_BEST = 5


class Best(NamedTuple):
    """The ``N_BEST`` best classes with a score above 0, best first. Unused places have the id -1 and the score 0."""

    class_ids: Any
    scores: Any


def new_best() -> Best:
    return Best(np.full(N_BEST, -1, np.int32), np.zeros(N_BEST))


class First(NamedTuple):
    """The best class alone, as ``Best``; ``alone`` tells the two apart when kernels are compiled."""

    class_ids: Any
    scores: Any
    alone: bool


def new_first() -> First:
    return First(np.full(1, -1, np.int32), np.zeros(1), True)


@inlined
def n_places(best):
    return N_BEST if len(best) == 2 else 1


@inlined
def empty(best):
    for i in range(n_places(best)):
        best.class_ids[i], best.scores[i] = -1, 0.0


@inlined
def note_score(best, class_id, score):
    """Insert a class into ``best``, in pointers, if it is one of the best; do nothing if ``best`` is None."""
    if best is not None:
        n = n_places(best)
        if comes_before(score, class_id, best.scores[n - 1], best.class_ids[n - 1]):
            keep_best(score, class_id, best.class_ids, best.scores, n, n)


@inner
def sift_down(ids, scores, top, end):
    """Restore the heap order, last-ranked class on top, below place ``top`` of ``ids[:end]``, ``scores[:end]``."""
    score, class_id = scores[top], ids[top]
    while True:
        child = 2 * top + 1
        if child >= end:
            break
        if child + 1 < end and comes_before(scores[child], ids[child], scores[child + 1], ids[child + 1]):
            child += 1
        if not comes_before(score, class_id, scores[child], ids[child]):
            break
        scores[top], ids[top] = scores[child], ids[child]
        top = child
    scores[top], ids[top] = score, class_id


@inner
def make_heap(ids, scores, n):
    """Put ``n`` classes into heap order, the last-ranked on top."""
    for top in range(n // 2 - 1, -1, -1):
        sift_down(ids, scores, top, n)


@inner
def sort_heap(ids, scores, n):
    for end in range(n - 1, 0, -1):
        ids[0], ids[end] = ids[end], ids[0]
        scores[0], scores[end] = scores[end], scores[0]
        sift_down(ids, scores, I0, end)
