"""RankedRetrieval: active features vote, the classes with the highest scores win (paper, section 3.2)."""

import numpy as np
from numba import njit

from core.kernels.machine import U0, U1, U2, as_float, prefetch
from core.kernels.postings import (
    LINE,
    N_FEATURES,
    PAGE_BITS,
    SEEN_FULL,
    SEEN_ONE,
    WIDE_FLAG,
    block_of,
    class_of,
    count_of,
    length_of,
    seen_of,
    size_of,
    wide_capacity,
)

HEADERS_AHEAD = np.uint64(16)
BLOCKS_AHEAD = np.uint64(8)
RATED = np.uint64(10)
SMALL_K = 64


@njit(cache=True, nogil=True, error_model="numpy")
def votable(header, params):
    """How many connections of a feature vote: the ``d_max`` heaviest."""
    return min(length_of(header), params.d_max)


@njit(cache=True, nogil=True, error_model="numpy")
def rating_of(header, params):
    """The rating r_f of a feature: below 1 until it was seen ten times (section 4.3.2)."""
    seen = seen_of(header)
    return np.float64(seen) / 10.0 if params.rating and seen < RATED else 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def vote_of(count, total, rating, value):
    """r_f * w_fc * x_f, rounded as when written so."""
    return rating * (count / total) * value


@njit(cache=True, nogil=True, error_model="numpy")
def fetch_block(arrays, header, params):
    """Prefetch the votable prefix of a narrow block; of a wide one the first lines of its two halves."""
    block = block_of(header)
    prefetch(arrays.arena, block)
    n = votable(header, params)
    if header & WIDE_FLAG:
        prefetch(arrays.arena, block + wide_capacity(size_of(header)))
    for at in range(np.uint64(LINE), n, np.uint64(LINE)):
        prefetch(arrays.arena, block + at)


@njit(cache=True, nogil=True, error_model="numpy")
def vote_narrow(arrays, header, total, factors, votes, n_touched):
    """Add the votes of the first ``votes`` records of a narrow block; the new number of touched classes."""
    arena, scores, touched = arrays.arena, arrays.scores, arrays.touched
    rating, value = factors
    block = block_of(header)
    if vote_of(count_of(arena[block + votes - U1]), total, rating, value) > 0.0:
        for at in range(block, block + votes):
            record = arena[at]
            class_id = class_of(record)
            score = scores[class_id]
            touched[n_touched] = np.int32(class_id)
            n_touched += np.uint64(score == 0.0)
            scores[class_id] = score + vote_of(count_of(record), total, rating, value)
        return n_touched
    for at in range(block, block + votes):
        vote = vote_of(count_of(arena[at]), total, rating, value)
        n_touched = vote_once(arrays, class_of(arena[at]), vote, n_touched)
    return n_touched


@njit(cache=True, nogil=True, error_model="numpy")
def vote_wide(arrays, header, total, factors, votes, n_touched):
    """``vote_narrow`` for a wide block."""
    arena, scores, touched = arrays.arena, arrays.scores, arrays.touched
    rating, value = factors
    block = block_of(header)
    ids = (block + wide_capacity(size_of(header))) * U2
    if vote_of(as_float(arena[block + votes - U1]), total, rating, value) > 0.0:
        for at in range(votes):
            class_id = np.uint64(arrays.arena_ids[ids + at])
            score = scores[class_id]
            touched[n_touched] = np.int32(class_id)
            n_touched += np.uint64(score == 0.0)
            scores[class_id] = score + vote_of(as_float(arena[block + at]), total, rating, value)
        return n_touched
    for at in range(votes):
        vote = vote_of(as_float(arena[block + at]), total, rating, value)
        n_touched = vote_once(arrays, np.uint64(arrays.arena_ids[ids + at]), vote, n_touched)
    return n_touched


