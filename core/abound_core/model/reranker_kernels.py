"""The re-ranker: an order of the best classes by their scores, their similarity to the instance and their frequency.

It is an online conditional logit. **Candidates** of an instance are the best ``INDEX_CANDIDATES`` classes of the
index, and in a model of at most ``MANY`` classes also the ``MORE`` others whose mean is most similar to the instance's
vector. With q the vector (int8), s the score of a class (0 for those others), n the number of its instances with a
vector, and ``mean`` the sum of their vectors scaled to length 16,384, the terms of a class are

    x = (s clipped to -0.5 .. 1,  ln(0.02 + max(s, 0)),  q mean / (16,384 |q|),  ln(1 + n),  1 if n = 0 else 0)

and p = softmax(w x) over the candidates. Before an instance is learned, the model takes one step if any true class
is a candidate. With y = 1 / m for the m true candidates, x' = sum p x and k = 1 - 1 / ``REMEMBERED``:

    H <- k H + (1 - k) r I + sum p (x - x') (x - x')',    w <- w + H^-1 (sum y x - x')

Candidates with p below ``LEAST_SHARE`` are left out of H. This is Newton's method with forgetting, as in
``abound_core.model.calibration_kernels``. Every vector of a true class is added to the sum of the class as
rint(2,048 q / |q|), which is exact; sum and n are halved when n reaches ``MOST_COUNTED``.

**Guard.** Let d be 1 if only this order has a true class first, -1 if only the index's order has one, and 0 otherwise:

    g <- 0.9995 g + d,    a <- 0.995 a (5 at first)

The order is used while g > -a. Otherwise the index answers. All sums have a fixed order, and integers are
exact: every replica has the same bits.
"""

from typing import Any, NamedTuple

import numpy as np

from abound_core.index.votes_kernels import may_rank
from abound_core.instances.record_kernels import DENSE
from abound_core.model.calibration_kernels import HIGHEST_SCORE, OFFSET, add_step, solve
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.exp_log import exponential, logarithm
from abound_core.numba.intrinsics import I0, load_u32, pointer
from abound_core.numba.top_k import keep_best

N_TERMS = 5
INDEX_CANDIDATES = 50
MORE = 16
MOST = INDEX_CANDIDATES + MORE
MANY = 4096
REMEMBERED = 10_000.0
RIDGE = 10.0
LEAST_SHARE = 1e-4
LEAST_SCORE, MOST_SCORE = -0.5, 1.0
LEAST_LOGIT = -700.0

UNIT = 2048.0  # length of a vector in the sum of a class

LENGTH = 16_384.0  # length of the mean of a class

MOST_COUNTED = 2**19  # numbers in a sum stay below 2^31, and the square of its length below 2^63

GAIN, ALLOWANCE, COUNTED, INDEX_HITS, INDEX_RECIPROCAL, HITS, RECIPROCAL = range(7)
"""Places in ``guard``: g and a; then instances, and the hits at rank 1 and the sums of reciprocal ranks of the index
and of the answers.
"""

N_GUARD = 7
DISCOUNT = 0.9995
ALLOWANCE_DECAY = 0.995

PAGE = 32  # classes in a page of the digest


class Candidates(NamedTuple):
    """Working memory for the candidates of an instance; those of the index come first, in its order.

    ``order`` holds their places, best first, by the logits ``sorted``; ``shares`` is p, and of equal ones the candidate
    that the index ranks higher comes first.
    """

    class_ids: Any
    scores: Any
    terms: Any
    logits: Any
    shares: Any
    order: Any
    sorted: Any


@inlined
def new_candidates():
    return Candidates(
        np.empty(MOST, np.int32),
        np.empty(MOST, np.float64),
        np.empty((MOST, N_TERMS), np.float64),
        np.empty(MOST, np.float64),
        np.empty(MOST, np.float64),
        np.empty(MOST, np.int32),
        np.empty(MOST, np.float64),
    )


@inlined
def is_usable(reranker, dimension, data, dense_at):
    """Return whether an instance has a dense part of the model's dimension, and the arrays have it as well."""
    return dense_at >= 0 and np.int64(load_u32(data, dense_at)) == dimension == reranker.sums.shape[1]


@inner
def length_of_vector(data, at, d):
    """Return |q| of the ``d`` numbers (int8) from byte ``at`` on."""
    total = np.int64(0)
    for i in range(d):
        number = np.int64(np.int8(data[at + i]))
        total += number * number
    return np.sqrt(np.float64(total))


