"""The unweighted index, the older method of Madani et al. (2007), as far as the paper of 2009 tells (section 6.4.1).

An edge from a feature to a class is in the index or not. An instance retrieves every class that an active feature has
an edge to. The index is updated only when a true class is missed or more than ``tolerance`` wrong ones are retrieved.

What the papers at hand leave open, as it is here: a feature has a weight for each class, and an edge while that weight
is at least ``edge``; an update adds the feature's value to the weights of the true classes, and halves the weights of
the wrong ones where there were too many of them. Ranking is by the sum of the weights of the edges, times the values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.kernels.linear import learn_unweighted
from core.methods import checks, weights
from core.methods.data import Matrices, Sizes
from core.methods.holdout import best, held_out
from core.methods.progress import Progress, part
from core.methods.rankings import Rankings
from core.methods.weights import Weights, at_least, counted

COST = "fit O(passes nnz L_f) for features that come with L_f labels; rank O(edges of the query's features)"
USE = "To compare with: ff learns weights in the same time and ranks better."
IDF = False

BLOCK = 2000
"""Instances between two reports of progress."""

TOLERANCES = (2, 5, 20)
"""Values that the paper tries."""

Model = Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """When to update, and how often to go through the data.

    Attributes
    ----------
    tolerance : int
        So many wrong classes may be retrieved without an update.
    edge : float
        The least weight of an edge.
    passes : int
        Over all instances.
    """

    tolerance: int = 5
    edge: float = 0.05
    passes: int = 10

    def __post_init__(self) -> None:
        checks.whole("tolerance", self.tolerance, 0, 2**31 - 1)
        checks.number("edge", self.edge, 1e-6, 1e6)
        checks.whole("passes", self.passes, 1, 1000)


def needs(sizes: Sizes, params: Params) -> dict[str, int]:
    """Bytes of memory, by what they are for."""
    return weights.needs(sizes)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Go through the instances in their order, ``passes`` times or until nothing is updated any more."""
    weights = counted(data.X, data.Y, part(progress, 0.0, 0.05))
    weights.data[:] = 0.0
    progress = part(progress, 0.05, 1.0)
    marks, n = np.zeros(data.Y.shape[1], np.uint8), data.X.shape[0]
    edges = (weights.indptr, weights.indices)
    for number in range(params.passes):
        updated = 0
        for first in range(0, n, BLOCK):
            progress(f"pass {number + 1} of {params.passes}", (number + first / n) / params.passes)
            X, Y = data.X[first : first + BLOCK], data.Y[first : first + BLOCK]
            parts = (X.indptr, X.indices, X.data), (Y.indptr, Y.indices, Y.data)
            least = np.float32(params.edge)
            updated += learn_unweighted(*parts, edges, weights.data, params.tolerance, least, marks)
        if updated == 0:
            break
    return Weights(at_least(weights, params.edge), False)


def search(data: Matrices, rng: np.random.Generator, progress: Progress) -> Params:
    """``tolerance`` by R@1 on held-out rows."""
    train, test = held_out(data, rng)

    candidates = [Params(tolerance=tolerance) for tolerance in TOLERANCES]

    def rankings(params: Params) -> Rankings:
        first = candidates.index(params) / len(candidates)
        return fit(train, params, rng, part(progress, first, first + 1 / len(candidates))).rank(test.X, 1)

    return best(candidates, rankings, test, progress, "R@1")
