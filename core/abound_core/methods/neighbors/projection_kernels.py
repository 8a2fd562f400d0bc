"""Random projections drawn from seeds, and nearest-neighbor selection from a tile of products."""

import math

import numpy as np

from abound_core.methods.neighbors.neighbors_kernels import keep_block
from abound_core.numba.decorators import inlined, kernel
from abound_core.numba.exp_log import logarithm

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_EIGHTH = np.int64(2**29)
_TURN = 2.0 * math.pi * 2.0**-32
_SINE = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(8, -1, -1))
_COSINE = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(8, -1, -1))


@inlined
def splitmix64(number):
    """Return 64 random-looking bits from any 64 bits (the finalizer of splitmix64)."""
    number = (number ^ (number >> _S30)) * _FIRST
    number = (number ^ (number >> _S27)) * _SECOND
    return number ^ (number >> _S31)


@inlined
def sine_and_cosine(part):
    """Return sin and cos of ``part`` / 2^32 of a turn, to about 2^-52, equal on every processor: uses + - * only.

    ``part`` is an int64 from 0 to 2^32 - 1. The nearest quarter turn is subtracted exactly. The rest, at most an
    eighth of a turn, goes through nine terms of the series.
    """
    quarter = (part + _EIGHTH) >> 30
    x = np.float64(part - (quarter << 30)) * _TURN
    square, sine, cosine = x * x, 0.0, 0.0
    for factor in _SINE:
        sine = sine * square + factor
    for factor in _COSINE:
        cosine = cosine * square + factor
    sine *= x
    if quarter & 1:
        sine, cosine = cosine, -sine
    return (-sine, -cosine) if quarter & 2 else (sine, cosine)


@kernel
def draw_rows(seed, features, out):
    """Draw rows of a matrix of independent N(0, 1), each determined by the seed and the number of its feature.

    ``out`` (float32, shape (u, dim)) is written. Draws two numbers at a time by Box and Muller, from 32 random bits
    each. Calls no mathematical library, because the last bits of their results differ between processors.
    """
    dim = out.shape[1]
    for i in range(len(features)):
        state = splitmix64(seed + np.uint64(features[i]) * _STEP)
        for j in range(0, dim, 2):
            state += _STEP
            bits = splitmix64(state)
            length = math.sqrt(-2.0 * logarithm((np.float64(bits >> _S32) + 1.0) * 2.0**-32))
            sine, cosine = sine_and_cosine(np.int64(bits & _LOW))
            out[i, j] = length * cosine
            if j + 1 < dim:
                out[i, j + 1] = length * sine


@kernel
def keep_tile(tile, first, ids, sims, counts):
    """Offer a tile of similarities to the heaps of its rows; similarities of 0 and less are ignored.

    ``tile`` (float32, shape (m, t)) has those of each query to the instances from ``first`` on.
    """
    for row in range(tile.shape[0]):
        counts[row] = keep_block(tile[row], first, ids[row], sims[row], counts[row])


@kernel
def keep_candidates(queries, vectors, candidates, starts, ids, sims, counts):
    """Offer ``candidates[starts[i]:starts[i + 1]]``, each once, to the heap of query i."""
    for row in range(len(queries)):
        part = candidates[starts[row] : starts[row + 1]]
        found = np.empty(1)
        for i in range(len(part)):
            found[0] = np.dot(queries[row], vectors[part[i]])
            counts[row] = keep_block(found, part[i], ids[row], sims[row], counts[row])