@inner
def similarity(data, at, d, length, means, row):
    """Return the cosine of a vector of this length and the mean of a class, in this row; 0 if that is zero."""
    total, first = np.int32(0), np.int64(row) * d
    for i in range(d):
        total = np.int32(total + np.int32(np.int8(data[at + i])) * np.int32(means[first + i]))
    return np.float64(total) / (length * LENGTH)


@inlined
def put_terms(reranker, class_id, score, cosine, terms):
    high = min(score, HIGHEST_SCORE) if score > 0.0 else 0.0
    low = max(score, LEAST_SCORE) if score < 0.0 else 0.0
    n = reranker.counts[class_id]
    terms[0] = low + min(high, MOST_SCORE)
    terms[1] = logarithm(OFFSET + high)
    terms[2] = cosine
    terms[3] = logarithm(1.0 + np.float64(n))
    terms[4] = 1.0 if n == 0 else 0.0


@inner
def find_similar(reranker, data, at, d, length, n_classes, mask, found, n):
    """Append the most similar classes that are not candidates yet, with score 0; return the number of candidates."""
    means, rows = pointer(reranker.means), pointer(reranker.rows)
    taken, masked = np.zeros(n_classes, np.uint8), len(mask) > 0
    for i in range(n):
        taken[found.class_ids[i]] = 1
    ids, cosines, n_kept = np.empty(MORE, np.int32), np.empty(MORE, np.float64), I0
    for class_id in range(n_classes):
        row = np.int64(rows[class_id])
        if taken[class_id] or row == 0 or (masked and not may_rank(mask, np.uint64(class_id))):
            continue
        cosine = similarity(data, at, d, length, means, row)
        if n_kept < MORE or cosine > cosines[MORE - 1]:
            n_kept = keep_best(cosine, np.int32(class_id), ids, cosines, n_kept, len(ids))
    for i in range(n_kept):
        found.class_ids[n + i], found.scores[n + i] = ids[i], 0.0
        put_terms(reranker, ids[i], 0.0, cosines[i], found.terms[n + i])
    return n + n_kept


@inner
def find_candidates(reranker, n_classes, data, dense_at, mask, ids, scores, found):
    """Write the candidates of an instance, their logits and their order; return their number, and the index's part.

    ``dense_at`` is the byte at which the dense part begins, which is of the dimension of the model. ``ids`` and
    ``scores`` are the index's ranking under ``mask``, at least its best ``INDEX_CANDIDATES`` classes.
    """
    d, at = np.int64(load_u32(data, dense_at)), dense_at + DENSE
    length, means, rows = length_of_vector(data, at, d), pointer(reranker.means), pointer(reranker.rows)
    n_index = min(len(ids), INDEX_CANDIDATES)
    for i in range(n_index):
        found.class_ids[i], found.scores[i] = ids[i], scores[i]
        cosine = similarity(data, at, d, length, means, rows[ids[i]])
        put_terms(reranker, ids[i], scores[i], cosine, found.terms[i])
    n = n_index
    if n_classes <= MANY:
        n = find_similar(reranker, data, at, d, length, n_classes, mask, found, n)
    n_kept = I0
    for i in range(n):
        logit = 0.0
        for term in range(N_TERMS):
            logit += reranker.weights[term] * found.terms[i, term]
        found.logits[i] = logit
        n_kept = keep_best(logit, np.int32(i), found.order, found.sorted, n_kept, len(found.order))
    return n, n_index


@inner
def put_shares(found, n, highest, total):
    """Write exp(logit - ``highest``), at most 1, divided by ``total`` as the shares; return their sum."""
    together = 0.0
    for i in range(n):
        share = exponential(max(min(found.logits[i] - highest, 0.0), LEAST_LOGIT)) / total
        found.shares[i] = share
        together += share
    return together


@inner
def put_softmax(found, n):
    if n > 0:
        put_shares(found, n, found.sorted[0], put_shares(found, n, found.sorted[0], 1.0))


@inner
def write_answer(reranker, found, n, n_index, ids, scores, ids_out, scores_out, shares_out):
    """Write the best classes, their scores and their shares; return their number, at most k.

    ``found`` has the shares, ``ids`` and ``scores`` the index's ranking. If the index answers, the scores are its own.
    Otherwise they are the shares, 0 without a share.
    """
    n_out, k, trusted = 0, len(ids_out), is_trusted(reranker.guard)
    for i in range(min(n if trusted else n_index, k)):
        place = np.int64(found.order[i]) if trusted else i
        ids_out[i], shares_out[i] = found.class_ids[place], found.shares[place]
        scores_out[i] = found.shares[place] if trusted else found.scores[place]
        n_out += 1
    for i in range(n_index, len(ids)):
        is_candidate = False
        for j in range(n_index, n if trusted else n_index):
            is_candidate |= found.class_ids[j] == ids[i]
        if n_out < k and not is_candidate:
            ids_out[n_out], shares_out[n_out], scores_out[n_out] = ids[i], 0.0, 0.0 if trusted else scores[i]
            n_out += 1
    return n_out


