"""RankedRetrieval: votes of active features (paper, section 3.2), and selection of the best classes with a score."""

import numpy as np

from abound_core.index.layout_kernels import (
    CLASS_MASK,
    LINE,
    N_FEATURES,
    NONE,
    SEEN_FULL,
    SEEN_SHIFT,
    WIDE_FLAG,
    block_of,
    class_of,
    count_of,
    first_id,
    length_of,
    mark_dirty_if,
    seen_of,
)
from abound_core.numba.decorators import inlined, inner
from abound_core.numba.intrinsics import (
    GATHERED,
    I0,
    LANES,
    U0,
    U1,
    U2,
    as_float,
    find_lane,
    gather_votes,
    load_float,
    load_id,
    load_word,
    memory_of_terms,
    prefetch_word,
    store_float,
    store_id,
    store_word,
)
from abound_core.numba.top_k import comes_before, keep_best, offer, sort_kept

HEADERS_AHEAD = np.uint64(16)
BLOCKS_AHEAD = np.uint64(8)
RATED = np.uint64(10)
SMALL_K = 64
MOST_TERMS = np.uint64(GATHERED - LANES)  # gathered terms above which they are added to the scores


@inlined
def voting_length(header, params):
    return min(length_of(header), params.d_max)


@inner
def count_heavy(memory, header, total, params):
    """Return the number of connections that weigh at least ``vote_min`` (section 6.3.2); they are the first ones."""
    votes = U0
    while votes < voting_length(header, params) and connection(memory, header, votes)[1] / total >= params.vote_min:
        votes += U1
    return votes


@inlined
def rating_of(header, params):
    """Return the rating r_f of a feature: below 1 until it was seen ten times (section 4.3.2)."""
    seen = seen_of(header)
    return np.float64(seen) / 10.0 if params.rating and seen < RATED else 1.0


@inlined
def vote_of(count, total, rating, value):
    """Return r_f * w_fc * x_f, rounded in this order of operations."""
    return rating * (count / total) * value


@inlined
def fetch_block(memory, feature, params):
    """Prefetch the voting connections of a feature: the first, second, third and last cache line.

    Uses no branch: the number of lines is unpredictable, and a misprediction costs more than fetching a line twice.
    """
    header = load_word(memory.headers, feature * U2 if feature < memory.n_headers else U0)
    block, votes = block_of(header), voting_length(header, params)
    last = votes - U1 if votes else U0
    prefetch_word(memory.arena, block)
    prefetch_word(memory.arena, block + min(last, LINE))
    prefetch_word(memory.arena, block + min(last, U2 * LINE))
    prefetch_word(memory.arena, block + last)


@inlined
def connection(memory, header, at):
    record = load_word(memory.arena, block_of(header) + at)
    if header & WIDE_FLAG:
        return np.uint64(load_id(memory.arena, first_id(header) + at)), as_float(record)
    return class_of(record), count_of(record)


@inlined
def add_vote(memory, class_id, vote, n_touched):
    """Add a vote to the score of a class; return the new number of touched classes. A vote of zero touches nothing."""
    score = load_float(memory.scores, class_id)
    store_id(memory.touched, n_touched, np.uint32(class_id))
    store_float(memory.scores, class_id, score + vote)
    return n_touched + np.uint64((score == 0.0) & (vote > 0.0))


@inlined
def add_terms(memory, terms, class_ids, n, n_touched):
    for k in range(n):
        n_touched = add_vote(memory, np.uint64(load_id(class_ids, k)), load_float(terms, k), n_touched)
    return n_touched


@inlined
def gather_wide(memory, header, first, size, factors, terms, class_ids, n_terms):
    """Write ``size`` votes from connection ``first`` of a wide block on, behind the ``n_terms`` gathered ones."""
    total, rating, value = factors
    for k in range(size):
        class_id, count = connection(memory, header, first + k)
        store_float(terms, n_terms + k, vote_of(count, total, rating, value))
        store_id(class_ids, n_terms + k, np.uint32(class_id))


