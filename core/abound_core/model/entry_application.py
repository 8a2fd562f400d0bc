"""Application of the records of one log entry to a live model, in slices.

An entry holds the records of one or more **units**. A unit is an instance, or a batch with at most one idempotency
key. A unit with a key is first looked up in the receipts. If the key has a receipt, the records are skipped and the
outcome is that of the first request. If the instances of a batch have keys of their own, the batch is learned
entirely or not at all: one key that was used with another body refuses the whole batch. An **emptied** unit (its
instances were forgotten) keeps its positions, so that all offsets stay the same, and changes nothing.

Consecutive units are applied together where none depends on the outcome of another: units without keys, and units
whose keys are new and distinct. Their receipts are written after all of them are applied.

``OutcomeReplay`` finds which requests of a log were learned, without learning: it keeps only the receipts.

>>> outcomes = OutcomeReplay()
>>> outcomes.were_learned(records, units, entry)
[True, False]                                   # the second was a duplicate, or was refused
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

from abound_core.model.apply_kernels import skip_records
from abound_core.model.receipts import BodyMismatch, Outcome, Receipts
from abound_core.types import START, Offset

MAX_KEYED_UNITS = 128  # looked up and applied together at most


class Unit(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request inside an entry.

    Attributes
    ----------
    n : int
        Number of records.
    key : str or None
        Idempotency key.
    body : bytes
        Hash of the request's body; empty without a key.
    source : str or None
        Origin of the event, as the client named it.
    """

    n: int
    key: str | None = None
    body: bytes = b""
    source: str | None = None
    batch: int = 1
    """Number of units, from this one on, that are learned together or not at all."""
    emptied: bool = False
    """Whether its instances were forgotten. Such a unit still counts ``n`` positions, and has no records."""


class _Run(NamedTuple):
    """Consecutive units of the same kind."""

    n: int  # number of records
    keyed: int = -1  # index of the first unit if they have keys, else -1
    n_units: int = 0
    # True for the header of a batch, which precedes the ``n_runs`` runs of its units. All of them are skipped if one of
    # their keys was used with another body
    batch: bool = False
    n_runs: int = 0
    n_empty: int = 0  # positions without a record


class RecordTarget(Protocol):
    """A target for records: a live model, or ``OutcomeReplay``, which only looks at their keys."""

    receipts: Receipts
    at: tuple[Offset, int]  # set before each call: the entry, and the position of its next record

    def apply(
        self,
        buffer: bytes,
        at: int,
        ranks: npt.NDArray[np.int32],
        updated: npt.NDArray[np.bool_],
    ) -> tuple[int, int]:
        """Apply at least one and at most ``len(ranks)`` records from byte ``at`` on.

        Returns the position of the next record and the number of records applied.
        """


