"""Exact nearest neighbors over inverted lists: Sim(x, x_i) = J(x, x_i)^beta cos(x, x_i).

A **posting** is a uint64: the number of an instance in the upper half, and its value for the feature in the lower
half, as a multiple of 2^-31. A **sum** is one uint64 per instance: the overlap with the query from bit 40 on, and
below it the dot product as a multiple of 2^-32. Sums of whole numbers do not depend on the order, so a scan that
skips lists can give exactly the result of a full scan.

Equal similarities are ordered by the number of the instance.

``search_pruned`` avoids reading the longest lists and finds the same neighbors, bit for bit: it reads the shortest
lists until a bound shows that no instance outside of them can be a neighbor. Bounds are rounded up by ``SLACK``.

Labels are ranked by the votes of the nearest neighbors of an instance: f(x) = sum of Sim(x, x_i)^alpha y_i.
"""

from typing import NamedTuple

import numpy as np

from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import U0, U1, address_of, prefetch_word
from abound_core.numba.top_k import offer, sort_kept

SCALE = 2.0**31  # of the values in postings and queries

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
    """The inverted lists and rows of the training data."""

    starts: np.ndarray  # int64, shape (d + 1,); feature f has ``postings[starts[f]:starts[f + 1]]``
    postings: np.ndarray  # uint64, shape (nnz,); instances ascend in a list
    greatest: np.ndarray  # uint64, shape (d,); the largest value in each list, as in a posting
    sizes: np.ndarray  # int32, shape (n,); number of active features of each instance
    row_starts: np.ndarray  # int64, shape (n + 1,)
    # uint64, shape (nnz,); the same data by instance: the feature in the upper half, its value in the lower half
    rows: np.ndarray


class Search(NamedTuple):
    """The working memory of one thread; ``sums`` is zero between searches."""

    sums: np.ndarray  # uint64, shape (n,)
    touched: np.ndarray  # uint32, shape (n + 1,)
    block: np.ndarray  # float64, shape (BLOCK,)
    # order, rest: int64, float64, shape (l,), (2, l + 1); for l active features of a query
    order: np.ndarray
    rest: np.ndarray
    # uint64, shape (d,); the query's values of features whose lists were not added; zero between searches
    left: np.ndarray
    # ids, sims: int32, float64, shape (S,); the neighbors found; after a search in order, nearest first
    ids: np.ndarray
    sims: np.ndarray


@inlined
def product(value, factor):
    """Return a summand of the dot product, including its 1 of overlap."""
    return ((value * factor) >> SHIFT) + ONE


@inlined
def similarity(total, size, query_size, beta):
    """Return Sim from the sum of an instance and the numbers of active features of both."""
    overlap = np.float64(np.int64(total >> OVERLAP))
    cosine = np.float64(np.int64(total & DOT)) * UNIT
    if beta == 0.0:
        return cosine
    jaccard = overlap / (query_size + np.float64(size) - overlap)
    return jaccard * cosine if beta == 1.0 else jaccard**beta * cosine


@inner
def measure(sums, sizes, query_size, beta, sims):
    """Compute the similarity of each instance of a block from its sum, and zero the sum; shape (m,)."""
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


@inner
def add_list(postings, start, end, factor, sums):
    for at in range(np.uint64(start), np.uint64(end)):
        posting = postings[at]
        sums[posting >> HALF] += product(posting & LOW, factor)


@inner
def any_above(sims, bound):
    found = False
    for i in range(len(sims)):
        found |= sims[i] > bound
    return found


@inner
def keep_block(sims, first, ids, kept, n_kept):
    """Offer the instances of a block, numbered from ``first`` on, to the heap; return the new count."""
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
    """Find the neighbors of a query by reading all lists of its features; return their number in ``search``.

    ``factors`` are the query's values, as in a posting. The neighbors are a heap, unordered if fewer than S.
    """
    sums = search.sums
    for i in range(len(features)):
        add_list(lists.postings, lists.starts[features[i]], lists.starts[features[i] + 1], factors[i], sums)
    return select_nearest(lists.sizes, search, np.float64(len(features)), beta)


@inner
def select_nearest(sizes, search, query_size, beta):
    """Select the neighbors from all sums into a heap in ``search`` and zero the sums; return their number."""
    n_kept, sums = 0, search.sums
    for first in range(0, len(sums), BLOCK):
        part = sums[first : first + BLOCK]
        block = search.block[: len(part)]
        measure(part, sizes[first : first + BLOCK], query_size, beta, block)
        n_kept = keep_block(block, first, search.ids, search.sims, n_kept)
    return n_kept


