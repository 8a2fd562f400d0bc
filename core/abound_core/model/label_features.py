"""The features that point to a class, with the contribution of each one alone, at value 1, to its score."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from abound_core.index.index import Index
from abound_core.index.rank_kernels import explain_score


def weights_to(index: Index, class_id: int, first: int, end: int) -> npt.NDArray[np.float64]:
    """Return the contribution of each feature from ``first`` to ``end`` to the score of a class, 0 without a vote.

    The ids may be unknown to the index. With ``sls`` contributions may be negative. Visits every voting connection of
    these features, about 2 ns each.
    """
    ids = np.arange(first, end, dtype=np.int32)
    values = np.ones(len(ids), np.float32)
    weights = np.empty(len(ids), np.float64)
    if len(ids):
        explain_score(index.arrays, index.kernel_params, ids, values, class_id, weights)
        if index.kernel_params.squares:
            # The kernel treated the features as one instance and normalised it. Undo this: each feature alone has
            # the value 1.
            weights /= values
    return weights
