"""R@1, R@5 and MRR of a sequence of ranks, each that of the best true label of an instance.

Madani, Connor and Greiner (JMLR 2009), sections 3.3 and 5. The command line uses it, which imports no numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class RankSums(msgspec.Struct, array_like=True):
    """Sums over instances: number, hits at rank 1 and up to rank 5, and sum of the reciprocal ranks."""

    n: int = 0
    hits_1: int = 0
    hits_5: int = 0
    reciprocal: float = 0.0

    @classmethod
    def of(cls, ranks: npt.NDArray[np.integer[Any]]) -> RankSums:
        found = ranks[ranks > 0]
        return cls(len(ranks), int((found == 1).sum()), int((found <= 5).sum()), float((1.0 / found).sum()))

    def add(self, rank: int) -> None:
        """Add an instance; rank 0 means that no true label was ranked."""
        self.n += 1
        if rank > 0:
            self.hits_1 += rank == 1
            self.hits_5 += rank <= 5
            self.reciprocal += 1.0 / rank

    def measures(self) -> dict[str, Any]:
        """Return ``n``, R@1, R@5 and MRR: R_k = mean of [k_x <= k], MRR = mean of 1 / k_x; None without instances."""
        if not self.n:
            return {"n": 0, "R@1": None, "R@5": None, "MRR": None}
        n = self.n
        return {"n": n, "R@1": self.hits_1 / n, "R@5": self.hits_5 / n, "MRR": self.reciprocal / n}


def rank_in(labels: Iterable[str], true: Collection[str]) -> int:
    """Return the position, from 1, of the first true label; 0 if there is none."""
    return next((place for place, label in enumerate(labels, 1) if label in true), 0)
