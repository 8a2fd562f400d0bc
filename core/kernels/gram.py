"""Products of the sparse rows of a matrix with themselves."""

import numpy as np

from core.kernels.machine import kernel


@kernel
def add_gram(indptr, indices, values, gram):
    """Add X'X of sparse rows to a matrix, in place, its upper triangle only.

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


@kernel
def fill_outer(indptr, indices, values, d, gram):
    """X X' of sparse rows, all of it.

    Parameters
    ----------
    indptr, indices : int32 or int64, shapes (n + 1,) and (nnz,)
    values : float32 or float64, shape (nnz,)
    d : int
        Columns of X.
    gram : float64, shape (n, n)
        Written.
    """
    n = len(indptr) - 1
    dense = np.zeros(d)
    for row in range(n):
        for at in range(indptr[row], indptr[row + 1]):
            dense[indices[at]] = values[at]
        for other in range(row, n):
            total = 0.0
            for at in range(indptr[other], indptr[other + 1]):
                total += dense[indices[at]] * values[at]
            gram[row, other] = total
            gram[other, row] = total
        for at in range(indptr[row], indptr[row + 1]):
            dense[indices[at]] = 0.0
