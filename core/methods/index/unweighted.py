"""The unweighted index, the older method of Madani et al. (2007), as far as the paper of 2009 tells (section 6.4.1).

An edge from a feature to a class is in the index or not. An instance retrieves every class that an active feature has
an edge to. The index is updated only when a true class is missed or more than ``tolerance`` wrong ones are retrieved.

Without classifiers, ranking is by the sum of the weights of the edges, times the values. With ``classifiers``, a
committee of perceptrons of each class learns in tandem with the index, and the retrieved classes are ranked by their
scores.

What the paper leaves open, as it is here:

- A feature has a weight for each class, and an edge while that weight is at least ``edge``; an update adds the
  feature's value to the weights of the true classes, and halves the weights of the wrong ones where there were too many
  of them.
- The perceptrons of a class learn an instance that retrieves it, or has it as a true class, before the index is
  updated. A weight begins at random in [-1, 1] with its first update (section 5). The committee's score is the mean.
- Instances come in the same order in each pass; the number of passes is given (the paper takes the best, under 20).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound.core.kernels.batch.linear import learn_unweighted, rank_retrieved
from abound.core.methods.index import sparse_weights as weights
from abound.core.methods.index.sparse_weights import Weights, at_least, counted
from abound.core.methods.training import array_checks, param_checks
from abound.core.methods.training.holdout import best, held_out
from abound.core.methods.training.matrices import Csr, Matrices, Sizes
from abound.core.methods.training.progress import Progress, part
from abound.core.methods.training.rankings import in_blocks, of_padded
from abound.core.metrics import Rankings

COST = "fit O(passes nnz L_f) for features that come with L_f labels; rank O(edges of the query's features)"
USE = "To compare with: ff learns weights in the same time and ranks better."
IDF = False

BLOCK = 2000
"""Instances between two reports of progress."""

TOLERANCES = (2, 5, 20)
"""Values that the paper tries."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The index, and the classifiers where there are some.

    Attributes
    ----------
    index : Weights
    classifiers : csr_matrix of float32, shape (d, L), or None
    """

    index: Weights
    classifiers: Csr | None = None

    def rank(self, X: Csr, k: int) -> Rankings:
        """The best ``k`` retrieved labels of each row."""
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
        """The model as named arrays."""
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
        """The model that ``to_arrays`` wrote, for so many features and labels; Damaged where it is not."""
        index = Weights.from_arrays(arrays, d, n_labels)
        if not any(name.startswith("classifier_") for name in arrays):
            return cls(index)
        names = ("classifier_starts", "classifier_labels", "classifier_weights")
        return cls(index, array_checks.rows(arrays, *names, (d, n_labels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """When to update, how often to go through the data, and with which classifiers.

    Attributes
    ----------
    tolerance : int
        So many wrong classes may be retrieved without an update.
    edge : float
        The least weight of an edge.
    passes : int
        Over all instances.
    classifiers : int
        Perceptrons of the committee of each class; the paper has 10. 0: no classifiers.
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


def needs(sizes: Sizes, params: Params) -> dict[str, int]:
    """Bytes of memory, by what they are for."""
    found = weights.needs(sizes)
    if params.classifiers:
        many = sizes.d * sizes.L
        found[f"{params.classifiers} perceptrons, 4 B x {sizes.d:,} features x {sizes.L:,} labels each"] = (
            4 * params.classifiers * many
        )
        found["their means, 40 B a feature and label"] = 40 * many
    return found


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Go through the instances in their order, ``passes`` times or until nothing is updated any more."""
    weights = counted(data.X, data.Y, part(progress, 0.0, 0.05))
    weights.data[:] = 0.0
    progress = part(progress, 0.05, 1.0)
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
    index = Weights(at_least(weights, params.edge), False)
    if not params.classifiers:
        return Model(index)
    return Model(index, sparse.csr_matrix(classifiers.mean(axis=2).T))


def search(data: Matrices, rng: np.random.Generator, progress: Progress) -> Params:
    """``tolerance`` by R@1 on held-out rows."""
    train, test = held_out(data, rng)

    candidates = [Params(tolerance=tolerance) for tolerance in TOLERANCES]

    def rankings(params: Params) -> Rankings:
        first = candidates.index(params) / len(candidates)
        return fit(train, params, rng, part(progress, first, first + 1 / len(candidates))).rank(test.X, 1)

    return best(candidates, rankings, test, progress, "R@1")
