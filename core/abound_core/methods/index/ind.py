"""IND: P(c | f) for each feature independently (Madani, Connor and Greiner, JMLR 2009, section 4.2, figure 5).

w_fc = n_fc / n_f, kept where it is at least p_ind. Features are Boolean while counting.

The paper's IND is also Boolean while ranking (section 6.3.7): ``boolean``. By default the sum is weighted by the
values of the query, which is one point better on Reuters and equal on newsgroups and RCV1-v2. Neither variant applies
``d_max`` and the rating of the live index. The paper also reports an index without a threshold (p_ind 0), which the
search here does not try.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abound_core.measures import Rankings
from abound_core.methods.index.sparse_weights import Weights, count_pairs, drop_below
from abound_core.methods.training import param_checks
from abound_core.methods.training.holdout import best, held_out
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange

COST = "fit O(nnz assertions / n); rank O(weights of the query's features); memory up to 8 bytes a pair of the two"
USE = "Where small and quick answers matter more than accuracy; swnn fits faster and is more accurate."
IDF = False  # features are counted as Boolean

P_IND_CANDIDATES = tuple(p / 100 for p in (*range(1, 10), *range(10, 91, 5)))
"""Values of p_ind to choose from: those of the paper (section 6.3.7), which end at 0.6, extended to 0.9."""

Model = Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Which weights to keep, and how to rank.

    Attributes
    ----------
    p_ind : float, 0 to 1, or None
        The least weight that is kept. None: choose from 26 values from .01 to .9 by R@1. A random 20 % of the
        instances, at most 5,000, is held out for the choice, and the others are counted.
    boolean : bool
        Whether every active feature of a query counts as 1.
    """

    p_ind: float | None = None
    boolean: bool = False

    def __post_init__(self) -> None:
        if self.p_ind is not None:
            param_checks.number("p_ind", self.p_ind, 0.0, 1.0)
        param_checks.flag("boolean", self.boolean)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Count, and keep the weights of at least ``p_ind``."""
    p_ind = params.p_ind
    if p_ind is None:
        p_ind = (
            _chosen(data, params.boolean, rng, subrange(progress, 0.0, 0.6))
            if data.label_counts.max() > 1
            else P_IND_CANDIDATES[0]
        )
    return Weights(drop_below(_shares(data, subrange(progress, 0.6, 1.0)), p_ind), params.boolean)


def _shares(data: Matrices, progress: Progress) -> Csr:
    counts = count_pairs(data.X, data.Y, progress)
    totals = np.bincount(data.X.indices, minlength=data.X.shape[1])
    counts.data /= np.repeat(totals.astype(np.float32), np.diff(counts.indptr))
    return counts


def _chosen(data: Matrices, boolean: bool, rng: np.random.Generator, progress: Progress) -> float:
    train, test = held_out(data, rng)
    shares = _shares(train, subrange(progress, 0.0, 0.4))

    def rankings(least: float) -> Rankings:  # ascending, so dropped weights are not needed later
        return Weights(drop_below(shares, least), boolean).rank(test.X, 1)

    return float(best(P_IND_CANDIDATES, rankings, test, subrange(progress, 0.4, 1.0), "R@1"))
