"""The best labels of rows of scores."""

import numpy as np

from abound.core.kernels.index.votes import comes_before, make_heap, sift_down, sort_heap
from abound.core.kernels.numba import kernel


@kernel
def top_of_row(scores, ids_out, scores_out):
    """The best labels of one row, best first, equal scores by label id.

    Parameters
    ----------
    scores : float, shape (n_labels,)
        -inf for a label that must not be ranked.
    ids_out, scores_out : int32, float64, shape (k,)
        Written.

    Returns
    -------
    n_ranked : int
        At most k.
    """
    n_kept, k = 0, len(ids_out)
    for label in range(len(scores)):
        score, label_id = np.float64(scores[label]), np.int32(label)
        if score == -np.inf or k == 0:
            continue
        if n_kept < k:
            ids_out[n_kept], scores_out[n_kept] = label_id, score
            n_kept += 1
            if n_kept == k:
                make_heap(ids_out, scores_out, k)
        elif comes_before(score, label_id, scores_out[0], ids_out[0]):
            ids_out[0], scores_out[0] = label_id, score
            sift_down(ids_out, scores_out, 0, k)
    if n_kept < k:
        make_heap(ids_out, scores_out, n_kept)
    sort_heap(ids_out, scores_out, n_kept)
    return n_kept


@kernel
def top_of_rows(scores, ids_out, scores_out, counts_out):
    """``top_of_row`` for each row.

    Parameters
    ----------
    scores : float, shape (n, n_labels)
    ids_out, scores_out : int32, float64, shape (n, k)
    counts_out : int64, shape (n,)
    """
    for row in range(scores.shape[0]):
        counts_out[row] = top_of_row(scores[row], ids_out[row], scores_out[row])