@inlined
def is_trusted(guard):
    return guard[GAIN] > -guard[ALLOWANCE]


@inner
def count_answer(guard, index_rank, rank):
    """Count the ranks of the best true class, 0 if it has none, and move the guard."""
    index_hit, hit = 1.0 if index_rank == 1 else 0.0, 1.0 if rank == 1 else 0.0
    answer_rank = rank if is_trusted(guard) else index_rank
    guard[COUNTED] += 1.0
    guard[INDEX_RECIPROCAL] += 1.0 / index_rank if index_rank > 0 else 0.0
    guard[INDEX_HITS] += index_hit
    guard[RECIPROCAL] += 1.0 / answer_rank if answer_rank > 0 else 0.0
    guard[HITS] += 1.0 if answer_rank == 1 else 0.0
    guard[GAIN] = DISCOUNT * guard[GAIN] + hit - index_hit
    guard[ALLOWANCE] *= ALLOWANCE_DECAY


@inner
def take_step(reranker, found, n, true):
    """Learn from the candidates, some of which are true: bool array, shape (n,). Their shares must be written."""
    weights, curvature, terms, shares = reranker.weights, reranker.curvature, found.terms, found.shares
    n_terms = len(weights)
    mean, gradient, step = np.zeros(n_terms), np.zeros(n_terms), np.empty(n_terms)
    n_true = 0
    for i in range(n):
        n_true += np.int64(true[i])
        for a in range(n_terms):
            mean[a] += shares[i] * terms[i, a]
    if n_true == 0:
        return
    keep = 1.0 - 1.0 / REMEMBERED
    for a in range(n_terms):
        for b in range(a + 1):
            curvature[a, b] *= keep
        curvature[a, a] += (1.0 - keep) * RIDGE
    for i in range(n):
        if true[i]:
            for a in range(n_terms):
                gradient[a] += terms[i, a] / n_true
        if shares[i] >= LEAST_SHARE:
            for a in range(n_terms):
                for b in range(a + 1):
                    curvature[a, b] += shares[i] * (terms[i, a] - mean[a]) * (terms[i, b] - mean[b])
    for a in range(n_terms):
        gradient[a] -= mean[a]
    solve(pointer(curvature), gradient, step, n_terms, RIDGE)
    add_step(weights, step, n_terms)


@inlined
def has_rows(reranker, n):
    return reranker.used[0] + n <= len(reranker.sums)


@inner
def add_vector(reranker, data, dense_at, class_id):
    """Add a vector to the sum of a class, and compute its mean. The first one gives the class the next row."""
    d, at = np.int64(load_u32(data, dense_at)), dense_at + DENSE
    scale = UNIT / length_of_vector(data, at, d)
    if reranker.rows[class_id] == 0:
        reranker.rows[class_id] = reranker.used[0]
        reranker.used[0] += 1
    row = np.int64(reranker.rows[class_id])
    sums, first = pointer(reranker.sums), row * d
    for i in range(d):
        number = np.float64(np.int8(data[at + i]))
        sums[first + i] = np.int32(sums[first + i] + np.int32(np.rint(number * scale)))
    reranker.counts[class_id] += 1
    if reranker.counts[class_id] == MOST_COUNTED:
        reranker.counts[class_id] >>= 1
        for i in range(d):
            sums[first + i] >>= 1
    put_mean(reranker, row, d)
    reranker.dirty[class_id // PAGE] = 1


@inner
def put_mean(reranker, row, d):
    """Compute the mean of a class from its sum."""
    sums, means, first = pointer(reranker.sums), pointer(reranker.means), np.int64(row) * d
    total = np.int64(0)
    for i in range(d):
        number = np.int64(sums[first + i])
        total += number * number
    scale = LENGTH / np.sqrt(np.float64(total)) if total > 0 else 0.0
    for i in range(d):
        means[first + i] = np.int16(np.rint(np.float64(sums[first + i]) * scale))


@kernel
def put_means(reranker, rows, d):
    """Compute the means of rows from their sums."""
    for row in rows:
        put_mean(reranker, row, d)
