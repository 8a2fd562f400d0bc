"""A linear classifier for each label, against all other instances.

Madani, Connor and Greiner (JMLR 2009), section 5, compare the index with it. Labels are ranked by their scores.

Differences from the paper: perceptrons have no bias, and stop by the mistakes made during a pass, with their last
weights (the paper counts the mistakes left at its end, which costs as much as the pass); ``C`` is a parameter, where
the paper reports the best of several. The support vector machine has squared hinge loss, by dual coordinate descent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.measures import Rankings
from abound_core.methods.linear.classifiers import Params
from abound_core.methods.training import array_checks
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.parallel import spread
from abound_core.methods.training.progress import Progress, monotonic
from abound_core.methods.training.rankings import dense_top, in_blocks

__all__ = ["COST", "USE", "Model", "Params", "fit"]

COST = "fit O(L nnz passes); rank O(l L); memory up to 8 d L bytes"
USE = "At most some hundred labels, with many instances each; too slow for more than about a thousand."


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    weights: Csr  # float32, shape (d, L)
    bias: npt.NDArray[np.float32]  # shape (L,)

    def rank(self, X: Csr, k: int) -> Rankings:
        def block(first: int, end: int) -> Rankings:
            return dense_top((X[first:end] @ self.weights).toarray() + self.bias, k)

        return in_blocks(X.shape[0], max(16, 2**22 // max(len(self.bias), 1)), block)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "bias": self.bias,
            "starts": self.weights.indptr.astype(np.int64),
            "labels": self.weights.indices.astype(np.int32),
            "weights": self.weights.data,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        weights = array_checks.require_rows(arrays, "starts", "labels", "weights", (d, n_labels))
        return cls(weights, array_checks.require_array(arrays, "bias", np.float32, n_labels))


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Fit each classifier separately, on as many threads or machines as ``joblib.parallel_config`` sets."""
    progress = monotonic(progress)
    X, carriers = data.X, sparse.csc_matrix(data.Y)
    d, n_labels = X.shape[1], carriers.shape[1]
    seeds = rng.integers(0, 2**63, n_labels)

    def one(label: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], float]:
        positive = np.zeros(X.shape[0], np.bool_)
        positive[carriers.indices[carriers.indptr[label] : carriers.indptr[label + 1]]] = True
        weights = params.fit(X, positive, np.random.default_rng(seeds[label]))
        used = np.flatnonzero(weights[:d]).astype(np.int32)
        return used, weights[used].astype(np.float32), float(weights[d])

    found = spread(one, [(label,) for label in range(n_labels)], lambda done: progress("classifiers", done / n_labels))
    starts = np.concatenate(([0], np.cumsum([len(used) for used, _, _ in found])))
    columns = np.concatenate([used for used, _, _ in found])
    values = np.concatenate([weights for _, weights, _ in found])
    biases = np.array([bias for _, _, bias in found], np.float32)
    del found  # memory suffices for two copies only
    weights = sparse.csc_matrix((values, columns, starts), shape=(d, n_labels)).tocsr()
    weights.sort_indices()
    return Model(weights, biases)
