"""The leading eigenvectors of a symmetric operator given by its products only (randomized subspace iteration).

Algorithms 1 and 2 of Mineiro and Karampatziakis ("Fast Label Embeddings via Randomized Linear Algebra", 2015), which
differ only in the product; after Halko, Martinsson and Tropp (SIAM Review 2011).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from abound_core.methods.training.progress import Progress, subrange

Floats = npt.NDArray[np.float64]

ROWS = 2**16  # orthonormalised at a time: LAPACK blocks all other threads meanwhile, also heartbeats

WORK = 2**32  # rows times squared columns orthonormalised at a time if there are many columns: half a second

Product = Callable[[Floats, Progress], Floats]
"""Product of the operator with a matrix of shape (size, m), where m is at most k + p."""


def leading(
    product: Product, size: int, k: int, p: int, q: int, rng: np.random.Generator, progress: Progress
) -> tuple[Floats, Floats]:
    """Return the ``k`` leading eigenvectors and the absolute values of their eigenvalues, largest first.

    ``p`` additional columns and ``q`` + 1 products with the operator of order ``size``. Vectors have shape
    (size, min(k, size)) and are orthonormal, with columns of 0 where the operator has a smaller rank. Their signs are
    arbitrary but the same for the same seed.
    """
    width = min(k + p, size)
    basis = rng.standard_normal((size, width))
    for turn in range(q):
        start, middle, end = turn / (q + 1), (turn + 0.5) / (q + 1), (turn + 1) / (q + 1)
        progress("subspace", start)
        basis = product(basis, subrange(progress, start, middle))
        progress("subspace", middle)
        basis = orthonormal(basis, subrange(progress, middle, end))
    progress("subspace", q / (q + 1))
    image = product(basis, subrange(progress, q / (q + 1), 1.0))
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
    """Return an orthonormal basis of the columns; if there are many rows, it overwrites them.

    Each block of rows is factored, then the remaining factors of all blocks together (TSQR: Demmel, Grigori, Hoemmen
    and Langou, SIAM Journal on Scientific Computing 2012).
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
    turns = orthonormal(np.concatenate(tops), subrange(progress, 0.5, 0.5))
    start = 0
    for first, top in zip(range(0, n, rows_at_once), tops, strict=True):
        progress("subspace", 0.5 + 0.5 * first / n)
        rows = matrix[first : first + rows_at_once]
        rows[:] = rows[:, : len(top)] @ turns[start : start + len(top)]
        start += len(top)
    return matrix
