"""The leading eigenvectors of a symmetric operator that is known by its products only (randomized subspace iteration).

Algorithms 1 and 2 of Mineiro and Karampatziakis ("Fast Label Embeddings via Randomized Linear Algebra", 2015), which
differ in the product alone; after Halko, Martinsson and Tropp (SIAM Review 2011).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from abound.core.methods.training.progress import Progress, part

Floats = npt.NDArray[np.float64]

ROWS = 2**16
"""That are made orthonormal at a time: LAPACK lets no other thread go on meanwhile, and a job must be heard of."""

WORK = 2**32
"""Rows times the squared columns that are made orthonormal at a time, where there are many columns: half a second."""

Product = Callable[[Floats, Progress], Floats]
"""Of the operator with a matrix of shape (size, m), m at most k + p: nothing larger is ever asked for."""


def leading(
    product: Product, size: int, k: int, p: int, q: int, rng: np.random.Generator, progress: Progress
) -> tuple[Floats, Floats]:
    """The ``k`` leading eigenvectors and the absolute values of their eigenvalues, largest first.

    Parameters
    ----------
    product : callable
    size : int
        Order of the operator.
    k, p, q : int
        Eigenvectors, columns more than these, and rounds before the last: q + 1 products in all.
    rng : Generator
    progress : callable

    Returns
    -------
    vectors : float64 array, shape (size, min(k, size))
        Orthonormal; columns of 0 where the operator has a smaller rank. Their signs are arbitrary but the same for the
        same seed.
    values : float64 array, shape (min(k, size),)
    """
    width = min(k + p, size)
    basis = rng.standard_normal((size, width))
    for turn in range(q):
        start, middle, end = turn / (q + 1), (turn + 0.5) / (q + 1), (turn + 1) / (q + 1)
        progress("subspace", start)
        basis = product(basis, part(progress, start, middle))
        progress("subspace", middle)
        basis = orthonormal(basis, part(progress, middle, end))
    progress("subspace", q / (q + 1))
    image = product(basis, part(progress, q / (q + 1), 1.0))
    progress("subspace", 1.0)
    squares = image.T @ image
    progress("subspace", 1.0)
    squares, inner = np.linalg.eigh(squares)
    progress("subspace", 1.0)
    order = np.argsort(-squares, kind="stable")[:k]
    values = np.sqrt(np.maximum(squares[order], 0.0))
    real = values > 1e-7 * max(float(values[0]), np.finfo(np.float64).tiny)
    values[~real] = 0.0
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=real)
    return image @ (inner[:, order] * inverse), values


def orthonormal(matrix: Floats, progress: Progress) -> Floats:
    """An orthonormal basis of the columns, in place of them where there are many rows.

    By blocks of rows, and of what is left of each block once more (TSQR: Demmel, Grigori, Hoemmen and Langou, SIAM
    Journal on Scientific Computing 2012).
    """
    n, width = matrix.shape
    rows_at_once = max(4 * width, min(ROWS, WORK // max(1, width**2)))
    if n <= rows_at_once:
        return np.asarray(np.linalg.qr(matrix)[0], np.float64)
    tops = []
    for first in range(0, n, rows_at_once):
        progress("subspace", 0.5 * first / n)
        block, top = np.linalg.qr(matrix[first : first + rows_at_once])
        matrix[first : first + rows_at_once, : block.shape[1]] = block
        tops.append(top)
    turns = orthonormal(np.concatenate(tops), part(progress, 0.5, 0.5))
    start = 0
    for first, top in zip(range(0, n, rows_at_once), tops, strict=True):
        progress("subspace", 0.5 + 0.5 * first / n)
        rows = matrix[first : first + rows_at_once]
        rows[:] = rows[:, : len(top)] @ turns[start : start + len(top)]
        start += len(top)
    return matrix