@njit(cache=True, nogil=True, error_model="numpy")
def vote_once(arrays, class_id, vote, n_touched):
    """Add one vote that may have underflowed to zero: then the class is not retrieved by it."""
    if vote > 0.0:
        if arrays.scores[class_id] == 0.0:
            arrays.touched[n_touched] = np.int32(class_id)
            n_touched += U1
        arrays.scores[class_id] += vote
    return n_touched


@njit(cache=True, nogil=True, error_model="numpy")
def add_votes(arrays, params, ids, values, counted):
    """Add the votes of all active features to ``arrays.scores``, in place.

    Parameters
    ----------
    ids : int32, shape (l,)
        Unique; ids outside of the index are skipped.
    values : float32, shape (l,)
        > 0.
    counted : bool
        First add 1 to the times that each feature was seen.

    Returns
    -------
    n_touched : uint64
        ``arrays.touched[:n_touched]`` are the classes with a score. Whoever calls this zeroes their scores again.

    Notes
    -----
    Sums run in the order of ``ids``, in double precision.
    """
    headers = arrays.headers
    n = np.uint64(len(ids))
    end = np.uint64(len(headers)) // U2
    n_touched = U0
    for i in range(min(n, HEADERS_AHEAD)):
        prefetch(headers, np.uint64(ids[i]) * U2)
    for i in range(min(n, BLOCKS_AHEAD)):
        if np.uint64(ids[i]) < end:
            fetch_block(arrays, headers[np.uint64(ids[i]) * U2], params)
    for i in range(n):
        if i + HEADERS_AHEAD < n:
            prefetch(headers, np.uint64(ids[i + HEADERS_AHEAD]) * U2)
        if i + BLOCKS_AHEAD < n:
            ahead = np.uint64(ids[i + BLOCKS_AHEAD])
            if ahead < end:
                fetch_block(arrays, headers[ahead * U2], params)
        feature = np.uint64(ids[i])
        if feature >= end:
            continue
        header = headers[feature * U2]
        if counted and seen_of(header) < SEEN_FULL:
            header += SEEN_ONE
            headers[feature * U2] = header
            arrays.dirty[feature >> PAGE_BITS] = 1
            arrays.counters[N_FEATURES] = max(arrays.counters[N_FEATURES], np.int64(feature + U1))
        votes = votable(header, params)
        if votes:
            total = as_float(headers[feature * U2 + U1])
            factors = (rating_of(header, params), np.float64(values[i]))
            if header & WIDE_FLAG:
                n_touched = vote_wide(arrays, header, total, factors, votes, n_touched)
            else:
                n_touched = vote_narrow(arrays, header, total, factors, votes, n_touched)
    return n_touched


@njit(cache=True, nogil=True, error_model="numpy")
def comes_before(score, class_id, other_score, other_id):
    """Whether one class is ranked before another: the higher score, then the smaller id."""
    return score > other_score or (score == other_score and class_id < other_id)


@njit(cache=True, nogil=True, error_model="numpy")
def keep_best(score, class_id, ids_out, scores_out, n_kept):
    """Insert into the sorted ``n_kept`` best, where a full list loses its last; the new ``n_kept``."""
    at = n_kept
    if at == len(ids_out):
        at -= 1
    while at > 0 and comes_before(score, class_id, scores_out[at - 1], ids_out[at - 1]):
        scores_out[at] = scores_out[at - 1]
        ids_out[at] = ids_out[at - 1]
        at -= 1
    scores_out[at] = score
    ids_out[at] = class_id
    return min(n_kept + 1, len(ids_out))


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def sort_heap(ids, scores, n):
    """Turn a heap of ``n`` classes into a ranking, best first."""
    for end in range(n - 1, 0, -1):
        ids[0], ids[end] = ids[end], ids[0]
        scores[0], scores[end] = scores[end], scores[0]
        sift_down(ids, scores, 0, end)


