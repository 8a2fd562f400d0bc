"""Applying the records of one log entry to a live model, in slices.

An entry holds the records of one or more **units**: an instance, or a batch under one key or none. A unit with an
idempotency key is looked up in the receipts first: when it came before, its records are passed over and its outcome
says what came of the first. The units of a batch whose instances have keys of their own are learned whole or not at
all: if one of these keys came with another body, none of them is. A unit that was **emptied** (forgotten) keeps its
positions, so that all offsets stay, and does nothing.

Units in a row are applied together where nothing of what one leads to is asked by the next: those without keys, and
those whose keys are new and differ from each other. What they led to is kept when all of them are applied.

Which requests of a log were learned, found without learning: only the receipts of their keys are kept.

>>> outcomes = Outcomes()
>>> outcomes.of(records, units, entry)
[True, False]                                   # the second came before, or was refused
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from abound.core.kernels.model.apply import pass_over_records
from abound.core.model.receipts import AnotherBody, Outcome, Receipts
from abound.core.types import START, Offset

TOGETHER = 128
"""Most units with keys that are looked up and applied together."""


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
    batch: int = 1
    """Units from this one on that are learned whole or not at all."""
    emptied: bool = False
    """Its instances were forgotten: it still counts ``n`` positions, and has no records."""


class _Run(NamedTuple):
    """Units in a row that are alike.

    Attributes
    ----------
    n : int
        Their records.
    keyed : int
        The first unit when they have keys, else -1.
    n_units : int
    batch : bool
        It is no run but stands before the ``n_runs`` runs of the units of a batch, which are all passed over when a
        key of theirs came with another body.
    n_empty : int
        Positions without a record.
    """

    n: int
    keyed: int = -1
    n_units: int = 0
    batch: bool = False
    n_runs: int = 0
    n_empty: int = 0


class Applied(Protocol):
    """What records are applied to: a live model, or what only looks at their keys (``core/model/apply.py``)."""

    receipts: Receipts

    def apply(
        self, buffer: bytes, at: int, ranks: npt.NDArray[np.int32], updated: npt.NDArray[np.bool_]
    ) -> tuple[int, int]:
        """Apply at most ``len(ranks)`` records from byte ``at`` on, at least one; where the next begins, how many."""

    def pass_over(self, buffer: bytes, at: int, n: int) -> int:
        """Where the record after the next ``n`` begins."""


class Applying:
    """The records of one entry on their way into a model; made by ``LiveModel.begin``.

    Attributes
    ----------
    ranks : int32 array, shape (n,)
        Rank of the best true label before learning, from 1; 0 when not retrieved. Filled as ``step`` goes on. One a
        position; those of emptied units stay 0.
    updated : bool array, shape (n,)
        Whether the index changed.
    outcomes : list, an item a unit
        None: learned now. A receipt: it came before, this is what came of it. AnotherBody: its key came before with
        another body. In the last two cases nothing was learned.
    """

    def __init__(self, model: Applied, records: bytes, n: int, units: Sequence[Unit], entry: Offset) -> None:
        self.ranks: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self.updated: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.outcomes: list[Outcome] = [None] * len(units)
        self._model = model
        self._buffer = records
        self._units = units
        self._entry = entry
        self._runs = _runs(units)
        self._run = 0
        self._in_run = 0  # units of a run with keys that are dealt with
        self._new: Sequence[Unit] = ()  # units with new keys that are applied together
        self._left = 0  # records that are applied together and are not yet
        self._record = 0
        self._at = 0

    @property
    def done(self) -> bool:
        """Whether every record is applied or passed over."""
        return self._left == 0 and self._run == len(self._runs)

    @property
    def n_done(self) -> int:
        """Records applied or passed over so far."""
        return self._record

    def step(self, limit: int) -> None:
        """Apply up to ``limit`` records, fewer when they are large. Never refuses."""
        while limit > 0 and not self.done:
            if self._left == 0:
                self._begin_next()
                continue
            first, most = self._record, min(limit, self._left)
            self._at, applied = self._model.apply(
                self._buffer, self._at, self.ranks[first : first + most], self.updated[first : first + most]
            )
            limit = limit - applied if applied == most else 0
            self._record += applied
            self._left -= applied
            if self._new and self._left == 0:
                self._keep_receipts()

    def _begin_next(self) -> None:
        """Go to the next records that are applied together, or past some that are not applied."""
        run = self._runs[self._run]
        if run.keyed >= 0 and not run.batch:
            self._begin_keyed(run)
            return
        self._run += 1
        if not run.batch:
            self._record += run.n_empty
            self._left = run.n
        elif self._is_refused(run.keyed, run.n_units):
            self._pass_over(run.n)
            self._record += run.n_empty
            self._run += run.n_runs

    def _begin_keyed(self, run: _Run) -> None:
        """The next unit of a run with keys when it came before, else as many as are new."""
        at, end = run.keyed + self._in_run, run.keyed + run.n_units
        unit = self._units[at]
        receipt = self._model.receipts.get(unit.key or "")
        if receipt is not None:
            self.outcomes[at] = receipt if receipt.body == unit.body else AnotherBody(unit.key or "")
            self._pass_over(unit.n)
            self._in_run += 1
        else:
            coming = self._units[at : min(at + TOGETHER, end)]
            self._new = coming[: self._model.receipts.n_new([unit.key or "" for unit in coming])]
            self._left = sum([unit.n for unit in self._new])
            self._in_run += len(self._new)
        if self._in_run == run.n_units:
            self._run += 1
            self._in_run = 0

    def _keep_receipts(self) -> None:
        """Keep what the units led to that were just applied together."""
        milliseconds, sequence, _ = self._entry
        first = self._record - sum([unit.n for unit in self._new])
        ranks = self.ranks[first : self._record].tolist()
        updated = self.updated[first : self._record].tolist()
        rows = []
        at = 0
        for unit in self._new:
            end = at + unit.n
            offset = milliseconds, sequence, first + at
            rows.append((unit.key or "", unit.body, offset, ranks[at:end], updated[at:end]))
            at = end
        self._model.receipts.put(rows)
        self._new = ()

    def _pass_over(self, n: int) -> None:
        self._at = self._model.pass_over(self._buffer, self._at, n)
        self._record += n

    def _is_refused(self, first: int, n_units: int) -> bool:
        """Whether a key of a batch came with another body, before it or inside it; then all its outcomes say so."""
        bodies: dict[str, bytes] = {}
        for unit in self._units[first : first + n_units]:
            if unit.key is None:
                continue
            receipt = self._model.receipts.get(unit.key)
            known = receipt.body if receipt is not None else bodies.setdefault(unit.key, unit.body)
            if known != unit.body:
                self.outcomes[first : first + n_units] = [AnotherBody(unit.key)] * n_units
                return True
        return False


def _runs(units: Sequence[Unit], first: int = 0) -> list[_Run]:
    """The runs of an entry; ``first`` is the index of the first unit."""
    runs: list[_Run] = []
    at = 0
    while at < len(units):
        unit, end = units[at], at + 1
        if unit.batch > 1 and any(part.key is not None or part.emptied for part in units[at : at + unit.batch]):
            end = at + unit.batch
            runs += _runs_of_batch(units[at:end], first + at)
        elif unit.emptied:
            runs.append(_Run(0, n_empty=unit.n))
        else:
            while end < len(units) and _are_alike(unit, units[end]):
                end += 1
            n = sum([part.n for part in units[at:end]])
            runs.append(_Run(n, -1 if unit.key is None else first + at, end - at))
        at = end
    return runs


def _are_alike(unit: Unit, other: Unit) -> bool:
    """Whether another unit can go on with the run of a unit."""
    return other.batch == 1 and not other.emptied and (other.key is None) == (unit.key is None)


def _runs_of_batch(batch: Sequence[Unit], first: int) -> list[_Run]:
    """Those of a batch that has keys or emptied units, behind the one that says so."""
    inside = _runs([msgspec.structs.replace(part, batch=1) for part in batch], first)
    n = sum([part.n for part in batch if not part.emptied])
    n_empty = sum([part.n for part in batch if part.emptied])
    return [_Run(n, first, len(batch), True, len(inside), n_empty), *inside]


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
