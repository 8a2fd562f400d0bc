"""Which features point to a class: what each of them, alone and with the value 1, adds to its score."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from abound.core.index.index import Index
from abound.core.kernels.index.rank import explain_score


def weights_to(index: Index, class_id: int, first: int, end: int) -> npt.NDArray[np.float64]:
    """What each of the features ``first`` to ``end`` adds to the score of a class, 0 where it does not vote for it.

    Parameters
    ----------
    class_id, first, end : int
        Ids need not have been learned.

    Returns
    -------
    weights : float64 array, shape (end - first,)
        Dimensionless. With ``sls`` they may be below 0.

    Notes
    -----
    Visits every connection of these features that votes, about 2 ns each.
    """
    ids = np.arange(first, end, dtype=np.int32)
    values = np.ones(len(ids), np.float32)
    weights = np.empty(len(ids), np.float64)
    if len(ids):
        explain_score(index.arrays, index.kernel_params, ids, values, class_id, weights)
        if index.kernel_params.squares:
            # The kernel took the features for one instance and normalised it; each alone has the value 1.
            weights /= values
    return weights
