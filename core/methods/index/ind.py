"""IND: P(c | f) for each feature independently (Madani, Connor and Greiner, JMLR 2009, section 4.2, figure 5).

w_fc = n_fc / n_f, kept where it is at least p_ind. Features are Boolean while counting. The weights can start a live
index (``seed_live``).

The paper's IND is also Boolean while ranking (section 6.3.7): ``boolean``. By default the sum is weighted by the
values of the query, which is one point better on Reuters and equal on newsgroups and RCV1-v2. Neither variant applies
``d_max`` and the rating of the live index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abound.core.config import ModelConfig
from abound.core.instances.vocabulary import Vocabulary
from abound.core.kernels.index.layout import SEEN_FULL
from abound.core.methods.index import sparse_weights as weights
from abound.core.methods.index.sparse_weights import Weights, count_pairs, drop_below
from abound.core.methods.training import param_checks
from abound.core.methods.training.holdout import best, held_out
from abound.core.methods.training.matrices import Csr, DataSizes, Matrices
from abound.core.methods.training.progress import Progress, subrange
from abound.core.metrics import Rankings
from abound.core.model.live_model import LiveModel

COST = "fit O(nnz assertions / n); rank O(weights of the query's features); memory up to 8 bytes a pair of the two"
USE = "The fastest to fit; as the start of a live index; where features are independent of each other."
IDF = False
"""Features are counted as Boolean."""

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


def needs(sizes: DataSizes, params: Params) -> dict[str, int]:
    """Return the bytes of memory by purpose."""
    return weights.needs(sizes)


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


def seed_live(data: Matrices, weights: Csr, config: ModelConfig, secret: tuple[int, int]) -> LiveModel:
    """Return a live model that starts with these weights, as if every instance had updated each of its features.

    Parameters
    ----------
    data : Matrices
        The training data: the names of columns, and how often each feature was seen.
    weights : csr_matrix, shape (d, L)
        n_fc / n_f. At most the 65,535 largest of a feature are used.
    config : ModelConfig
        Configuration of the live model.
    secret : (int, int)

    Returns
    -------
    LiveModel
        The total of a feature is n_f, and that of a connection n_fc, so the weights are equal and learning continues
        from them. Like FSU, the model drops connections below ``w_min`` at the first update of a feature.
    """
    d = weights.shape[0]
    totals = np.bincount(data.X.indices, minlength=d).astype(np.float64)
    rows = np.repeat(np.arange(d), np.diff(weights.indptr))
    counts = weights.data.astype(np.float64) * totals[rows]
    order = np.lexsort((weights.indices, -counts, rows))
    place = np.arange(len(order)) - weights.indptr[rows]
    order = order[place < 2**16 - 1]
    labels = Vocabulary(secret)
    for label in data.labels:
        labels.add(label.encode())
    empty = LiveModel(config, secret)
    arrays = empty.to_arrays()
    arrays |= {f"features/{name}": array for name, array in data.features.to_arrays().items()}
    arrays |= {f"labels/{name}": array for name, array in labels.to_arrays().items()}
    arrays |= {
        "index/lengths": np.minimum(np.diff(weights.indptr), 2**16 - 1).astype(np.uint16),
        "index/seen": np.minimum(totals, int(SEEN_FULL)).astype(np.uint16),
        "index/totals": totals,
        "index/class_ids": weights.indices[order].astype(np.uint32),
        "index/counts": counts[order],
        "tallies/label_counts": data.label_counts,
    }
    if config.max_features is not None:
        arrays["tallies/credits"] = np.zeros(d, np.uint8)
    return LiveModel.from_arrays(empty.meta(), arrays, secret)


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
