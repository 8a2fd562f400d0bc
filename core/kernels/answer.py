"""Answering: from the bytes of a vector to ranked classes, in one call."""

import numpy as np
from numba import njit

from core.kernels.calibration import estimate
from core.kernels.keys import find_vector
from core.kernels.machine import inner
from core.kernels.memory import load_f32, load_u32
from core.kernels.retrieval import explain_score, rank_classes


@inner
def resolve(vector, features, ids, values):
    """Feature ids (-1 for unknown ones) and values of a vector; how many there are.

    Parameters
    ----------
    vector : bytes
        Well formed; not checked.
    features : KeyArrays
    ids, values : int32 array, float32 array
        Written; at least as long as the vector has features.
    """
    n = find_vector(features, vector, ids)
    for i in range(n):
        values[i] = load_f32(vector, 4 + 4 * i)
    return n


@njit(cache=True, nogil=True)
def rank_vector(vector, held, mask, ids_out, scores_out):
    """Rank the classes for a vector (RankedRetrieval, Madani et al. 2009, section 3.2).

    Parameters
    ----------
    vector : bytes
    held : Held
        The accumulator of scores is used and zeroed again, the scratch is overwritten; nothing else changes.
    mask : uint8 array, shape (0,) or (n_classes,)
        1 for a class that may be ranked; empty: all may.
    ids_out, scores_out : int32, float64 array, shape (k,)
        Written, best first, equal scores by the class seen first.

    Returns
    -------
    n_ranked : int
        At most k; -1 when the scratch is too short for the vector, and nothing was done.
    """
    live, scratch = held.live, held.scratch
    if load_u32(vector, 0) > len(scratch.ids):
        return -1
    n = resolve(vector, live.features, scratch.ids, scratch.values)
    return rank_classes(live.postings, live.params, scratch.ids[:n], scratch.values[:n], mask, ids_out, scores_out)


@njit(cache=True, nogil=True)
def rank_estimated(vector, held, mask, ids_out, scores_out, estimates_out):
    """``rank_vector`` by a model that calibrates, with the probability of each class: float64, shape (k,).

    A probability goes by the best two of all classes, whatever the mask leaves of them.
    """
    n = rank_vector(vector, held, mask, ids_out, scores_out)
    best_ids, best_scores, n_best = ids_out, scores_out, n
    if len(mask) > 0 or len(ids_out) < 2:
        best_ids, best_scores = np.empty(2, np.int32), np.empty(2, np.float64)
        n_best = rank_vector(vector, held, np.empty(0, np.uint8), best_ids, best_scores)
    if n > 0:
        weights, end = held.calibration.weights, min(n_best, 2)
        estimate(weights, ids_out[:n], scores_out[:n], best_ids[:end], best_scores[:end], estimates_out)
    return n


@njit(cache=True, nogil=True)
def explain_vector(vector, held, class_id, contributions):
    """What each feature of a vector adds to the score of a class: float64, shape (n,). The scratch is long enough."""
    live, scratch = held.live, held.scratch
    n = resolve(vector, live.features, scratch.ids, scratch.values)
    explain_score(live.postings, live.params, scratch.ids[:n], scratch.values[:n], class_id, contributions)
