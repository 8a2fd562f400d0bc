"""Ridge regression for many targets at once, the fit that all embeddings use.

Minimises |T - [X 1] W|^2 + penalty |W|^2 for sparse X. The smaller of X'X and XX' is factored once. If both are too
large to hold, conjugate gradients solve the normal equations, with products of X only.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import linalg, sparse
from scipy.linalg import blas

from abound_core.methods.embeddings.gram_kernels import add_gram
from abound_core.methods.training.matrices import Csr
from abound_core.methods.training.progress import Progress, no_progress
from abound_core.methods.training.row_blocks import pieces

Floats = npt.NDArray[np.float64]
Real = TypeVar("Real", np.float32, np.float64)

LARGEST = 6_000  # order of the largest matrix that is factored: 0.3 GB, and about 3 seconds

ALWAYS_FACTORED = 1e10  # operations up to which factoring always pays

USUAL_TARGETS = 100

STEPS = 60  # most steps of conjugate gradients

TOLERANCE = 1e-4  # share of the initial length to which every residual must fall

BLOCK_BYTES = 2**27  # of a block of rows, times the targets

PRODUCTS = 2**29  # of two numbers added to X'X or XX' between two progress reports: about half a second

DENSE = 16  # such products that BLAS computes in the time of one of sparse rows


class Ridge:
    """Ridge regression for one X and any targets.

    Costs nnz l + min(n, d)^3 / 3 once where that is small or min(n, d) < 6,000 and rows are long, and nnz m for m
    targets; else at most 60 times 2 nnz m. If ``relative``, ``penalty`` is a multiple of the mean of the diagonal of
    X'X. ``progress`` is called during the factoring, which takes long where rows are long.
    """

    def __init__(self, X: Csr, penalty: float, *, relative: bool = False, progress: Progress = no_progress) -> None:
        self.X = X
        n, d = X.shape
        if relative:
            penalty *= float(np.dot(X.data, X.data)) / max(d, 1)
        self.penalty = penalty
        self.order = min(n, d + 1)
        self._factor: tuple[Floats, bool] | None = None
        if not _is_factored(self.order, X.nnz):
            counts = np.bincount(X.indices, weights=X.data.astype(np.float64) ** 2, minlength=d)
            self._scale = 1.0 / (np.append(counts, n) + penalty)
        else:
            gram = self._by_features(progress) if d < n else self._by_instances(progress)
            gram[np.diag_indices(self.order)] += penalty
            self._factor = linalg.cho_factor(gram, lower=False, overwrite_a=True, check_finite=False)

    def _by_features(self, progress: Progress) -> Floats:
        X = self.X
        n, d = X.shape
        gram = np.zeros((d + 1, d + 1))
        for first, end in pieces(np.diff(X.indptr).astype(np.int64) ** 2, PRODUCTS):
            progress("least squares", first / n)
            add_gram(X.indptr[first : end + 1], X.indices, X.data, gram)
        gram[:d, d] = np.bincount(X.indices, weights=X.data, minlength=d)
        gram[d, d] = X.shape[0]
        return gram

    def _by_instances(self, progress: Progress) -> Floats:
        """Return the upper triangle of XX' + 1, summed by blocks of rows, or by blocks of columns where X is dense."""
        X = self.X.astype(np.float64)
        n, d = X.shape
        carriers = sparse.csr_matrix(X.T)
        gram = np.ones((n, n))
        carried = np.diff(carriers.indptr).astype(np.int64)
        others = np.diff(np.concatenate(([0], np.cumsum(carried[X.indices])))[X.indptr])
        if n * n * d <= DENSE * int(others.sum()):
            columns = max(1, min(BLOCK_BYTES // (8 * n), DENSE * 2 * PRODUCTS // n**2))
            for first in range(0, d, columns):
                progress("least squares", first / d)
                block = carriers[first : first + columns].toarray().T
                blas.dsyrk(1.0, block, beta=1.0, c=gram.T, lower=1, overwrite_c=1)
            return gram
        for first, end in pieces(others, PRODUCTS, max(1, BLOCK_BYTES // (16 * n))):
            progress("least squares", first / n)
            gram[first:end, first:] += (X[first:end] @ carriers[:, first:]).toarray()
        return gram

    def blocks(self, width: int) -> list[slice]:
        return self.blocks_of(self.X.shape[0], width)

    @staticmethod
    def blocks_of(n: int, width: int) -> list[slice]:
        """Return slices of n rows of which ``width`` columns take 128 MB."""
        size = max(1, BLOCK_BYTES // (8 * max(width, 1)))
        return [slice(first, min(first + size, n)) for first in range(0, n, size)]

    def fit(self, targets: Floats, progress: Progress) -> Floats:
        """Return the weights for targets of shape (n, m): shape (d + 1, m), with the bias in the last row."""
        progress("least squares", 0.0)
        if self._factor is None:
            return self._iterate(transposed_product(self.X, targets), progress)
        if self.order > self.X.shape[1]:
            return self._solved(transposed_product(self.X, targets))
        return transposed_product(self.X, self._solved(targets))

    def fit_product(self, Y: Csr, Q: Floats, progress: Progress) -> Floats:
        """Return the weights for the targets YQ; if n is large, only one block of rows of YQ is formed at a time."""
        if self._factor is not None and self.order == self.X.shape[0]:
            return self.fit(Y.astype(np.float64) @ Q, progress)
        right = np.zeros((self.X.shape[1] + 1, Q.shape[1]))
        for rows in self.blocks(Q.shape[1]):
            progress("least squares", rows.start / self.X.shape[0])
            right += transposed_product(self.X[rows], Y[rows].astype(np.float64) @ Q)
        return self._iterate(right, progress) if self._factor is None else self._solved(right)

    def _solved(self, right: Floats) -> Floats:
        assert self._factor is not None
        solved: Floats = linalg.cho_solve(self._factor, right, check_finite=False)
        return solved

    def _iterate(self, right: Floats, progress: Progress) -> Floats:
        """Run conjugate gradients for each target separately, preconditioned by the diagonal."""
        progress("least squares", 0.0)
        weights = np.zeros_like(right)
        residual = right.copy()
        scaled = residual * self._scale[:, None]
        direction = scaled.copy()
        rho = np.einsum("ij,ij->j", residual, scaled)
        goal = rho * TOLERANCE**2
        for step in range(STEPS):
            progress("least squares", step / STEPS)
            if np.all(rho <= goal):
                break
            image = self.penalty * direction
            for rows in self.blocks(right.shape[1]):
                progress("least squares", step / STEPS)
                image += transposed_product(self.X[rows], product(self.X[rows], direction))
            progress("least squares", step / STEPS)
            length = np.einsum("ij,ij->j", direction, image)
            alpha = np.divide(rho, length, out=np.zeros_like(rho), where=(length > 0) & (rho > goal))
            weights += alpha * direction
            residual -= alpha * image
            scaled = residual * self._scale[:, None]
            before, rho = rho, np.einsum("ij,ij->j", residual, scaled)
            direction *= np.divide(rho, before, out=np.zeros_like(rho), where=before > 0)
            direction += scaled
        return weights


def _is_factored(order: int, nnz: int) -> bool:
    """Return whether to factor rather than iterate. With short sparse rows, iterating costs less than order^3 / 3."""
    return order <= LARGEST and order**3 / 3 <= max(ALWAYS_FACTORED, 4.0 * STEPS * USUAL_TARGETS * nnz)


def product(X: Csr, weights: npt.NDArray[Real]) -> npt.NDArray[Real]:
    """Return [X 1] W, shape (n, m), for W of shape (d + 1, m), in the type of W."""
    result: npt.NDArray[Real] = X.astype(weights.dtype, copy=False) @ weights[:-1]
    result += weights[-1]
    return result


def transposed_product(X: Csr, targets: npt.NDArray[Real]) -> npt.NDArray[Real]:
    """Return [X 1]'T, shape (d + 1, m)."""
    result = np.empty((X.shape[1] + 1, targets.shape[1]), targets.dtype)
    result[:-1] = X.T.astype(targets.dtype, copy=False) @ targets
    result[-1] = targets.sum(axis=0)
    return result
