"""Gram matrices of sparse rows."""

import numpy as np

from abound_core.numba.decorators import kernel


@kernel
def add_gram(indptr, indices, values, gram):
    """Add X'X of sparse rows to the upper triangle of a matrix, in place.

    Parameters
    ----------
    indptr, indices : int32 or int64, shapes (n + 1,) and (nnz,)
        Indices ascend in a row.
    values : float32 or float64, shape (nnz,)
    gram : float64, shape (d, d)
    """
    for row in range(len(indptr) - 1):
        end = indptr[row + 1]
        for at in range(indptr[row], end):
            value = np.float64(values[at])
            line = gram[indices[at]]
            for other in range(at, end):
                line[indices[other]] += value * values[other]
