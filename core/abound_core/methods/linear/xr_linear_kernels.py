"""Beam search in trees of linear classifiers (``abound_core.methods.linear.xr_linear``)."""

import numpy as np

from abound_core.numba.decorators import inlined, kernel
from abound_core.numba.top_k import comes_before, keep_best, offer, sort_kept


@inlined
def add_scores(feature, value, node, tree, scores):
    """Add one feature's part to the scores of the children of a node, if a child has a weight for it."""
    feature_starts, features, child_starts, starts, slots, weights = tree
    low, end = feature_starts[node], feature_starts[node + 1]
    high = end
    while low < high:
        middle = (low + high) // 2
        if features[middle] < feature:
            low = middle + 1
        else:
            high = middle
    if low < end and features[low] == feature:
        for at in range(starts[low], starts[low + 1]):
            scores[slots[at] - child_starts[node]] += np.float64(weights[at]) * value


@kernel
def rank_rows(rows, bias, roots, tree, targets, n_labels, beam, ids_out, scores_out):
    """Rank the labels of each row; return their numbers, int64, shape (m,).

    A child's log chance is that of its node minus max(0, 1 - s)^2, s its score. Of the nodes of a level, the ``beam``
    best are searched. The chance of a label is its mean over the trees.

    Parameters
    ----------
    rows : (int32 or int64, int32, float32), compressed rows, shape (m, d)
    bias : int
        d, the number of the feature that every row has with the value 1.
    roots : int64, shape (t,)
        A node of each tree.
    tree : (int64, int32, int64, int64, int32, float32)
        Node i has the features ``features[feature_starts[i]:feature_starts[i + 1]]``, ascending, and the children from
        ``child_starts[i]`` on; feature place j has the weights from ``starts[j]`` on, of the children in ``slots``.
    targets : int32, shape (s,)
        Each child's label, or n_labels + its node.
    ids_out, scores_out : int32, float64, shape (m, k)
        Written: best first, equal scores by label id.
    """
    row_starts, row_features, values = rows
    child_starts = tree[2]
    scores = np.empty(np.diff(child_starts).max())
    chances, touched = np.zeros(n_labels), np.empty(n_labels, np.int32)
    nodes, logs = np.empty(beam, np.int32), np.empty(beam)
    next_nodes, next_logs = np.empty(beam, np.int32), np.empty(beam)
    counts, k = np.zeros(len(row_starts) - 1, np.int64), ids_out.shape[1]
    for row in range(len(row_starts) - 1):
        n_touched = 0
        for root in roots:
            nodes[0], logs[0] = root, 0.0
            n_nodes = 1
            while n_nodes > 0:
                n_next = 0
                for place in range(n_nodes):
                    node = np.int64(nodes[place])
                    first, end = child_starts[node], child_starts[node + 1]
                    scores[: end - first] = 0.0
                    add_scores(bias, 1.0, node, tree, scores)
                    for at in range(row_starts[row], row_starts[row + 1]):
                        add_scores(row_features[at], np.float64(values[at]), node, tree, scores)
                    for slot in range(first, end):
                        log = logs[place] - max(0.0, 1.0 - scores[slot - first]) ** 2
                        target = targets[slot]
                        if target < n_labels:
                            if chances[target] == 0.0:
                                touched[n_touched] = target
                                n_touched += 1
                            chances[target] += max(np.exp(log), 1e-300) / len(roots)
                        elif n_next < beam or comes_before(log, target, next_logs[n_next - 1], next_nodes[n_next - 1]):
                            n_next = keep_best(log, np.int32(target), next_nodes, next_logs, n_next, beam)
                for place in range(n_next):
                    nodes[place], logs[place] = next_nodes[place] - n_labels, next_logs[place]
                n_nodes = n_next
        n_kept = 0
        for i in range(n_touched):
            if k > 0:
                n_kept = offer(touched[i], chances[touched[i]], ids_out[row], scores_out[row], n_kept)
            chances[touched[i]] = 0.0
        sort_kept(ids_out[row], scores_out[row], n_kept)
        counts[row] = n_kept
    return counts