class EntryApplication:
    """The progress of applying one entry to a model; made by ``LiveModel.begin``.

    Attributes
    ----------
    ranks : int32 array, shape (n,)
        Rank of the best true label before learning, from 1; 0 if not retrieved. ``step`` fills it in, one number per
        position. Positions of emptied units stay 0.
    updated : bool array, shape (n,)
        Whether the index changed.
    outcomes : list, one item per unit
        None: the unit is learned. A receipt: the unit is a duplicate, and this is the outcome of the first request.
        BodyMismatch: its key was used with another body. In the last two cases nothing is learned.
    """

    def __init__(self, model: RecordTarget, records: bytes, n: int, units: Sequence[Unit], entry: Offset) -> None:
        self.ranks: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self.updated: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.outcomes: list[Outcome] = [None] * len(units)
        self._model = model
        self._buffer = records
        self._units = units
        self._entry = entry
        self._runs = _runs(units)
        self._run = 0
        self._in_run = 0  # units of the current run with keys that are finished
        self._new: Sequence[Unit] = ()  # units with new keys that are applied together
        self._left = 0  # records of the current group that are not applied yet
        self._record = 0
        self._at = 0

    @property
    def done(self) -> bool:
        return self._left == 0 and self._run == len(self._runs)

    @property
    def n_done(self) -> int:
        """Records applied or skipped so far."""
        return self._record

    def step(self, limit: int) -> None:
        """Apply up to ``limit`` records, fewer if they are large. Does not raise for any checked record."""
        while limit > 0 and not self.done:
            if self._left == 0:
                self._begin_next()
                continue
            first, most = self._record, min(limit, self._left)
            ranks, updated = self.ranks[first : first + most], self.updated[first : first + most]
            self._model.at = self._entry, first
            self._at, applied = self._model.apply(self._buffer, self._at, ranks, updated)
            limit = limit - applied if applied == most else 0
            self._record += applied
            self._left -= applied
            if self._new and self._left == 0:
                self._keep_receipts()

    def finish(self) -> Self:
        while not self.done:
            self.step(ALL_AT_ONCE)
        return self

    def _begin_next(self) -> None:
        """Go to the next group of records to apply, and skip records that must not be applied."""
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
        """Skip the next unit of a run with keys if it has a receipt; else select as many new units as possible."""
        at, end = run.keyed + self._in_run, run.keyed + run.n_units
        unit = self._units[at]
        receipt = self._model.receipts.get(unit.key or "")
        if receipt is not None:
            self.outcomes[at] = receipt if receipt.body == unit.body else BodyMismatch(unit.key or "")
            self._pass_over(unit.n)
            self._in_run += 1
        else:
            coming = self._units[at : min(at + MAX_KEYED_UNITS, end)]
            self._new = coming[: self._model.receipts.n_new([unit.key or "" for unit in coming])]
            self._left = sum([unit.n for unit in self._new])
            self._in_run += len(self._new)
        if self._in_run == run.n_units:
            self._run += 1
            self._in_run = 0

    def _keep_receipts(self) -> None:
        """Write the receipts of the units that were just applied together."""
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
        self._at = int(skip_records(self._buffer, self._at, n))
        self._record += n

    def _is_refused(self, first: int, n_units: int) -> bool:
        """Return whether a key of a batch was used with another body, and if so, refuse the whole batch."""
        bodies: dict[str, bytes] = {}
        for unit in self._units[first : first + n_units]:
            if unit.key is None:
                continue
            receipt = self._model.receipts.get(unit.key)
            known = receipt.body if receipt is not None else bodies.setdefault(unit.key, unit.body)
            if known != unit.body:
                self.outcomes[first : first + n_units] = [BodyMismatch(unit.key)] * n_units
                return True
        return False


def _runs(units: Sequence[Unit], first: int = 0) -> list[_Run]:
    """Return the runs of an entry; ``first`` is the index of the first unit."""
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
    """Return whether ``other`` can continue the run of ``unit``."""
    return other.batch == 1 and not other.emptied and (other.key is None) == (unit.key is None)


def _runs_of_batch(batch: Sequence[Unit], first: int) -> list[_Run]:
    """Return the header of a batch that has keys or emptied units, followed by the runs of its units."""
    inside = _runs([msgspec.structs.replace(part, batch=1) for part in batch], first)
    n = sum([part.n for part in batch if not part.emptied])
    n_empty = sum([part.n for part in batch if part.emptied])
    return [_Run(n, first, len(batch), True, len(inside), n_empty), *inside]


ALL_AT_ONCE = 2**31 - 1


class OutcomeReplay:
    """The outcome of each request in log order, found without learning.

    ``receipts`` are those of a model that has applied the same entries, without ranks and without ``updated``.
    """

    at: tuple[Offset, int]

    def __init__(self, receipts: Receipts | None = None) -> None:
        self.receipts = receipts or Receipts()

    def were_learned(self, records: bytes, units: Sequence[Unit], entry: Offset = START) -> list[bool]:
        """Return whether each unit of the next entry was learned: not emptied, not a duplicate, not refused."""
        outcomes = self.replay(records, units, entry)
        return [outcome is None and not unit.emptied for outcome, unit in zip(outcomes, units, strict=True)]

    def replay(self, records: bytes, units: Sequence[Unit], entry: Offset = START) -> list[Outcome]:
        """Return the outcome of each unit of the next entry; None for emptied units too."""
        n = sum([unit.n for unit in units])
        return EntryApplication(self, records, n, units, entry).finish().outcomes

    def apply(
        self,
        buffer: bytes,
        at: int,
        ranks: npt.NDArray[np.int32],
        updated: npt.NDArray[np.bool_],
    ) -> tuple[int, int]:
        return int(skip_records(buffer, at, len(ranks))), len(ranks)
