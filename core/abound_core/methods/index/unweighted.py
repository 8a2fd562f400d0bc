"""The unweighted index, the older method of Madani et al. (2007), as described in the paper of 2009 (section 6.4.1).

An edge from a feature to a class is either in the index or not. An instance retrieves every class that has an edge
from an active feature. The index is updated only if a true class is missed or more than ``tolerance`` wrong ones are
retrieved.

Without classifiers, classes are ranked by the sum of the weights of the edges, times the values. With
``classifiers``, a committee of perceptrons of each class learns in tandem with the index and ranks the retrieved
classes.

The paper leaves some points open. This implementation chooses:

- A feature has a weight for each class, and an edge while that weight is at least ``edge``. An update adds the
  feature's value to the weights of the true classes, and halves the weights of the wrong ones if there were too many.
- The perceptrons of a class learn an instance that retrieves it, or has it as a true class, before the index is
  updated. A weight begins at random in [-1, 1] with its first update (section 5). The committee's score is the mean.
- Instances have the same order in each pass; the number of passes is given (the paper uses the best, under 20).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.measures import Rankings
from abound_core.methods.index import sparse_weights as weights
from abound_core.methods.index.linear_kernels import learn_unweighted, rank_retrieved
from abound_core.methods.index.sparse_weights import Weights, count_pairs, drop_below
from abound_core.methods.training import array_checks, param_checks
from abound_core.methods.training.holdout import best, held_out
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange
from abound_core.methods.training.rankings import in_blocks, of_padded

COST = "fit O(passes nnz L_f) for features that come with L_f labels; rank O(edges of the query's features)"
USE = "To compare with: ff learns weights in the same time and ranks better."
IDF = False

BLOCK = 2000  # instances between two progress reports

TOLERANCES = (2, 5, 20)  # that the paper tries


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The index, and the classifiers if there are any."""

    index: Weights
    classifiers: Csr | None = None  # float32, shape (d, L), or None

    def rank(self, X: Csr, k: int) -> Rankings:
        if self.classifiers is None:
            return self.index.rank(X, k)
        index, own = self.index.matrix, self.classifiers
        n_labels = own.shape[1]
        k = min(k, n_labels)

        def rank(first: int, end: int) -> Rankings:
            rows = X[first:end]
            ids, scores = np.zeros((end - first, k), np.int32), np.zeros((end - first, k))
            counts = rank_retrieved(
                (rows.indptr, rows.indices, rows.data),
                (index.indptr, index.indices),
                (own.indptr, own.indices, own.data),
                n_labels,
                ids,
                scores,
            )
            return of_padded(ids, scores, counts)

        return in_blocks(X.shape[0], weights.ROWS, rank)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = self.index.to_arrays()
        if self.classifiers is not None:
            arrays |= {
                "classifier_starts": self.classifiers.indptr,
                "classifier_labels": self.classifiers.indices,
                "classifier_weights": self.classifiers.data,
            }
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        index = Weights.from_arrays(arrays, d, n_labels)
        if not any(name.startswith("classifier_") for name in arrays):
            return cls(index)
        names = ("classifier_starts", "classifier_labels", "classifier_weights")
        return cls(index, array_checks.require_rows(arrays, *names, (d, n_labels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters of updates, passes and classifiers.

    Attributes
    ----------
    tolerance : int
        Tolerated wrong classes: so many may be retrieved without an update.
    edge : float
        The least weight of an edge.
    passes : int
        Passes over all instances.
    classifiers : int
        Perceptrons in the committee of each class; the paper has 10. 0: no classifiers.
    """

    tolerance: int = 5
    edge: float = 0.05
    passes: int = 10
    classifiers: int = 0

    def __post_init__(self) -> None:
        param_checks.whole("tolerance", self.tolerance, 0, 2**31 - 1)
        param_checks.number("edge", self.edge, 1e-6, 1e6)
        param_checks.whole("passes", self.passes, 1, 1000)
        param_checks.whole("classifiers", self.classifiers, 0, 1000)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Learn the instances in their order, ``passes`` times or until a pass updates nothing."""
    weights = count_pairs(data.X, data.Y, subrange(progress, 0.0, 0.05))
    weights.data[:] = 0.0
    progress = subrange(progress, 0.05, 1.0)
    marks, n = np.zeros(data.Y.shape[1], np.uint8), data.X.shape[0]
    edges, bounds = (weights.indptr, weights.indices), (params.tolerance, np.float32(params.edge))
    shape = (data.Y.shape[1], data.X.shape[1], params.classifiers) if params.classifiers else (0, 0, 0)
    classifiers, seed = (
        np.zeros(shape, np.float32),
        rng.integers(2**64, dtype=np.uint64) if params.classifiers else np.uint64(0),
    )
    for number in range(params.passes):
        updated = 0
        for first in range(0, n, BLOCK):
            progress(f"pass {number + 1} of {params.passes}", (number + first / n) / params.passes)
            X, Y = data.X[first : first + BLOCK], data.Y[first : first + BLOCK]
            parts = (X.indptr, X.indices, X.data), (Y.indptr, Y.indices, Y.data)
            updated += learn_unweighted(*parts, edges, weights.data, bounds, marks, classifiers, seed)
        if updated == 0:
            break
    index = Weights(drop_below(weights, params.edge), False)
    if not params.classifiers:
        return Model(index)
    return Model(index, sparse.csr_matrix(classifiers.mean(axis=2).T))


def search(data: Matrices, rng: np.random.Generator, progress: Progress) -> Params:
    """Choose ``tolerance`` by R@1 on held-out rows."""
    train, test = held_out(data, rng)

    candidates = [Params(tolerance=tolerance) for tolerance in TOLERANCES]

    def rankings(params: Params) -> Rankings:
        first = candidates.index(params) / len(candidates)
        return fit(train, params, rng, subrange(progress, first, first + 1 / len(candidates))).rank(test.X, 1)

    return best(candidates, rankings, test, progress, "R@1")
