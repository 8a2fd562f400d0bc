"""Shifted positive pointwise mutual information (SPPMI), and the embedding computed from it.

Levy and Goldberg (NIPS 2014) showed that the skip-gram objective with negative sampling factorises this matrix.
Wadbude et al., "Leveraging Distributional Semantics for Multi-Label Learning" (2017), equation 4 and algorithm 2, use
it to embed instances by the labels that they share.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.methods.embeddings.sppmi_kernels import fill_rows
from abound_core.methods.embeddings.subspace import Floats, leading
from abound_core.methods.training.matrices import Csr
from abound_core.methods.training.parallel import spread
from abound_core.methods.training.progress import Progress, subrange
from abound_core.methods.training.row_blocks import pieces, stacked

OVERSAMPLING = 20
ROUNDS = 2  # of the randomized subspace iteration

BLOCK = 2**22  # entries allocated for a block of rows

PRODUCTS = 2**29  # of an entry with a number between two progress reports: about half a second


def of_labels(Y: Csr, shift: float, progress: Progress) -> Csr:
    """Return the SPPMI of M = Y Y', shape (n, n), float32, without forming M.

    Costs the sum of the squares of the label counts, and 8 bytes per entry; there are at most as many entries as in
    M.
    """
    n = Y.shape[0]
    carriers = sparse.csr_matrix(Y.T)
    # Row sums of Y Y': each label counts as often as it occurs. A row without labels has no entry and the sum 0.
    sums = Y.astype(np.float64) @ np.diff(carriers.indptr).astype(np.float64)
    log_sums = np.log(np.maximum(sums, 1.0))
    offset = float(np.log(max(float(sums.sum()), 1.0)) - np.log(shift))
    rows = max(1, BLOCK // max(n, 1))

    def block(first: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        end = min(first + rows, n)
        ids, values = np.empty((end - first) * n, np.int32), np.empty((end - first) * n, np.float32)
        counts = np.empty(end - first, np.int64)
        known, back = (Y.indptr, Y.indices), (carriers.indptr, carriers.indices)
        written = fill_rows(first, end, known, back, log_sums, offset, ids, values, counts)
        return ids[:written].copy(), values[:written].copy(), counts

    firsts = range(0, n, rows)
    parts = spread(
        block, [(first,) for first in firsts], lambda done: progress("mutual information", done / len(firsts))
    )
    starts = np.concatenate(([0], np.cumsum(np.concatenate([part[2] for part in parts]))))
    return sparse.csr_matrix(
        (np.concatenate([part[1] for part in parts]), np.concatenate([part[0] for part in parts]), starts), shape=(n, n)
    )


def of_counts(A: Csr, shift: float, progress: Progress) -> Csr:
    """Return the SPPMI of a symmetric matrix of counts >= 0, float32; takes 16 bytes per entry in addition to A."""
    n, counts = A.shape[0], np.diff(A.indptr).astype(np.int64)
    blocks = list(pieces(counts, BLOCK))
    sums = np.empty(n)
    for first, end in blocks:
        progress("mutual information", 0.3 * first / n)
        sums[first:end] = np.asarray(A[first:end].sum(axis=1)).ravel()
    log_sums = np.log(sums, out=np.zeros_like(sums), where=sums > 0)
    total = np.log(max(sums.sum(), 1.0))
    parts = []
    for first, end in blocks:
        progress("mutual information", 0.3 + 0.5 * first / n)
        block = A[first:end].astype(np.float64)
        block.eliminate_zeros()
        of_row = np.repeat(log_sums[first:end], np.diff(block.indptr))
        values = np.log(block.data) - of_row - log_sums[block.indices] + total - np.log(shift)
        block = sparse.csr_matrix(
            (np.maximum(values, 0.0).astype(np.float32), block.indices, block.indptr), shape=block.shape
        )
        block.eliminate_zeros()
        parts.append(block)
    return stacked(parts, "mutual information", subrange(progress, 0.8, 1.0))


def embedding(P: Csr, dim: int, rng: np.random.Generator, progress: Progress) -> Floats:
    """Return Z = U S^(1/2) of the ``dim`` leading singular values of a symmetric matrix, shape (n, min(dim, n))."""

    n = P.shape[0]
    counts = np.diff(P.indptr).astype(np.int64)

    def of(Q: Floats, progress: Progress) -> Floats:
        image, Q = np.empty(Q.shape), Q.astype(np.float32)
        for first, end in pieces(counts, min(BLOCK, PRODUCTS // Q.shape[1])):
            progress("subspace", first / n)
            image[first:end] = P[first:end] @ Q
        return image

    vectors, values = leading(of, P.shape[0], dim, OVERSAMPLING, ROUNDS, rng, progress)
    return vectors * np.sqrt(values)