@njit(cache=True, nogil=True, error_model="numpy")
def take_small(arrays, n_touched, mask, ids_out, scores_out):
    """The best touched classes by insertion; zeroes the scores. For small k: most classes fail one comparison."""
    scores, touched = arrays.scores, arrays.touched
    n_kept, masked = 0, len(mask) > 0
    last_score, last_id = 0.0, np.int32(-1)
    for i in range(n_touched):
        class_id = touched[i]
        at = np.uint64(class_id)
        score = scores[at]
        scores[at] = 0.0
        if score < last_score or (masked and (at >= np.uint64(len(mask)) or mask[at] == 0)):
            continue
        if n_kept < len(ids_out) or comes_before(score, class_id, last_score, last_id):
            n_kept = keep_best(score, class_id, ids_out, scores_out, n_kept)
            if n_kept == len(ids_out):
                last_score, last_id = scores_out[n_kept - 1], ids_out[n_kept - 1]
    return n_kept


@njit(cache=True, nogil=True, error_model="numpy")
def take_large(arrays, n_touched, mask, ids_out, scores_out):
    """``take_small`` by a heap, for large k."""
    scores, touched = arrays.scores, arrays.touched
    n_kept, k, masked = 0, len(ids_out), len(mask) > 0
    for i in range(n_touched):
        class_id = touched[i]
        at = np.uint64(class_id)
        score = scores[at]
        scores[at] = 0.0
        if masked and (at >= np.uint64(len(mask)) or mask[at] == 0):
            continue
        if n_kept < k:
            ids_out[n_kept], scores_out[n_kept] = class_id, score
            n_kept += 1
            if n_kept == k:
                for top in range(k // 2 - 1, -1, -1):
                    sift_down(ids_out, scores_out, top, k)
        elif comes_before(score, class_id, scores_out[0], ids_out[0]):
            ids_out[0], scores_out[0] = class_id, score
            sift_down(ids_out, scores_out, 0, k)
    if n_kept < k:
        for top in range(n_kept // 2 - 1, -1, -1):
            sift_down(ids_out, scores_out, top, n_kept)
    sort_heap(ids_out, scores_out, n_kept)
    return n_kept


@njit(cache=True, nogil=True, error_model="numpy")
def rank_classes(arrays, params, ids, values, mask, ids_out, scores_out):
    """Rank the classes for an instance.

    Parameters
    ----------
    ids, values : int32, float32, shape (l,)
        The active features; ids outside of the index are skipped.
    mask : uint8, shape (0,) or (classes,)
        1 for a class that may be ranked; empty: all may.
    ids_out, scores_out : int32, float64, shape (k,)
        Written: the best classes, best first, equal scores by class id.

    Returns
    -------
    n_ranked : int
        At most k.
    """
    n_touched = add_votes(arrays, params, ids, values, False)
    if len(ids_out) == 0:
        for i in range(n_touched):
            arrays.scores[arrays.touched[i]] = 0.0
        return 0
    if len(ids_out) <= SMALL_K:
        return take_small(arrays, n_touched, mask, ids_out, scores_out)
    return take_large(arrays, n_touched, mask, ids_out, scores_out)


@njit(cache=True, nogil=True, error_model="numpy")
def explain_score(arrays, params, ids, values, class_id, contributions_out):
    """What each feature adds to the score of a class; the same terms as in ``rank_classes``.

    Parameters
    ----------
    contributions_out : float64, shape (l,)
        Written; 0 for a feature without a voting connection to the class.
    """
    wanted = np.uint64(class_id)
    for i in range(len(ids)):
        contributions_out[i] = 0.0
        feature = np.uint64(ids[i])
        if feature >= np.uint64(len(arrays.headers)) // U2:
            continue
        header = arrays.headers[feature * U2]
        block = block_of(header)
        second = (block + wide_capacity(size_of(header))) * U2
        for at in range(votable(header, params)):
            record = arrays.arena[block + at]
            wide = header & WIDE_FLAG
            if (np.uint64(arrays.arena_ids[second + at]) if wide else class_of(record)) == wanted:
                count = as_float(record) if wide else count_of(record)
                total = as_float(arrays.headers[feature * U2 + U1])
                contributions_out[i] = vote_of(count, total, rating_of(header, params), np.float64(values[i]))
                break
