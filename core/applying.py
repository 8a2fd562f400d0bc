"""Applying the records of one log entry to a live model, in slices.

An entry holds the records of one or more **units**: an instance, or a batch under one key or none. A unit with an
idempotency key is looked up in the receipts first: when it came before, its records are passed over and its outcome
says what came of the first. The units of a batch whose instances have keys of their own are learned whole or not at
all: if one of these keys came with another body, none of them is. A unit that was **emptied** (forgotten) keeps its
positions, so that all offsets stay, and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from core.receipts import AnotherBody, Outcome, Receipts
from core.types import Offset


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
    """A stretch of records that are applied alike.

    ``unit``: the one unit with a key that it is, else -1. ``batch``: it is no stretch but stands before the runs of
    the units ``unit`` to ``unit + batch``, which are all passed over when a key of theirs came with another body.
    ``n_empty``: positions without a record.
    """

    n: int
    unit: int = -1
    batch: int = 0
    n_runs: int = 0
    n_empty: int = 0


class Applied(Protocol):
    """What records are applied to: a live model, or what only looks at their keys (``core/outcomes.py``)."""

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
            n, keyed, batch, n_runs, n_empty = self._runs[self._run]
            if batch:
                self._run += 1
                if self._is_refused(keyed, batch):
                    self._pass_over(n)
                    self._record += n_empty
                    self._run += n_runs
                continue
            if n_empty:
                self._record += n_empty
                self._run += 1
                continue
            if keyed >= 0 and self._in_run == 0 and self._came_before(keyed, self._units[keyed]):
                self._pass_over(n)
                self._run += 1
                continue
            end, n = self._stretch(limit)
            first, most = self._record, min(limit, n - self._in_run)
            self._at, applied = self._model.apply(
                self._buffer, self._at, self.ranks[first : first + most], self.updated[first : first + most]
            )
            limit = limit - applied if applied == most else 0
            self._go_on(end, applied)

    def _stretch(self, limit: int) -> tuple[int, int]:
        """Where the runs end that can be applied at once, about ``limit`` records from here on, and their records.

        Units with keys are, as long as their keys are new and none comes twice: so nothing of what one of them leads
        to is asked by the next.
        """
        end, n = self._run + 1, self._runs[self._run].n
        if self._runs[self._run].unit < 0:
            return end, n
        keys = {self._units[self._runs[self._run].unit].key}
        while n < limit and end < len(self._runs):
            run = self._runs[end]
            key = self._units[run.unit].key if run.unit >= 0 and not run.batch else None
            if key is None or key in keys or key in self._model.receipts:
                break
            keys.add(key)
            n += run.n
            end += 1
        return end, n

    def _go_on(self, end: int, applied: int) -> None:
        """Count records that were applied, and keep the receipts of the units that are whole by now."""
        first = self._record - self._in_run
        self._record += applied
        self._in_run += applied
        milliseconds, sequence, _ = self._entry
        ranks = updated = None
        at = 0
        while self._run < end and self._in_run >= self._runs[self._run].n:
            n, unit, *_ = self._runs[self._run]
            if unit >= 0:
                if ranks is None or updated is None:
                    ranks = self.ranks[first : self._record].tolist()
                    updated = self.updated[first : self._record].tolist()
                key, body = self._units[unit].key or "", self._units[unit].body
                offset = (milliseconds, sequence, first + at)
                self._model.receipts.put(key, body, offset, ranks[at : at + n], updated[at : at + n])
            at += n
            self._in_run -= n
            self._run += 1

    def _pass_over(self, n: int) -> None:
        self._at = self._model.pass_over(self._buffer, self._at, n)
        self._record += n

    def _is_refused(self, first: int, batch: int) -> bool:
        """Whether a key of a batch came with another body, before it or inside it; then all its outcomes say so."""
        bodies: dict[str, bytes] = {}
        for unit in self._units[first : first + batch]:
            if unit.key is None:
                continue
            receipt = self._model.receipts.get(unit.key)
            known = receipt.body if receipt is not None else bodies.setdefault(unit.key, unit.body)
            if known != unit.body:
                self.outcomes[first : first + batch] = [AnotherBody(unit.key)] * batch
                return True
        return False

    def _came_before(self, at: int, unit: Unit) -> bool:
        receipt = self._model.receipts.get(unit.key) if unit.key is not None else None
        if receipt is None:
            return False
        self.outcomes[at] = receipt if receipt.body == unit.body else AnotherBody(unit.key or "")
        return True


def _runs(units: Sequence[Unit], first: int = 0) -> list[_Run]:
    """The runs of an entry; ``first`` is the index of the first unit."""
    runs: list[_Run] = []
    together = at = 0
    while at < len(units):
        unit = units[at]
        if unit.key is not None and unit.batch == 1 and not unit.emptied:
            if together:
                runs.append(_Run(together))
                together = 0
            runs.append(_Run(unit.n, first + at))
            at += 1
            continue
        inside = [_Run(unit.n, first + at)] if unit.key is not None else []
        if unit.emptied:
            inside = [_Run(0, n_empty=unit.n)]
        if unit.batch > 1:
            whole = [msgspec.structs.replace(part, batch=1) for part in units[at : at + unit.batch]]
            if any(part.key is not None or part.emptied for part in whole):
                inside = _runs(whole, first + at)
                n = sum(part.n for part in whole if not part.emptied)
                n_empty = sum(part.n for part in whole if part.emptied)
                inside.insert(0, _Run(n, first + at, unit.batch, len(inside), n_empty))
        if inside:
            runs += [_Run(together)] if together else []
            runs += inside
            together = 0
            at += max(1, inside[0].batch)
        else:
            together += unit.n
            at += 1
    return [*runs, _Run(together)] if together else runs
