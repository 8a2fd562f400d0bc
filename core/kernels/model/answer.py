"""Ranking: from the bytes of a vector to ranked classes, in one call."""

from __future__ import annotations

import numpy as np

from abound.core.kernels.decorators import inner, kernel
from abound.core.kernels.index.rank import explain_score, rank_classes
from abound.core.kernels.intrinsics import load_f32, load_u32
from abound.core.kernels.model.calibration import estimate
from abound.core.kernels.names.table import find_vector


@inner
def resolve(vector, features, ids, values):
    """Write feature ids (-1 for unknown ones) and values of a vector; return their number.

    Parameters
    ----------
    vector : bytes
        Well formed; not checked.
    features : KeyArrays or TablePointers
    ids, values : int32 array, float32 array
        Written; at least as long as the vector has features.
    """
    n = find_vector(features, vector, ids)
    for i in range(n):
        values[i] = load_f32(vector, 4 + 4 * i)
    return n


@kernel
def rank_vector(vector, held, mask, ids_out, scores_out):
    """Rank the classes for a vector (RankedRetrieval, Madani et al. 2009, section 3.2).

    Parameters
    ----------
    vector : bytes
    held : ModelHandle
        The score accumulator is used and zeroed again, the scratch is overwritten; nothing else changes.
    mask : uint8 array, shape (0,) or (n_classes,)
        1 for a class that may be ranked; empty: all may.
    ids_out, scores_out : int32, float64 array, shape (k,)
        Written, best first; of equal scores the class learned first.

    Returns
    -------
    n_ranked : int
        At most k; -1 if the scratch is too short for the vector, and nothing was done.
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
    if n > 0:
        weights, end = held.calibration.weights, min(n_best, 2)
        estimate(weights, ids_out[:n], scores_out[:n], best_ids[:end], best_scores[:end], estimates_out)
    return n


@kernel
def explain_vector(vector, held, class_id, contributions):
    """Write the contribution of each feature of a vector to a class's score: float64, shape (n,).

    Scratch must suffice.
    """
    live, scratch = held.live, held.scratch
    n = resolve(vector, live.features, scratch.ids, scratch.values)
    explain_score(live.postings, live.params, scratch.ids[:n], scratch.values[:n], class_id, contributions)
