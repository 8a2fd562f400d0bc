"""Applying the records of one log entry to a live model, in slices.

An entry holds the records of one or more **units**; a unit is one request: an instance, or a batch that is learned
whole or not at all. A unit with an idempotency key is looked up in the receipts first: when it came before, its
records are passed over and its outcome says what came of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from core.receipts import AnotherBody, Outcome, Receipt
from core.types import Offset

if TYPE_CHECKING:
    from core.live import LiveModel


class Unit(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request inside an entry.

    Attributes
    ----------
    n : int
        Records.
    key : str or None
        Idempotency key.
    body : bytes
        Hash of the request's body; empty without a key.
    source : str or None
        Where the event came from, as the client named it.
    """

    n: int
    key: str | None = None
    body: bytes = b""
    source: str | None = None


class Applying:
    """The records of one entry on their way into a model; made by ``LiveModel.begin``.

    Attributes
    ----------
    ranks : int32 array, shape (n,)
        Rank of the best true label before learning, from 1; 0 when not retrieved. Filled as ``step`` goes on.
    updated : bool array, shape (n,)
        Whether the index changed.
    outcomes : list, an item a unit
        None: learned now. A receipt: it came before, this is what came of it. AnotherBody: its key came before with
        another body. In the last two cases nothing was learned.
    """

    def __init__(self, model: LiveModel, records: bytes, n: int, units: Sequence[Unit], entry: Offset) -> None:
        self.ranks: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self.updated: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.outcomes: list[Outcome] = [None] * len(units)
        self._model = model
        self._buffer = records
        self._units = units
        self._entry = entry
        self._runs = _runs(units)
        self._run = 0
        self._in_run = 0
        self._record = 0
        self._at = 0

    @property
    def done(self) -> bool:
        """Whether every record is applied or passed over."""
        return self._run == len(self._runs)

    @property
    def n_done(self) -> int:
        """Records applied or passed over so far."""
        return self._record

    def step(self, limit: int) -> None:
        """Apply up to ``limit`` records, fewer when they are large. Never refuses."""
        while limit > 0 and not self.done:
            n, keyed = self._runs[self._run]
            unit = self._units[keyed] if keyed >= 0 else None
            if unit is not None and self._in_run == 0 and self._came_before(keyed, unit):
                self._at = self._model.pass_over(self._buffer, self._at, n)
                self._record += n
                self._run += 1
                continue
            first, most = self._record, min(limit, n - self._in_run)
            self._at, applied = self._model.apply(
                self._buffer, self._at, self.ranks[first : first + most], self.updated[first : first + most]
            )
            self._record += applied
            self._in_run += applied
            limit = limit - applied if applied == most else 0
            if self._in_run == n:
                if unit is not None:
                    self._keep_receipt(unit, self._record - n)
                self._run += 1
                self._in_run = 0

    def _came_before(self, at: int, unit: Unit) -> bool:
        receipt = self._model.receipts.get(unit.key) if unit.key is not None else None
        if receipt is None:
            return False
        self.outcomes[at] = receipt if receipt.body == unit.body else AnotherBody(unit.key or "")
        return True

    def _keep_receipt(self, unit: Unit, first: int) -> None:
        last = first + unit.n
        receipt = Receipt(
            body=unit.body,
            offset=self._entry._replace(position=first),
            ranks=self.ranks[first:last].tolist(),
            updated=self.updated[first:last].tolist(),
        )
        self._model.receipts.put(unit.key or "", receipt)


def _runs(units: Sequence[Unit]) -> list[tuple[int, int]]:
    """Stretches of records that are applied alike: (records, index of the unit when it has a key, else -1)."""
    runs: list[tuple[int, int]] = []
    together = 0
    for at, unit in enumerate(units):
        if unit.key is None:
            together += unit.n
            continue
        if together:
            runs.append((together, -1))
            together = 0
        runs.append((unit.n, at))
    if together:
        runs.append((together, -1))
    return runs
