"""The leading eigenvectors of a symmetric operator that is known by its products only (randomized subspace iteration).

Algorithms 1 and 2 of Mineiro and Karampatziakis ("Fast Label Embeddings via Randomized Linear Algebra", 2015), which
differ in the product alone; after Halko, Martinsson and Tropp (SIAM Review 2011).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from core.methods.progress import Progress, part

Floats = npt.NDArray[np.float64]

ROWS = 2**16
"""That are made orthonormal at a time: LAPACK lets no other thread go on meanwhile, and a job must be heard of."""

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
        progress("subspace", turn / (q + 1))
        basis = orthonormal(product(basis, progress), part(progress, (turn + 0.5) / (q + 1), (turn + 1) / (q + 1)))
    progress("subspace", q / (q + 1))
    image = product(basis, progress)
    squares, inner = np.linalg.eigh(image.T @ image)
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
    n = len(matrix)
    if n <= ROWS:
        return np.asarray(np.linalg.qr(matrix)[0], np.float64)
    tops = []
    for first in range(0, n, ROWS):
        progress("subspace", first / n)
        block, top = np.linalg.qr(matrix[first : first + ROWS])
        matrix[first : first + ROWS, : block.shape[1]] = block
        tops.append(top)
    turns = np.linalg.qr(np.concatenate(tops))[0]
    start = 0
    for first, top in zip(range(0, n, ROWS), tops, strict=True):
        rows = matrix[first : first + ROWS]
        rows[:] = rows[:, : len(top)] @ turns[start : start + len(top)]
        start += len(top)
    return matrix
