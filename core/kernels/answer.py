"""Answering: from the bytes of a vector to ranked classes, in one call."""

from numba import njit

from core.kernels.keys import find_vector
from core.kernels.memory import load_f32, load_u32
from core.kernels.retrieval import explain_score, rank_classes


@njit(cache=True, nogil=True)
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
def explain_vector(vector, held, class_id, contributions):
    """What each feature of a vector adds to the score of a class: float64, shape (n,). The scratch is long enough."""
    live, scratch = held.live, held.scratch
    n = resolve(vector, live.features, scratch.ids, scratch.values)
    explain_score(live.postings, live.params, scratch.ids[:n], scratch.values[:n], class_id, contributions)
