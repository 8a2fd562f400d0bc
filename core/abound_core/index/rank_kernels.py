"""Ranking and explanation by either update rule, in lists or in rows."""

import numpy as np

from abound_core.index.layout_kernels import FORM, NONE, by_rule, memory_of
from abound_core.index.sls_kernels import add_weighted, explain_squares, weigh
from abound_core.index.sls_rows_kernels import ROWS, explain_rows, touch_all
from abound_core.index.votes_kernels import (
    SMALL_K,
    add_votes,
    connection,
    count_heavy,
    pop_score,
    rating_of,
    select_large,
    select_small,
    vote_of,
)
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import U1, U2, load_float, load_id, load_word


@inner
def add_votes_sls(memory, params, ids, values, counted, wanted):
    """Add the votes for ``sls``, like ``add_votes``; its last two arguments are for ``fsu`` only."""
    if load_word(memory.counters, FORM) == ROWS:
        return touch_all(memory, params, ids, values)
    weigh(memory, params, ids, values)
    return add_weighted(memory, params, ids, values)


@kernel
def rank_classes(arrays, params, ids, values, mask, ids_out, scores_out):
    """Rank the classes for an instance.

    Parameters
    ----------
    ids, values : int32, float32, shape (l,)
        The active features; ids outside of the index are skipped. With ``sls`` the values are overwritten.
    mask : uint8, shape (0,) or (classes,)
        1 for a class that may be ranked; empty: all may.
    ids_out, scores_out : int32, float64, shape (k,)
        Written: the best classes, best first, equal scores by class id.

    Returns
    -------
    n_ranked : int
        At most k.
    """
    memory = memory_of(arrays)
    n_touched = by_rule(params, add_votes, add_votes_sls)(memory, params, ids, values, False, NONE)
    if len(ids_out) == 0:
        for i in range(n_touched):
            pop_score(memory, np.uint64(load_id(memory.touched, i)))
        return 0
    if len(ids_out) <= SMALL_K:
        return select_small(memory, n_touched, mask, ids_out, scores_out)
    return select_large(memory, n_touched, mask, ids_out, scores_out)


@kernel
def explain_score(arrays, params, ids, values, class_id, contributions_out):
    """Compute the contribution of each feature to the score of a class; the same terms as in ``rank_classes``.

    Parameters
    ----------
    contributions_out : float64, shape (l,)
        Written; 0 for a feature without a voting connection to the class. An intercept, in rows, is left out.
    """
    memory = memory_of(arrays)
    by_rule(params, explain_fsu, explain_sls)(memory, params, ids, values, np.uint64(class_id), contributions_out)


@inner
def explain_sls(memory, params, ids, values, class_id, contributions_out):
    if load_word(memory.counters, FORM) == ROWS:
        explain_rows(memory, params, ids, values, class_id, contributions_out)
    else:
        explain_squares(memory, params, ids, values, class_id, contributions_out)


@inlined
def explain_fsu(memory, params, ids, values, class_id, contributions_out):
    for i in range(len(ids)):
        contributions_out[i] = 0.0
        feature = np.uint64(ids[i])
        if feature >= memory.n_headers:
            continue
        header = load_word(memory.headers, feature * U2)
        total = load_float(memory.headers, feature * U2 + U1)
        for at in range(count_heavy(memory, header, total, params)):
            other, count = connection(memory, header, at)
            if other == class_id:
                contributions_out[i] = vote_of(count, total, rating_of(header, params), np.float64(values[i]))
                break
