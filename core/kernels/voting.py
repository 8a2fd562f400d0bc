"""Labels by the votes of the nearest neighbours of an instance: f(x) = sum of Sim(x, x_i)^alpha y_i."""

import numpy as np

from core.kernels.inverted import SCALE, offer, scan, sort_nearest
from core.kernels.machine import kernel
from core.kernels.pruning import EFFORT, search_pruned
from core.kernels.ranking import make_heap, sort_heap


@kernel
def vote(ids, sims, n_kept, alpha, label_starts, label_ids, scores):
    """Add the votes of the neighbours, nearest first, to the scores of their labels.

    Parameters
    ----------
    scores : float64, shape (L,)
        Zero before; the caller takes them out and zeroes them again.
    """
    for i in range(n_kept):
        weight = 1.0 if alpha == 0.0 else sims[i] if alpha == 1.0 else sims[i] ** alpha
        for at in range(np.uint64(label_starts[ids[i]]), np.uint64(label_starts[ids[i] + 1])):
            scores[np.uint64(label_ids[at])] += weight


@kernel
def take_labels(ids, n_kept, label_starts, label_ids, scores, ids_out, scores_out):
    """The best labels of the neighbours, best first, equal scores by label id; zeroes the scores. Their number."""
    n, k = 0, len(ids_out)
    for i in range(n_kept):
        for at in range(np.uint64(label_starts[ids[i]]), np.uint64(label_starts[ids[i] + 1])):
            label = label_ids[at]
            score = scores[np.uint64(label)]
            if score == 0.0 or k == 0:
                continue
            scores[np.uint64(label)] = 0.0
            n = offer(label, score, ids_out, scores_out, n)
    if n < k:
        make_heap(ids_out, scores_out, n)
    sort_heap(ids_out, scores_out, n)
    return n


@kernel
def rank_rows(lists, search, queries, labels, alpha_beta, prune, ids_out, scores_out):
    """Rank the labels for the rows of a matrix.

    Parameters
    ----------
    queries : (int32 or int64, int32, float32), shapes (m + 1,), (nnz,), (nnz,)
        The rows in compressed form.
    labels : (int32 or int64, int32, float64), shapes (n + 1,), (assertions,), (L,)
        Labels of the instances, and scores, zero in between.
    alpha_beta : (float, float)
    prune : bool
        Whether long lists may be left out; changes nothing else than the time.
    ids_out, scores_out : int32, float64, shape (m, k)
        Written, as far as there are labels.

    Returns
    -------
    counts : int64, shape (m,)
        Labels of each row.
    """
    starts, columns, values = queries
    label_starts, label_ids, scores = labels
    alpha, beta = alpha_beta
    counts = np.zeros(len(starts) - 1, np.int64)
    for row in range(len(starts) - 1):
        features = columns[starts[row] : starts[row + 1]]
        factors = np.empty(len(features), np.uint64)
        for i in range(len(features)):
            factors[i] = np.uint64(np.float64(values[starts[row] + i]) * SCALE + 0.5)
        if prune and (beta == 0.0 or beta == 1.0):
            n = search_pruned(lists, search, features, factors, beta, EFFORT)
        else:
            n = scan(lists, search, features, factors, beta)
        sort_nearest(search.ids, search.sims, n)
        vote(search.ids, search.sims, n, alpha, label_starts, label_ids, scores)
        counts[row] = take_labels(search.ids, n, label_starts, label_ids, scores, ids_out[row], scores_out[row])
    return counts


@kernel
def vote_rows(ids, sims, counts, labels, alpha, ids_out, scores_out):
    """Rank the labels of the neighbours of each row.

    Parameters
    ----------
    ids, sims, counts : int32, float64, int64, shape (m, s), (m, s), (m,)
        The neighbours; one that stands twice votes twice.
    labels : (int32 or int64, int32, float64)
        As of ``rank_rows``.
    ids_out, scores_out : int32, float64, shape (m, k)
        Written, as far as there are labels.

    Returns
    -------
    counts : int64, shape (m,)
    """
    label_starts, label_ids, scores = labels
    ranked = np.zeros(len(ids), np.int64)
    for row in range(len(ids)):
        n = counts[row]
        vote(ids[row], sims[row], n, alpha, label_starts, label_ids, scores)
        ranked[row] = take_labels(ids[row], n, label_starts, label_ids, scores, ids_out[row], scores_out[row])
    return ranked