@inlined
def add_votes(memory, params, ids, values, counted, wanted):
    """Add the votes of all active features to the scores, in place.

    Parameters
    ----------
    ids : int32, shape (l,)
        Unique; ids outside of the index are skipped.
    values : float32, shape (l,)
        > 0.
    counted : bool
        First add 1 to the times that each feature was seen.
    wanted : uint64
        A class whose place in the arena is written to ``scratch[i + 1]`` for each feature ``i``: the place after the
        voting connections if it is not among them. It means nothing for a wide block, and is not written for ``NONE``.

    Returns
    -------
    n_touched : uint64
        ``touched[:n_touched]`` are the classes with a score. The caller must zero their scores.

    Notes
    -----
    Sums run in the order of ``ids``, in double precision.
    """
    n = np.uint64(len(ids))
    n_touched, n_terms, highest = U0, U0, U0
    terms, class_ids = memory_of_terms()
    for i in range(min(n, HEADERS_AHEAD)):
        prefetch_word(memory.headers, np.uint64(ids[i]) * U2)
    for i in range(min(n, BLOCKS_AHEAD)):
        fetch_block(memory, np.uint64(ids[i]), params)
    for i in range(n):
        if i + HEADERS_AHEAD < n:
            prefetch_word(memory.headers, np.uint64(ids[i + HEADERS_AHEAD]) * U2)
        if i + BLOCKS_AHEAD < n:
            fetch_block(memory, np.uint64(ids[i + BLOCKS_AHEAD]), params)
        feature = np.uint64(ids[i])
        if feature >= memory.n_headers:
            continue
        header = load_word(memory.headers, feature * U2)
        if counted:
            highest = max(highest, feature + U1)
            # Uses no branch: whether a feature was seen often is unpredictable.
            more = np.uint64(seen_of(header) < SEEN_FULL)
            header += more << SEEN_SHIFT
            store_word(memory.headers, feature * U2, header)
            mark_dirty_if(memory, feature, more)
        total, value = load_float(memory.headers, feature * U2 + U1), np.float64(values[i])
        rating, votes = rating_of(header, params), voting_length(header, params)
        if params.vote_min > 0.0:
            votes = count_heavy(memory, header, total, params)
        block = block_of(header)
        at, place = U0, block + votes
        while True:
            size = min(votes - at, LINE)
            if header & WIDE_FLAG:
                gather_wide(memory, header, at, size, (total, rating, value), terms, class_ids, n_terms)
            else:
                if wanted != NONE:
                    lane = find_lane(memory.arena, block + at, size, CLASS_MASK - wanted)
                    place = block + at + lane if lane < LINE else place
                gather_votes(memory.arena, block + at, size, total, rating, value, terms, n_terms)
            n_terms += size
            at += LINE
            if n_terms > MOST_TERMS:
                n_touched = add_terms(memory, terms, class_ids, n_terms, n_touched)
                n_terms = U0
            if at >= votes:
                break
        if wanted != NONE:
            store_word(memory.scratch, i + U1, place)
    n_touched = add_terms(memory, terms, class_ids, n_terms, n_touched)
    if highest > load_word(memory.counters, N_FEATURES):
        store_word(memory.counters, N_FEATURES, highest)
    return n_touched


@inlined
def pop_score(memory, class_id):
    score = load_float(memory.scores, class_id)
    store_float(memory.scores, class_id, 0.0)
    return score


@inlined
def may_rank(mask, class_id):
    return class_id < np.uint64(len(mask)) and mask[class_id] != 0


@inner
def select_small(memory, n_touched, mask, ids_out, scores_out):
    """Select the best touched classes by insertion and zero the scores; for small k, where most fail one comparison."""
    n_kept, masked = I0, len(mask) > 0
    last_score, last_id = -np.inf, np.int32(-1)
    for i in range(n_touched):
        at = np.uint64(load_id(memory.touched, i))
        class_id = np.int32(at)
        score = pop_score(memory, at)
        if score < last_score or (masked and not may_rank(mask, at)):
            continue
        if n_kept < len(ids_out) or comes_before(score, class_id, last_score, last_id):
            n_kept = keep_best(score, class_id, ids_out, scores_out, n_kept, len(ids_out))
            if n_kept == len(ids_out):
                last_score, last_id = scores_out[n_kept - 1], ids_out[n_kept - 1]
    return n_kept


@inner
def select_large(memory, n_touched, mask, ids_out, scores_out):
    """Do the same as ``select_small`` by a heap, for large k."""
    n_kept, masked = I0, len(mask) > 0
    for i in range(n_touched):
        at = np.uint64(load_id(memory.touched, i))
        class_id = np.int32(at)
        score = pop_score(memory, at)
        if not masked or may_rank(mask, at):
            n_kept = offer(class_id, score, ids_out, scores_out, n_kept)
    sort_kept(ids_out, scores_out, n_kept)
    return n_kept
