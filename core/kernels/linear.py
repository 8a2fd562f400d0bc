"""Scores of labels by sparse weights: each active feature votes for the labels that it has a weight for."""

import numpy as np

from core.kernels.inverted import offer
from core.kernels.machine import kernel
from core.kernels.ranking import make_heap, sort_heap


@kernel
def rank_rows(rows, weights, boolean, n_labels, ids_out, scores_out):
    """Rank the labels of each row by s_l = sum of x_f w_fl.

    Parameters
    ----------
    rows, weights : (int32 or int64, int32, float32)
        Compressed rows: the instances, shape (m, d), and the weights, shape (d, n_labels), >= 0.
    boolean : bool
        Take every active feature as 1.
    ids_out, scores_out : int32, float64, shape (m, k)
        Written: the best labels of each, best first, equal scores by label id.

    Returns
    -------
    counts : int64, shape (m,)
        Labels of each row; one without a vote above 0 is not ranked.
    """
    starts, features, values = rows
    weight_starts, labels, weight_values = weights
    scores, touched = np.zeros(n_labels), np.empty(n_labels + 1, np.int32)
    counts, k = np.zeros(len(starts) - 1, np.int64), ids_out.shape[1]
    for row in range(len(starts) - 1):
        n_touched = 0
        for i in range(starts[row], starts[row + 1]):
            value = 1.0 if boolean else np.float64(values[i])
            for at in range(weight_starts[features[i]], weight_starts[features[i] + 1]):
                label = labels[at]
                touched[n_touched] = label
                n_touched += scores[label] == 0.0 and weight_values[at] > 0.0
                scores[label] += value * np.float64(weight_values[at])
        n_kept = 0
        for i in range(n_touched):
            if k > 0:
                n_kept = offer(touched[i], scores[touched[i]], ids_out[row], scores_out[row], n_kept)
            scores[touched[i]] = 0.0
        if n_kept < k:
            make_heap(ids_out[row], scores_out[row], n_kept)
        sort_heap(ids_out[row], scores_out[row], n_kept)
        counts[row] = n_kept
    return counts


@kernel
def learn_unweighted(rows, truth, edges, weights, tolerance, edge, marks):
    """Go through instances once and update the weights that decide which edges there are, in place.

    Parameters
    ----------
    rows, truth : (int32 or int64, int32, float32 or int8)
        Compressed rows: the instances, shape (m, d), and their labels, shape (m, L).
    edges : (int32 or int64, int32)
        Compressed rows, shape (d, L): all edges that may ever be.
    weights : float32, of each of these
        One that is at least ``edge`` is in the index.
    tolerance : int
        So many labels may be retrieved wrongly.
    marks : uint8, shape (L,)
        Zero in between.

    Returns
    -------
    n_updated : int
        Instances with an update.
    """
    starts, features, values = rows
    true_starts, true_labels, _ = truth
    edge_starts, labels = edges
    retrieved, n_updated = np.empty(len(marks) + 1, np.int32), 0
    for row in range(len(starts) - 1):
        n = 0
        for i in range(starts[row], starts[row + 1]):
            for at in range(edge_starts[features[i]], edge_starts[features[i] + 1]):
                if weights[at] >= edge and marks[labels[at]] == 0:
                    marks[labels[at]] = 1
                    retrieved[n] = labels[at]
                    n += 1
        missed, wrong = 0, n
        for i in range(true_starts[row], true_starts[row + 1]):
            wrong -= marks[true_labels[i]]
            missed += 1 - marks[true_labels[i]]
            marks[true_labels[i]] += 2
        if missed or wrong > tolerance:
            n_updated += 1
            for i in range(starts[row], starts[row + 1]):
                for at in range(edge_starts[features[i]], edge_starts[features[i] + 1]):
                    mark = marks[labels[at]]
                    if mark >= 2:
                        weights[at] += values[i]
                    elif mark == 1 and wrong > tolerance:
                        weights[at] *= np.float32(0.5)
        for i in range(n):
            marks[retrieved[i]] = 0
        for i in range(true_starts[row], true_starts[row + 1]):
            marks[true_labels[i]] = 0
    return n_updated
