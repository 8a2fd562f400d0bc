"""Random projections that are never stored: rows of the matrix are drawn from a seed whenever they are needed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.methods.neighbors.projection_kernels import draw_rows
from abound_core.methods.training.matrices import Csr

Vectors = npt.NDArray[np.float32]


def project(X: Csr, seed: np.uint64, dim: int) -> Vectors:
    """Return R'x of each row x, scaled to length 1; R of shape (d, dim) has independent N(0, 1). Empty rows give zeros.

    Draws only the rows of R for the features that occur, and discards them: dim x 4 bytes each, about 15 ns a number.
    R is the same on every machine; the product with it may differ in its last bits.
    """
    features, places = np.unique(X.indices, return_inverse=True)
    drawn = np.empty((len(features), dim), np.float32)
    draw_rows(seed, features.astype(np.int32), drawn)
    narrow = sparse.csr_matrix((X.data, places.astype(np.int32), X.indptr), shape=(X.shape[0], len(features)))
    result: Vectors = np.asarray(narrow @ drawn, np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", result, result, dtype=np.float64))
    result /= np.where(lengths > 0, lengths, 1.0).astype(np.float32)[:, None]
    return result
