"""Gram matrices of sparse rows."""

import numpy as np

from abound_core.numba.decorators import kernel


@kernel
def add_gram(indptr, indices, values, gram):
    """Add X'X of sparse rows to the upper triangle of a float64 matrix (d, d), in place; indices ascend in a row."""
    for row in range(len(indptr) - 1):
        end = indptr[row + 1]
        for at in range(indptr[row], end):
            value = np.float64(values[at])
            line = gram[indices[at]]
            for other in range(at, end):
                line[indices[other]] += value * values[other]
