"""Nearest neighbours over inverted lists: Sim(x, x_i) = J(x, x_i)^beta cos(x, x_i), exactly.

A **posting** is a uint64: the number of an instance in the upper half, its value for the feature in the lower, as a
whole multiple of 2^-31. A **sum** is a uint64 an instance: the overlap with the query from bit 40 on, below it the dot
product as a whole multiple of 2^-32. Adding whole numbers gives the same in any order, so that a scan that leaves lists
out can give exactly what a full scan gives.

Equal similarities are ordered by the number of the instance.
"""

from typing import NamedTuple

import numpy as np

from core.kernels.machine import U0, inlined, kernel
from core.kernels.ranking import comes_before, make_heap, sift_down, sort_heap

SCALE = 2.0**31
"""What a value is multiplied by in a posting and in a query."""

HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(30)
OVERLAP = np.uint64(40)
ONE = np.uint64(1 << 40)
DOT = np.uint64((1 << 40) - 1)
UNIT = 2.0**-32
BLOCK = 1024
GROUP = 32


class Lists(NamedTuple):
    """What is searched.

    Attributes
    ----------
    starts : int64, shape (d + 1,)
        Feature f has ``postings[starts[f]:starts[f + 1]]``.
    postings : uint64, shape (nnz,)
        Instances ascend in a list.
    greatest : uint64, shape (d,)
        The greatest value in each list, as in a posting.
    sizes : int32, shape (n,)
        Active features of each instance.
    row_starts : int64, shape (n + 1,)
    rows : uint64, shape (nnz,)
        The same by instance: the feature in the upper half, its value in the lower.
    """

    starts: np.ndarray
    postings: np.ndarray
    greatest: np.ndarray
    sizes: np.ndarray
    row_starts: np.ndarray
    rows: np.ndarray


class Search(NamedTuple):
    """What one thread searches with; ``sums`` is zero in between.

    Attributes
    ----------
    sums : uint64, shape (n,)
    touched : uint32, shape (n + 1,)
    block : float64, shape (BLOCK,)
    order, rest : int64, float64, shape (l,), (2, l + 1)
        For l active features of a query.
    left : uint64, shape (d,)
        The query's values of features whose lists were not added; zero in between.
    ids, sims : int32, float64, shape (S,)
        The neighbours found: after a search in order, nearest first.
    """

    sums: np.ndarray
    touched: np.ndarray
    block: np.ndarray
    order: np.ndarray
    rest: np.ndarray
    left: np.ndarray
    ids: np.ndarray
    sims: np.ndarray


@inlined
def product(value, factor):
    """A summand of the dot product, with the overlap that it means."""
    return ((value * factor) >> SHIFT) + ONE


@inlined
def similarity(total, size, query_size, beta):
    """Sim out of the sum of an instance and the active features of both."""
    overlap = np.float64(np.int64(total >> OVERLAP))
    cosine = np.float64(np.int64(total & DOT)) * UNIT
    if beta == 0.0:
        return cosine
    jaccard = overlap / (query_size + np.float64(size) - overlap)
    return jaccard * cosine if beta == 1.0 else jaccard**beta * cosine


@kernel
def measure(sums, sizes, query_size, beta, sims):
    """The similarity of each instance of a block, out of its sum, which is zero afterwards.

    ``sums``, ``sizes``, ``sims`` : uint64, int32, float64, shape (m,)
    """
    if beta == 1.0:
        for i in range(len(sums)):
            sims[i] = similarity(sums[i], sizes[i], query_size, 1.0)
            sums[i] = U0
    elif beta == 0.0:
        for i in range(len(sums)):
            sims[i] = similarity(sums[i], sizes[i], query_size, 0.0)
            sums[i] = U0
    else:
        for i in range(len(sums)):
            sims[i] = similarity(sums[i], sizes[i], query_size, beta) if sums[i] else 0.0
            sums[i] = U0


@kernel
def add_list(postings, start, end, factor, sums):
    """Add a list to the sums, for a query that has the value ``factor`` of its feature."""
    for at in range(np.uint64(start), np.uint64(end)):
        posting = postings[at]
        sums[posting >> HALF] += product(posting & LOW, factor)


@kernel
def any_above(sims, bound):
    """Whether one of these similarities is above the bound."""
    found = False
    for i in range(len(sims)):
        found |= sims[i] > bound
    return found


@inlined
def offer(instance, sim, ids, kept, n_kept):
    """Offer a neighbour with a similarity > 0 to the heap (the farthest on top); the new count."""
    most = len(ids)
    if n_kept < most:
        ids[n_kept], kept[n_kept] = instance, sim
        n_kept += 1
        if n_kept == most:
            make_heap(ids, kept, most)
    elif comes_before(sim, instance, kept[0], ids[0]):
        ids[0], kept[0] = instance, sim
        sift_down(ids, kept, 0, most)
    return n_kept


@kernel
def keep_block(sims, first, ids, kept, n_kept):
    """Offer the instances of a block, ``first`` and the following, that may be near enough; the new count."""
    for start in range(0, len(sims), GROUP):
        group = sims[start : start + GROUP]
        bound = kept[0] if n_kept == len(ids) else 0.0
        if any_above(group, bound):
            for i in range(len(group)):
                if group[i] > bound:
                    n_kept = offer(np.int32(first + start + i), group[i], ids, kept, n_kept)
                    bound = kept[0] if n_kept == len(ids) else 0.0
    return n_kept


@kernel
def scan(lists, search, features, factors, beta):
    """Find the neighbours of a query by going through all lists of its features.

    Parameters
    ----------
    features : int32, shape (l,)
    factors : uint64, shape (l,)
        Its values, as in a posting.

    Returns
    -------
    n_kept : int
        Neighbours in ``search``, as a heap (as a list where fewer than S).
    """
    sums = search.sums
    for i in range(len(features)):
        add_list(lists.postings, lists.starts[features[i]], lists.starts[features[i] + 1], factors[i], sums)
    return take_nearest(lists.sizes, search, np.float64(len(features)), beta)


@kernel
def take_nearest(sizes, search, query_size, beta):
    """The neighbours out of all sums, which are zero afterwards; their number. ``search`` holds them as a heap."""
    n_kept, sums = 0, search.sums
    for first in range(0, len(sums), BLOCK):
        part = sums[first : first + BLOCK]
        block = search.block[: len(part)]
        measure(part, sizes[first : first + BLOCK], query_size, beta, block)
        n_kept = keep_block(block, first, search.ids, search.sims, n_kept)
    return n_kept


@kernel
def sort_nearest(ids, sims, n_kept):
    """Put the neighbours of a search in order, nearest first."""
    if n_kept < len(ids):
        make_heap(ids, sims, n_kept)
    sort_heap(ids, sims, n_kept)