@kernel
def sort_nearest(ids, sims, n_kept):
    sort_kept(ids, sims, n_kept)


SLACK = 1.0 + 1e-6


class Effort(NamedTuple):
    """Thresholds that decide when pruning pays. They change the time, never the result."""

    small: int  # postings plus half the instances; below this, all lists are read
    first: int  # postings after which the bound is computed for the first time
    # maximum number of postings, as a share of all instances, that are added with touched instances recorded
    few: float


EFFORT = Effort(small=250_000, first=1024, few=0.12)
BITS = np.uint64(63)
EXPECTED_GROWTH = 1.25  # of the bound; if even this would not suffice, no list is skipped

POSTINGS_AHEAD = np.uint64(32)  # distance at which sums are prefetched

ROWS_AHEAD = 12  # distance in instances at which rows are prefetched


@kernel
def order_lists(lists, features, order):
    """Order the places of a query's features by the lengths of their lists, shortest first; the sort is stable."""
    lengths = np.empty(len(features), np.int64)
    for i in range(len(features)):
        lengths[i] = lists.starts[features[i] + 1] - lists.starts[features[i]]
    order[: len(features)] = np.argsort(lengths, kind="mergesort")


@inner
def bound_rest(lists, features, factors, order, beta, rest):
    """Write ``rest``, float64, shape (2, l + 1).

    ``rest[0, m]`` bounds the dot product with the lists from m on, ``rest[1, m]`` the similarity of an instance that is
    in no list before m.
    """
    n, dot, squares = len(features), 0.0, 0.0
    rest[0, n] = rest[1, n] = 0.0
    for m in range(n - 1, -1, -1):
        value = np.float64(factors[order[m]]) / SCALE
        # The remaining values times the largest in their lists, or by Cauchy and Schwarz.
        dot += value * np.float64(lists.greatest[features[order[m]]]) / SCALE
        squares += value * value
        rest[0, m] = min(dot, np.sqrt(squares)) * SLACK
        # The overlap is at most the number of remaining features, and the union at least the query's size.
        rest[1, m] = (np.float64(n - m) / n) ** beta * rest[0, m]


@inner
def add_and_touch(postings, start, end, factor, sums, touched, n_touched):
    """Add a list to the sums and record newly touched instances; return the new number of touched instances."""
    n, start, end, base = np.uint64(n_touched), np.uint64(start), np.uint64(end), address_of(sums)
    for at in range(start, end):
        prefetch_word(base, postings[min(at + POSTINGS_AHEAD, end - U1)] >> HALF)
        posting = postings[at]
        instance = posting >> HALF
        before = sums[instance]
        touched[n] = np.uint32(instance)
        n += np.uint64(before == U0)
        sums[instance] = before + product(posting & LOW, factor)
    return np.int64(n)


@inner
def mask_rest(features, order, m):
    """Return 64 bits, one set for each feature from the m-th list on, to avoid most lookups in ``left``."""
    mask = U0
    for i in range(m, len(features)):
        mask |= U1 << (np.uint64(features[order[i]]) & BITS)
    return mask


@inlined
def complete_sum(lists, instance, sums, left, mask):
    """Return the complete sum of an instance, with the values of the skipped lists from its own row."""
    total = sums[instance]
    for at in range(np.uint64(lists.row_starts[instance]), np.uint64(lists.row_starts[instance + U1])):
        entry = lists.rows[at]
        if (mask >> ((entry >> HALF) & BITS)) & U1:
            factor = left[entry >> HALF]
            if factor != U0:
                total += product(entry & LOW, factor)
    return total


@inner
def measure_touched(touched, sums, sizes, query_size, jaccard, sims):
    """Compute the similarities of touched instances so far; ``jaccard`` is true for beta = 1 and false for beta = 0."""
    if jaccard:
        for i in range(len(touched)):
            instance = np.uint64(touched[i])
            sims[i] = similarity(sums[instance], sizes[instance], query_size, 1.0)
    else:
        for i in range(len(touched)):
            sims[i] = similarity(sums[np.uint64(touched[i])], 0, query_size, 0.0)


