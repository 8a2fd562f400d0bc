"""Skip-grams with negative sampling over instances, and the contexts of instances."""

import numpy as np
from numba import njit

from abound_core.numba.decorators import inner, kernel
from abound_core.numba.top_k import offer

regrouped = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
"""A kernel whose sums may be split into partial sums, in a way that is fixed for a kind of processor."""

_STEPS = 1000
_LARGEST = 6.0
SIGMOID = (1.0 / (1.0 + np.exp(-((np.arange(_STEPS + 1) / _STEPS * 2.0 - 1.0) * _LARGEST)))).astype(np.float32)
"""The logistic function from -6 to 6; outside it counts as 0 and 1."""


@regrouped
def dot(left, right):
    """Return the dot product of two float32 vectors; the compiler chooses the order of the sum."""
    total = np.float32(0.0)
    for i in range(len(left)):
        total += left[i] * right[i]
    return total


@inner
def sigmoid(score):
    """Return 1 / (1 + exp(-score)) from a table, to 0.005."""
    if score >= _LARGEST:
        return np.float32(1.0)
    if not score > -_LARGEST:  # also for NaN
        return np.float32(0.0)
    return SIGMOID[int((score + _LARGEST) * (_STEPS / (2.0 * _LARGEST)))]


@kernel
def nearest_by_labels(first, end, labels, carriers, lengths, jitter, contexts_out):
    """Find the nearest other rows of rows ``first`` to ``end`` by the cosine of their label vectors.

    ``labels`` and ``carriers`` are compressed rows of Y and of Y', ``lengths`` the lengths of the rows of Y, and
    ``jitter`` small numbers that break ties: float64, shape (n,). ``contexts_out`` (int32, shape (end - first, k)) is
    written, -1 where fewer rows share a label.
    """
    starts, ids = labels
    carrier_starts, carrier_ids = carriers
    n, k = len(lengths), contexts_out.shape[1]
    together = np.zeros(n, np.int32)
    touched = np.empty(n, np.int32)
    kept, sims = np.empty(k, np.int32), np.empty(k)
    for row in range(first, end):
        n_touched = n_kept = 0
        for at in range(starts[row], starts[row + 1]):
            label = ids[at]
            for place in range(carrier_starts[label], carrier_starts[label + 1]):
                other = carrier_ids[place]
                if together[other] == 0:
                    touched[n_touched] = other
                    n_touched += 1
                together[other] += 1
        for place in range(n_touched):
            other = touched[place]
            if other != row:
                sim = together[other] / (lengths[row] * lengths[other]) + jitter[(row + other) % n]
                n_kept = offer(other, sim, kept, sims, n_kept)
            together[other] = 0
        for place in range(k):
            contexts_out[row - first, place] = kept[place] if place < n_kept else -1


@inner
def next_below(state, n):
    """Return the next number below n < 2^32 of a xorshift generator; the state is one uint64 other than 0."""
    word = state[0]
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    state[0] = word
    return np.int64(((word >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@kernel
def learn_skip_grams(centres, contexts, pairs, order, negatives, steps, state):
    """Run one pass over all pairs of an instance and one of its contexts, in place.

    Parameters
    ----------
    centres, contexts : float32, shape (n, dim)
        Vectors of an instance as a centre and as a context.
    pairs : int32, shape (n, k)
        Contexts of each instance, padded with -1.
    order : int64, shape (n,)
    steps : (float, float)
        Step size at the first and at the last instance.
    state : uint64, shape (1,)
        State of the generator; not 0.
    """
    n, dim = centres.shape
    slope = np.empty(dim, np.float32)
    for turn in range(len(order)):
        row = order[turn]
        step = np.float32(steps[0] + (steps[1] - steps[0]) * turn / len(order))
        centre = centres[row]
        for place in range(pairs.shape[1]):
            if pairs[row, place] < 0:
                break
            slope[:] = np.float32(0.0)
            for sample in range(negatives + 1):
                other = np.int64(pairs[row, place]) if sample == 0 else next_below(state, n)
                if sample > 0 and other == row:
                    continue
                context = contexts[other]
                score = dot(centre, context)
                error = (np.float32(1.0) if sample == 0 else np.float32(0.0)) - sigmoid(score)
                error *= step
                for i in range(dim):
                    slope[i] += error * context[i]
                    context[i] += error * centre[i]
            for i in range(dim):
                centre[i] += slope[i]
