"""Scores of labels by sparse weights: each active feature votes for the labels for which it has a weight."""

import numpy as np

from abound_core.methods.neighbors.projection_kernels import splitmix64
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.top_k import offer, sort_kept

_RETRIEVED, _TRUE = np.uint8(1), np.uint8(2)
_STEP, _S11 = np.uint64(0x9E3779B97F4A7C15), np.uint64(11)


@kernel
def rank_rows(rows, weights, boolean, n_labels, ids_out, scores_out):
    """Rank the labels of each row by s_l = sum of x_f w_fl; return their numbers, int64, shape (m,).

    Parameters
    ----------
    rows, weights : (int32 or int64, int32, float32)
        Compressed rows: the instances, shape (m, d), and the weights, shape (d, n_labels), >= 0.
    boolean : bool
        Whether every active feature counts as 1.
    ids_out, scores_out : int32, float64, shape (m, k)
        Written: best first, equal scores by label id. A label without a vote above 0 is not ranked.
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
        sort_kept(ids_out[row], scores_out[row], n_kept)
        counts[row] = n_kept
    return counts


@kernel
def rank_retrieved(rows, edges, weights, n_labels, ids_out, scores_out):
    """Rank the labels that an index retrieves by the scores of their classifiers, s_l = sum of x_f w_fl.

    As ``rank_rows``. ``edges`` are compressed rows of the index, shape (d, n_labels): an instance retrieves the labels
    that have an edge from an active feature.
    """
    starts, features, values = rows
    weight_starts, weight_labels, weight_values = weights
    edge_starts, labels = edges
    scores, marks = np.zeros(n_labels), np.zeros(n_labels, np.uint8)
    retrieved = np.empty(n_labels + 1, np.int32)
    counts, k = np.zeros(len(starts) - 1, np.int64), ids_out.shape[1]
    for row in range(len(starts) - 1):
        n = 0
        for i in range(starts[row], starts[row + 1]):
            for at in range(edge_starts[features[i]], edge_starts[features[i] + 1]):
                retrieved[n] = labels[at]
                n += marks[labels[at]] == 0
                marks[labels[at]] = _RETRIEVED
        for i in range(starts[row], starts[row + 1]):
            for at in range(weight_starts[features[i]], weight_starts[features[i] + 1]):
                if marks[weight_labels[at]]:
                    scores[weight_labels[at]] += np.float64(values[i]) * np.float64(weight_values[at])
        n_kept = 0
        for i in range(n):
            if k > 0:
                n_kept = offer(retrieved[i], scores[retrieved[i]], ids_out[row], scores_out[row], n_kept)
            scores[retrieved[i]] = 0.0
            marks[retrieved[i]] = 0
        sort_kept(ids_out[row], scores_out[row], n_kept)
        counts[row] = n_kept
    return counts


@inlined
def first_weight(seed, place):
    """Return a weight in [-1, 1), not 0, determined by the seed and the place."""
    bits = splitmix64(seed + np.uint64(place) * _STEP) >> _S11
    return np.float32((np.float64(bits) + 0.5) * 2.0**-52 - 1.0)


@inlined
def learn_class(features, values, weights, first, is_true, seed):
    """Update the perceptrons of one class for one instance, in place; return the number of wrong ones.

    ``weights`` (float32, shape (d, members)) are 0 before their first update, and begin at random in [-1, 1] with it.
    ``first`` is the offset of the class in the seeds of its weights.
    """
    n_wrong = 0
    for member in range(weights.shape[1]):
        score = np.float32(0.0)
        for i in range(len(features)):
            score += weights[features[i], member] * values[i]
        if (score > 0.0) == is_true:
            continue
        n_wrong += 1
        for i in range(len(features)):
            own = weights[features[i], member]
            if own == 0.0:
                own = first_weight(seed, first + np.int64(features[i]) * weights.shape[1] + member)
            weights[features[i], member] = own + (values[i] if is_true else -values[i])
    return n_wrong


@inner
def learn_retrieved(features, values, retrieved, true_labels, marks, classifiers, seed):
    """Update the perceptrons of the retrieved and the true classes in place; return the number of wrong ones.

    Parameters
    ----------
    features, values : int32, float32, shape (l,)
    retrieved, true_labels : int32, shape (n,), (m,)
    marks : uint8, shape (L,)
        1 for a retrieved class, plus 2 for a true one.
    classifiers : float32, shape (L, d, members)
    """
    n_wrong, size = 0, classifiers.shape[1] * classifiers.shape[2]
    for label in retrieved:
        is_true = marks[label] >= _TRUE
        n_wrong += learn_class(features, values, classifiers[label], label * size, is_true, seed)
    for label in true_labels:
        if marks[label] == _TRUE:
            n_wrong += learn_class(features, values, classifiers[label], label * size, True, seed)
    return n_wrong


@kernel
def learn_unweighted(rows, truth, edges, weights, bounds, marks, classifiers, seed):
    """Run one pass over the instances, updating in place the weights that decide which edges exist.

    Parameters
    ----------
    rows, truth : (int32 or int64, int32, float32 or int8)
        Compressed rows: the instances, shape (m, d), and their labels, shape (m, L).
    edges : (int32 or int64, int32)
        Compressed rows, shape (d, L): all possible edges.
    weights : float32, one per edge
        An edge with a weight of at least ``edge`` is in the index.
    bounds : (int, float32)
        Number of labels that may be retrieved wrongly; ``edge``.
    marks : uint8, shape (L,)
        Zero between calls.
    classifiers : float32, shape (L, d, members)
        Perceptrons of each class, which learn the instances that retrieve the class or have it as a true one.
        Shape (0, 0, 0): none.
    seed : uint64
        Seed of the initial weights of perceptrons.

    Returns
    -------
    n_updated : int
        Instances that updated the index, plus perceptrons with a mistake.
    """
    starts, features, values = rows
    tolerance, edge = bounds
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
        if len(classifiers):
            active = slice(starts[row], starts[row + 1])
            true = true_labels[true_starts[row] : true_starts[row + 1]]
            n_updated += learn_retrieved(
                features[active], values[active], retrieved[:n], true, marks, classifiers, seed
            )
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