@inner
def least_bound(lists, search, n_touched, query_size, beta, mask):
    """Return a lower bound of the similarity of the S-th neighbor; 0 if fewer than S instances were touched."""
    n_kept, block, ids, kept, sums = 0, search.block, search.ids, search.sims, search.sums
    for first in range(0, n_touched, BLOCK):
        part = search.touched[first : min(first + BLOCK, n_touched)]
        measure_touched(part, sums, lists.sizes, query_size, beta == 1.0, block)
        n_kept = keep_block(block[: len(part)], first, ids, kept, n_kept)
    if n_kept < len(ids):
        return 0.0
    bound = np.inf
    for i in range(n_kept):
        instance = np.uint64(search.touched[ids[i]])
        total = complete_sum(lists, instance, sums, search.left, mask)
        bound = min(bound, similarity(total, lists.sizes[instance], query_size, beta))
    return bound


@inner
def narrow(touched, sums, sizes, query_size, most_dot, most_lists, bound):
    """Keep the touched instances that can still reach the bound, first in ``touched``; return their number.

    Zeroes the sums of the others. ``most_lists`` is meant for beta = 1; a negative value means beta = 0.
    """
    n = U0
    for i in range(len(touched)):
        instance = np.uint64(touched[i])
        total = sums[instance]
        dot = np.float64(np.int64(total & DOT)) * UNIT + most_dot
        if most_lists >= 0.0:
            overlap = np.float64(np.int64(total >> OVERLAP)) + most_lists
            may = dot * overlap >= bound * (query_size + np.float64(sizes[instance]) - overlap)
        else:
            may = dot >= bound
        touched[n] = np.uint32(instance)
        n += np.uint64(may)
        sums[instance] = total if may else U0
    return np.int64(n)


@inner
def postings_until(lists, features, order, rest, m, bound):
    """Return the number of postings of the lists from m on that must be added until the rest is below the bound."""
    postings = 0
    while m < len(features) and rest[1, m] >= bound:
        postings += lists.starts[features[order[m]] + 1] - lists.starts[features[order[m]]]
        m += 1
    return postings


@inner
def add_few(lists, search, features, factors, beta, effort):
    """Add lists until the others can be skipped.

    Returns the first list that is skipped (-1 if none can be; then the sums are complete), the number of touched
    instances, and a bound of the similarity of the S-th neighbor.
    """
    n, rest, order = len(features), search.rest, search.order
    most, next_bound = effort.few * len(search.sums), effort.first
    postings, m, n_touched, bound = 0, 0, 0, 0.0
    # Shortest list first, until an instance that is in none of them cannot reach the S-th neighbor.
    while m < n and rest[1, m] >= bound:
        feature, factor = features[order[m]], factors[order[m]]
        start, end = lists.starts[feature], lists.starts[feature + 1]
        postings += end - start
        if postings > most:
            break
        n_touched = add_and_touch(lists.postings, start, end, factor, search.sums, search.touched, n_touched)
        search.left[feature] = U0
        m += 1
        # Each time the postings have tripled, complete the S best of the touched instances. The least of their
        # similarities is a bound that the S-th neighbor reaches.
        if postings >= next_bound:
            bound = least_bound(lists, search, n_touched, np.float64(n), beta, mask_rest(features, order, m))
            next_bound = 3 * postings
            if postings_until(lists, features, order, rest, m, EXPECTED_GROWTH * bound) > most - postings:
                break
    if rest[1, m] < bound:
        return m, n_touched, bound
    # Too many postings were read: read the remaining lists too, as ``scan`` does.
    for i in range(m, n):
        feature = features[order[i]]
        add_list(lists.postings, lists.starts[feature], lists.starts[feature + 1], factors[order[i]], search.sums)
    return -1, 0, 0.0


@inner
def verify(lists, search, candidates, query_size, beta, mask):
    """Complete the sums of the candidates, keep the nearest, and zero the sums; return the number of neighbors."""
    n_kept, n = 0, len(candidates)
    starts, rows = address_of(lists.row_starts), address_of(lists.rows)
    for i in range(n + 2 * ROWS_AHEAD):
        if i < n:
            prefetch_word(starts, np.uint64(candidates[i]))
        if ROWS_AHEAD <= i < n + ROWS_AHEAD:
            row = np.uint64(lists.row_starts[np.uint64(candidates[i - ROWS_AHEAD])])
            prefetch_word(rows, row)
            prefetch_word(rows, row + np.uint64(8))
        if i >= 2 * ROWS_AHEAD:
            instance = np.uint64(candidates[i - 2 * ROWS_AHEAD])
            total = complete_sum(lists, instance, search.sums, search.left, mask)
            search.sums[instance] = U0
            sim = similarity(total, lists.sizes[instance], query_size, beta)
            if sim > 0.0:
                n_kept = offer(np.int32(instance), sim, search.ids, search.sims, n_kept)
    return n_kept


