"""The baseline: every instance gets the labels that are most frequent in the training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.methods.training import array_checks
from abound.core.methods.training.matrices import Csr, Matrices, Sizes
from abound.core.methods.training.progress import Progress
from abound.core.metrics import Rankings

COST = "fit O(assertions), rank O(k), memory 8 L bytes"
USE = "To see what any method must beat."


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """There are none."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """How often each label was seen.

    Attributes
    ----------
    shares : float64 array, shape (L,)
        Share of the training instances that carry the label.
    """

    shares: npt.NDArray[np.float64]

    def rank(self, X: Csr, k: int) -> Rankings:
        """The same ranking for every row; its score is the share of training instances that carry the label."""
        order = np.lexsort((np.arange(len(self.shares)), -self.shares))[:k]
        order = order[self.shares[order] > 0]
        n = X.shape[0]
        starts = np.arange(n + 1, dtype=np.int64) * len(order)
        return Rankings(starts, np.tile(order, n).astype(np.int64), np.tile(self.shares[order], n))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The model as named arrays."""
        return {"shares": self.shares}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        """The model that ``to_arrays`` wrote, for so many features and labels; Damaged where it is not."""
        return cls(array_checks.within("shares", array_checks.taken(arrays, "shares", np.float64, n_labels), 0.0, 1.0))


def needs(sizes: Sizes, params: Params) -> dict[str, int]:
    """Bytes of memory, by what they are for."""
    return {"a share for each label": 8 * sizes.L}


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Count labels."""
    progress("counting", 0.0)
    return Model(data.label_counts / max(data.X.shape[0], 1))
