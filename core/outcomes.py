"""Which requests of a log were learned, found without learning: only the receipts of their keys are kept.

>>> outcomes = Outcomes()
>>> outcomes.of(records, units, entry)
[True, False]                                   # the second came before, or was refused
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.applying import Applying, Unit
from core.kernels.apply import pass_over_records
from core.receipts import Outcome, Receipts
from core.types import START, Offset

ALL_AT_ONCE = 2**31 - 1


class Outcomes:
    """What became of each request, told in log order.

    Attributes
    ----------
    receipts : Receipts
        As those of a model that has applied the same entries; ranks and whether the index changed are left out.
    """

    def __init__(self, receipts: Receipts | None = None) -> None:
        self.receipts = receipts or Receipts()

    def of(self, records: bytes, units: Sequence[Unit], entry: Offset = START) -> list[bool]:
        """Whether each unit of the next entry was learned: not emptied, no repeat, no other body under a known key."""
        told = self.told(records, units, entry)
        return [outcome is None and not unit.emptied for outcome, unit in zip(told, units, strict=True)]

    def told(self, records: bytes, units: Sequence[Unit], entry: Offset = START) -> list[Outcome]:
        """What applying did with each unit of the next entry; None for one that is emptied as well."""
        applying = Applying(self, records, sum([unit.n for unit in units]), units, entry)
        while not applying.done:
            applying.step(ALL_AT_ONCE)
        return applying.outcomes

    def apply(
        self, buffer: bytes, at: int, ranks: npt.NDArray[np.int32], updated: npt.NDArray[np.bool_]
    ) -> tuple[int, int]:
        """Pass over ``len(ranks)`` records from byte ``at`` on; where the next begins, and how many."""
        return self.pass_over(buffer, at, len(ranks)), len(ranks)

    def pass_over(self, buffer: bytes, at: int, n: int) -> int:
        """Where the record after the next ``n`` begins."""
        return int(pass_over_records(buffer, at, n))