@kernel
def search_pruned(lists, search, features, factors, beta, effort):
    """Find the neighbors like ``scan``, with pruning; ``beta`` must be 0 or 1."""
    work = len(search.sums) // 2
    for i in range(len(features)):
        work += lists.starts[features[i] + 1] - lists.starts[features[i]]
    if work < effort.small:
        return scan(lists, search, features, factors, beta)
    query_size = np.float64(len(features))
    order_lists(lists, features, search.order)
    bound_rest(lists, features, factors, search.order, beta, search.rest)
    for i in range(len(features)):
        search.left[features[i]] = factors[i]
    m, n_touched, bound = add_few(lists, search, features, factors, beta, effort)
    if m < 0:
        n_kept = select_nearest(lists.sizes, search, query_size, beta)
    else:
        touched, lists_left = search.touched[:n_touched], np.float64(len(features) - m) if beta == 1.0 else -1.0
        # Drop the instances that cannot reach the bound with the most that the skipped lists can add. For the others,
        # look up the values of the skipped lists in their own rows.
        n = narrow(touched, search.sums, lists.sizes, query_size, search.rest[0, m], lists_left, bound / SLACK)
        n_kept = verify(lists, search, touched[:n], query_size, beta, mask_rest(features, search.order, m))
    for i in range(len(features)):
        search.left[features[i]] = U0
    return n_kept


@inner
def vote(ids, sims, n_kept, alpha, label_starts, label_ids, scores):
    """Add the votes of the neighbors, nearest first, to the scores of their labels, which the caller zeroes."""
    for i in range(n_kept):
        weight = 1.0 if alpha == 0.0 else sims[i] if alpha == 1.0 else sims[i] ** alpha
        for at in range(np.uint64(label_starts[ids[i]]), np.uint64(label_starts[ids[i] + 1])):
            scores[np.uint64(label_ids[at])] += weight


@inner
def select_labels(ids, n_kept, label_starts, label_ids, scores, ids_out, scores_out):
    """Return the number of best labels of the neighbors, best first, equal scores by label id; zero the scores."""
    n, k = 0, len(ids_out)
    for i in range(n_kept):
        for at in range(np.uint64(label_starts[ids[i]]), np.uint64(label_starts[ids[i] + 1])):
            label = label_ids[at]
            score = scores[np.uint64(label)]
            if score == 0.0 or k == 0:
                continue
            scores[np.uint64(label)] = 0.0
            n = offer(label, score, ids_out, scores_out, n)
    sort_kept(ids_out, scores_out, n)
    return n


@kernel
def rank_rows(lists, search, queries, labels, alpha_beta, prune, ids_out, scores_out):
    """Rank the labels for the rows of a matrix; return the number of labels of each, int64, shape (m,).

    Parameters
    ----------
    queries : (int32 or int64, int32, float32), shapes (m + 1,), (nnz,), (nnz,)
        Compressed rows.
    labels : (int32 or int64, int32, float64), shapes (n + 1,), (assertions,), (L,)
        Labels of the instances, and scores, zero between calls.
    alpha_beta : (float, float)
    prune : bool
        Whether long lists may be skipped; changes only the time.
    ids_out, scores_out : int32, float64, shape (m, k)
        Written, as far as there are labels.
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
        counts[row] = select_labels(search.ids, n, label_starts, label_ids, scores, ids_out[row], scores_out[row])
    return counts


@kernel
def vote_rows(ids, sims, counts, labels, alpha, ids_out, scores_out):
    """Rank the labels of the neighbors of each row, as ``rank_rows``; return their numbers, int64, shape (m,).

    ``ids``, ``sims`` and ``counts``, shape (m, s), (m, s), (m,), are the neighbors; a repeated one votes repeatedly.
    """
    label_starts, label_ids, scores = labels
    ranked = np.zeros(len(ids), np.int64)
    for row in range(len(ids)):
        n = counts[row]
        vote(ids[row], sims[row], n, alpha, label_starts, label_ids, scores)
        ranked[row] = select_labels(ids[row], n, label_starts, label_ids, scores, ids_out[row], scores_out[row])
    return ranked
