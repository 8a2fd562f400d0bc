"""Inverse document frequency: rare features get a higher weight."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.methods.training.matrices import Csr, l2_normalise

Weights = npt.NDArray[np.float32]

LEAST = 0.01  # weight of a feature

LEAST_VALUE = np.finfo(np.float32).tiny  # of a weighted value, before rows are scaled: a smaller one could become 0


def weights(X: Csr) -> Weights:
    """Return each feature's weight, shape (d,): ln((n + 1) / (df + 1/2)), df of n instances have it; at least 0.01.

    A feature that every instance has weighs almost nothing, but no weight is 0.
    """
    counts = np.bincount(X.indices, minlength=X.shape[1])
    return np.asarray(np.maximum(LEAST, np.log((X.shape[0] + 1.0) / (counts + 0.5))), np.float32)


def weighted(X: Csr, factors: Weights) -> Csr:
    """Return the rows with each value multiplied by its feature's weight, scaled to length 1 again."""
    values = X.data * factors[X.indices]
    np.maximum(values, LEAST_VALUE, out=values)
    result = sparse.csr_matrix((values, X.indices, X.indptr), shape=X.shape)
    l2_normalise(result)
    return result
