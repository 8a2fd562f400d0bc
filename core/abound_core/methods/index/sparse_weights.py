"""Sparse weights from features to labels: the model of IND and of the unweighted index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.errors import Corrupted
from abound_core.measures import Rankings
from abound_core.methods.index.linear_kernels import rank_rows
from abound_core.methods.training import array_checks
from abound_core.methods.training.matrices import Csr
from abound_core.methods.training.progress import Progress
from abound_core.methods.training.rankings import in_blocks, of_padded
from abound_core.methods.training.row_blocks import pieces

ROWS = 1024  # rows ranked at a time by one thread

MOST = float(np.finfo(np.float32).max)

BLOCK = 500_000  # active features counted at a time


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    matrix: Csr  # float32, shape (d, L); >= 0
    boolean: bool  # whether every active feature counts as 1

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` labels by the sum of the weights of the active features, if above 0."""
        k = min(k, self.matrix.shape[1])
        weights = (self.matrix.indptr, self.matrix.indices, self.matrix.data)

        def rank(first: int, end: int) -> Rankings:
            rows = X[first:end]
            ids, scores = np.zeros((end - first, k), np.int32), np.zeros((end - first, k))
            parts = (rows.indptr, rows.indices, rows.data)
            counts = rank_rows(parts, weights, self.boolean, self.matrix.shape[1], ids, scores)
            return of_padded(ids, scores, counts)

        return in_blocks(X.shape[0], ROWS, rank)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "starts": self.matrix.indptr,
            "labels": self.matrix.indices,
            "weights": self.matrix.data,
            "shape": np.array([*self.matrix.shape, self.boolean], np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Weights:
        shape = array_checks.require_array(arrays, "shape", np.int64, 3).tolist()
        if shape[:2] != [d, n_labels]:
            raise Corrupted("the shape of the weights does not match the features and labels")
        # A label with the score 0 counts as untouched, and the kernel has space for each label only once.
        array_checks.require_array(arrays, "weights", np.float32, None, low=0.0, high=MOST)
        matrix = array_checks.require_rows(arrays, "starts", "labels", "weights", (d, n_labels))
        return cls(matrix, bool(shape[2]))


def drop_below(weights: Csr, least: float) -> Csr:
    """Drop the weights below ``least``, in place, because memory may not suffice for a copy."""
    weights.data[weights.data < np.float32(least)] = 0.0
    weights.eliminate_zeros()
    return weights


def count_pairs(X: Csr, Y: Csr, progress: Progress) -> Csr:
    """Return n_fc, the number of instances with the feature and the label; float32 (exact up to 2^24), shape (d, L)."""
    ones = sparse.csr_matrix((np.ones(X.nnz, np.float32), X.indices, X.indptr), shape=X.shape).T.tocsr()
    truth = Y.astype(np.float32)
    parts = [sparse.csr_matrix(np.zeros((0, Y.shape[1]), np.float32))]
    for first, end in pieces(np.diff(ones.indptr).astype(np.int64), BLOCK):
        progress("counting", first / ones.shape[0])
        parts.append(sparse.csr_matrix(ones[first:end] @ truth))
    counts = sparse.csr_matrix(sparse.vstack(parts, format="csr"))
    counts.sort_indices()
    return counts
