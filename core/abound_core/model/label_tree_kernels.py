"""A walk through a forest of labels, given by the parent of each."""

import numpy as np

from abound_core.numba.decorators import kernel


@kernel
def walk(parents, order, first, end):
    """Number a forest depth first, children by id; return how many nodes were reached: all, unless there is a cycle.

    Parameters
    ----------
    parents : int32 array, shape (n,)
        -1 for a root.
    order, first, end : int32 array, shape (n,)
        Written: the ids in the order of the walk. ``order[first[i] : end[i]]`` are ``i`` and all below it.
    """
    n, at = len(parents), 0
    child, sibling = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    for i in range(n - 1, -1, -1):
        if parents[i] >= 0:
            sibling[i], child[parents[i]] = child[parents[i]], i
    for root in range(n):
        node = root if parents[root] < 0 else -1
        while node >= 0:
            order[at], first[node] = node, at
            at += 1
            if child[node] >= 0:
                node = child[node]
                continue
            end[node] = at
            while node >= 0 and sibling[node] < 0:
                node = parents[node]
                if node >= 0:
                    end[node] = at
            if node >= 0:
                node = sibling[node]
    return at
