"""Inverse document frequency: features that few instances have weigh more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from core.methods.data import Csr, l2_normalise

Weights = npt.NDArray[np.float32]


def weights(X: Csr) -> Weights:
    """The weight of each feature, shape (d,): 1 + ln((1 + n) / (1 + df)) where df of n instances have it.

    The form that scikit-learn calls smooth: above 0 for every feature, at most 1 + ln(1 + n).
    """
    counts = np.bincount(X.indices, minlength=X.shape[1])
    return np.asarray(1.0 + np.log((1.0 + X.shape[0]) / (1.0 + counts)), np.float32)


def weighted(X: Csr, factors: Weights) -> Csr:
    """The rows with each value multiplied by its feature's weight, and then of length 1 again."""
    result = sparse.csr_matrix((X.data * factors[X.indices], X.indices, X.indptr), shape=X.shape)
    l2_normalise(result)
    return result
