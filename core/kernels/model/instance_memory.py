"""The memory of instances: the newest instances with a vector and their labels, and the nearest of them.

It is a ring. With ``most`` places, the instance with number i (from 0) lies in place i mod ``most``. To find the
**neighbours** of an instance, every vector that is kept is compared; with q and r two vectors (int8),

    cos = q r / (|q| |r|),    w = max(cos, 0)^8

and the ``NEIGHBOURS`` with the largest cosines are the neighbours, of equal ones the newest. With w divided by the sum
over all neighbours, the **share** of a class is the sum of w over those that have it; 0 if no cosine is above 0. The
product q r is exact in int32, and all sums are in the order of the neighbours: every replica has the same bits.
"""

from typing import Any, NamedTuple

import numpy as np

from abound.core.kernels.decorators import inlined, inner
from abound.core.kernels.intrinsics import I0, pointer
from abound.core.kernels.records.record import DENSE

NEIGHBOURS = 20

MOST_LABELS = 16
"""Labels of an instance that are kept: the first ones."""

WRITTEN, MOST = range(2)
"""Places in ``state``: the number of the next instance, and the places of the ring (0: the model has no memory)."""

PAGE = 64
"""Instances in a page of the digest."""

DOTS = 512
"""Numbers of vectors to compare that take as long as updating one feature."""


class Neighbours(NamedTuple):
    """Working memory for the neighbours of an instance, nearest first: places in the ring, cosines and weights."""

    places: Any
    cosines: Any
    weights: Any


@inlined
def new_neighbours():
    """Return working memory."""
    return Neighbours(np.empty(NEIGHBOURS, np.int32), np.empty(NEIGHBOURS), np.empty(NEIGHBOURS))


@inlined
def n_kept(memory):
    """Return the number of instances that are kept."""
    return min(memory.state[WRITTEN], memory.state[MOST])


@inlined
def remembers(memory):
    """Return whether the model has a memory."""
    return memory.state[MOST] > 0


@inlined
def is_full(memory):
    """Return whether the arrays must grow before another instance is kept."""
    return memory.state[WRITTEN] < memory.state[MOST] and memory.state[WRITTEN] >= len(memory.lengths)


@inlined
def work_of(memory):
    """Return the work of one search, in updates of features."""
    return n_kept(memory) * memory.vectors.shape[1] // DOTS


@inner
def product(data, at, vectors, first, d):
    """Return the product of two vectors of ``d`` numbers (int8), from byte ``at`` and from byte ``first`` on."""
    total = np.int32(0)
    for i in range(d):
        total = np.int32(total + np.int32(np.int8(data[at + i])) * np.int32(vectors[first + i]))
    return total


@inner
def search_places(memory, data, at, length, first, end, found, n):
    """Compare the places from ``end`` - 1 down to ``first``, newest first; return the number of neighbours."""
    d, vectors, lengths = memory.vectors.shape[1], pointer(memory.vectors), pointer(memory.lengths)
    for place in range(end - 1, first - 1, -1):
        cosine = np.float64(product(data, at, vectors, np.int64(place) * d, d)) / (length * lengths[place])
        if n == NEIGHBOURS and cosine <= found.cosines[n - 1]:
            continue
        to = n if n < NEIGHBOURS else n - 1
        while to > 0 and cosine > found.cosines[to - 1]:
            found.cosines[to], found.places[to] = found.cosines[to - 1], found.places[to - 1]
            to -= 1
        found.cosines[to], found.places[to] = cosine, np.int32(place)
        n = min(n + 1, NEIGHBOURS)
    return n


@inner
def find_neighbours(memory, data, dense_at, length, found):
    """Write the neighbours of a vector; return their number.

    Weights are divided by their sum. Those of neighbours with a cosine below 0, and of missing ones, are 0.

    Parameters
    ----------
    memory : InstanceMemoryArrays
    data, dense_at
        Pointer to the vector, and the byte at which its dense part begins; of the dimension of the model.
    length : float
        |q|.
    found : Neighbours
    """
    kept, written = n_kept(memory), memory.state[WRITTEN]
    found.weights[:] = 0.0
    if kept == 0:
        return I0
    at, newest = dense_at + DENSE, written % memory.state[MOST]
    n = search_places(memory, data, at, length, I0, newest if written > kept else kept, found, I0)
    if written > kept:
        n = search_places(memory, data, at, length, newest, kept, found, n)
    total = 0.0
    for i in range(n):
        cosine = max(found.cosines[i], 0.0)
        square = cosine * cosine
        found.weights[i] = (square * square) * (square * square)
        total += found.weights[i]
    for i in range(n):
        found.weights[i] = found.weights[i] / total if total > 0.0 else 0.0
    return n


@inner
def share_of(memory, found, class_id):
    """Return the share of a class among the neighbours."""
    share = 0.0
    for i in range(NEIGHBOURS):
        if found.weights[i] == 0.0:
            break
        for j in range(MOST_LABELS):
            own = memory.class_ids[found.places[i], j]
            if own < 0:
                break
            if own == class_id:
                share += found.weights[i]
                break
    return share


@inner
def keep_instance(memory, data, dense_at, length, class_ids, offset):
    """Keep an instance in place of the oldest one.

    Parameters
    ----------
    data, dense_at, length
        As for ``find_neighbours``.
    class_ids : int32 array, shape (m,)
        Its true labels, at least one.
    offset : int64 array, shape (3,)
    """
    d, at, vectors = memory.vectors.shape[1], dense_at + DENSE, pointer(memory.vectors)
    place = memory.state[WRITTEN] % memory.state[MOST]
    for i in range(d):
        vectors[place * d + i] = np.int8(data[at + i])
    memory.lengths[place] = length
    for j in range(MOST_LABELS):
        memory.class_ids[place, j] = class_ids[j] if j < len(class_ids) else -1
    memory.offsets[place] = offset
    memory.dirty[place // PAGE] = 1
    memory.state[WRITTEN] += 1
