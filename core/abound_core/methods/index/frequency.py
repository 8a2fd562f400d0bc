"""The baseline: every instance gets the most frequent labels of the training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.measures import Rankings
from abound_core.methods.training import array_checks
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress

COST = "fit O(assertions), rank O(k), memory 8 L bytes"
USE = "As a baseline that any other method must beat."


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """This method has no parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The frequency of each label."""

    shares: npt.NDArray[np.float64]  # shape (L,); share of the training instances that have the label

    def rank(self, X: Csr, k: int) -> Rankings:
        """Return the same ranking for every row, scored by the share of training instances that have the label."""
        order = np.lexsort((np.arange(len(self.shares)), -self.shares))[:k]
        order = order[self.shares[order] > 0]
        n = X.shape[0]
        starts = np.arange(n + 1, dtype=np.int64) * len(order)
        return Rankings(starts, np.tile(order, n).astype(np.int64), np.tile(self.shares[order], n))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {"shares": self.shares}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        return cls(array_checks.require_array(arrays, "shares", np.float64, n_labels, low=0.0, high=1.0))


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    progress("counting", 0.0)
    return Model(data.label_counts / max(data.X.shape[0], 1))
