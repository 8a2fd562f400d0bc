"""Ranking: from the bytes of a vector to ranked classes, in one call."""

from __future__ import annotations

import numpy as np

from abound_core.index.rank_kernels import explain_score, rank_classes
from abound_core.instances.codes_kernels import EXPANSION, WINNERS, expand_at
from abound_core.instances.record_kernels import vector_shape
from abound_core.instances.vocabulary_kernels import N_IDS, find_vector
from abound_core.model.apply_kernels import CODES, DIMENSION
from abound_core.model.calibration_kernels import estimate
from abound_core.model.reranker_kernels import (
    INDEX_CANDIDATES,
    find_candidates,
    is_usable,
    new_candidates,
    put_shares,
    write_answer,
)
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import load_f32, load_u32, pointer


@inner
def resolve(vector, features, ids, values):
    """Write feature ids (-1 for unknown ones) and values of a well-formed vector; return their number."""
    n = find_vector(features, vector, ids)
    for i in range(n):
        values[i] = load_f32(vector, 4 + 4 * i)
    return n


@inlined
def note_plain(decisions, scores, n):
    """Keep the index's best score of an instance, of a model that decides."""
    if len(decisions.plain) > 0:
        decisions.plain[0] = scores[0] if n > 0 else 0.0


@kernel
def rank_vector(vector, held, mask, ids_out, scores_out):
    """Rank the classes for a vector (RankedRetrieval, Madani et al. 2009, section 3.2); return their number.

    The score accumulator of ``held`` is used and zeroed again. Returns -1 if the scratch is too short for the vector,
    and nothing was done.

    Parameters
    ----------
    mask : uint8 array, shape (0,) or (n_classes,)
        1 for a class that may be ranked; empty: all may.
    ids_out, scores_out : int32, float64 array, shape (k,)
        Written, best first; of equal scores the class learned first.
    """
    live, scratch = held.live, held.scratch
    if load_u32(vector, 0) > len(scratch.ids):
        return -1
    n = resolve(vector, live.features, scratch.ids, scratch.values)
    return rank_classes(live.postings, live.params, scratch.ids[:n], scratch.values[:n], mask, ids_out, scores_out)


@kernel
def rank_estimated(vector, held, mask, ids_out, scores_out, estimates_out):
    """Run ``rank_vector`` for a model that calibrates, and write the probability of each class: float64, shape (k,).

    A probability depends on the best two of all classes, including classes that the mask excludes.
    """
    n = rank_vector(vector, held, mask, ids_out, scores_out)
    best_ids, best_scores, n_best = ids_out, scores_out, n
    if len(mask) > 0 or len(ids_out) < 2:
        best_ids, best_scores = np.empty(2, np.int32), np.empty(2, np.float64)
        n_best = rank_vector(vector, held, np.empty(0, np.uint8), best_ids, best_scores)
    note_plain(held.decisions, best_scores, n_best)
    if n > 0:
        end = min(n_best, 2)
        estimate(held.calibration, ids_out[:n], scores_out[:n], best_ids[:end], best_scores[:end], estimates_out)
    return n


@kernel
def rank_reranked(vector, held, mask, ids_out, scores_out, estimates_out):
    """Rank the classes for a vector with a dense part, for a model that re-ranks; as ``rank_estimated``.

    Scores and estimates are the shares of the candidates, and 0 for all other classes. If the index answers, scores are
    its own. For a model that calibrates, estimates are the probabilities of the scores. Shares and probabilities depend
    on the candidates of all classes, including classes that the mask excludes. Returns -2 if the dense part is not of
    the model's dimension, and nothing was done.
    """
    live, scratch, reranker, data = held.live, held.scratch, held.reranker, pointer(vector)
    shape = vector_shape(data, len(vector), 0)
    if not is_usable(reranker, live.control[DIMENSION], data, shape.dense_at):
        return -2
    if len(scratch.memory) < len(vector) + EXPANSION or len(scratch.ids) < shape.n_features + WINNERS:
        return -1
    expand_at(data, shape, live.control[CODES], live.control[DIMENSION], pointer(scratch.memory))
    every, k, n_classes = np.empty(0, np.uint8), len(ids_out), live.labels.state[N_IDS]
    found, highest, total = new_candidates(), 0.0, 1.0
    best_ids, best_scores, n_best = np.empty(2, np.int32), np.empty(2, np.float64), 0
    for masked in range(2 if len(mask) > 0 else 1):
        allowed = mask if masked else every
        ids = np.empty(max(INDEX_CANDIDATES, k), np.int32)
        scores = np.empty(len(ids), np.float64)
        n_values = resolve(scratch.memory, live.features, scratch.ids, scratch.values)
        active = scratch.ids[:n_values], scratch.values[:n_values]
        n_ranked = rank_classes(live.postings, live.params, active[0], active[1], allowed, ids, scores)
        n, n_index = find_candidates(
            reranker, n_classes, data, shape.dense_at, allowed, ids[:n_ranked], scores[:n_ranked], found
        )
        if not masked:
            note_plain(held.decisions, scores, n_ranked)
        if not masked and n > 0:
            highest = found.sorted[0]
            total = put_shares(found, n, highest, 1.0)
        put_shares(found, n, highest, total)
        n_out = write_answer(reranker, found, n, n_index, ids[:n_ranked], scores, ids_out, scores_out, estimates_out)
        if not masked and len(held.calibration.weights) > 0:
            n_best = write_answer(
                reranker, found, n, n_index, ids[:n_ranked], scores, best_ids, best_scores, np.empty(2)
            )
    if len(held.calibration.weights) > 0 and n_out > 0:
        best = best_ids[:n_best], best_scores[:n_best]
        estimate(held.calibration, ids_out[:n_out], scores_out[:n_out], best[0], best[1], estimates_out)
    return n_out


@kernel
def explain_vector(vector, held, class_id, contributions):
    """Write the contribution of each feature to a class's score: float64, shape (n,). Scratch must suffice."""
    live, scratch = held.live, held.scratch
    n = resolve(vector, live.features, scratch.ids, scratch.values)
    explain_score(live.postings, live.params, scratch.ids[:n], scratch.values[:n], class_id, contributions)
