"""Refitting of the live index: several passes over a stream, with settings chosen on a held-out newest part.

The caller feeds the stream piece by piece, once per pass, so memory use is that of the model. The first pass does the
same as the service. In later passes features do not count as seen again and nothing is scored (Madani, Connor and
Greiner, JMLR 2009, section 4.1: several passes help where instances are few).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abound_core.index.layout_kernels import Feedback
from abound_core.instances.record import record_ends, record_shape, unpack, unpack_labels
from abound_core.instances.record_kernels import vector_end
from abound_core.model.entry_application import OutcomeReplay, Unit
from abound_core.model.label_details import DetailsTable
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

MAX_RANKED = 50  # a true label below it counts as not found


class Refitter:
    """A refit in progress: call ``learn`` for each entry of the stream, and ``next_pass`` between two passes.

    ``n_read`` is the number of instances of the stream so far in this pass, learned or held out.

    Parameters
    ----------
    live : LiveModel
        An empty model, or a state to learn on top of.
    most : int or None
        Number of instances to learn; later instances are held out. Registrations of labels are no instances: they do
        not count, and are always learned.
    """

    def __init__(self, live: LiveModel, most: int | None = None) -> None:
        self.live = live
        self.n_read = 0
        self._receipts = live.receipts.to_arrays()
        self._details = live.details.to_arrays()
        self._most = most
        self._pass = 0
        self._outcomes = self._fresh()

    def next_pass(self) -> None:
        self._pass += 1
        self.n_read = 0
        self._outcomes = self._fresh()
        self._names = DetailsTable.from_arrays(self._details, self.live.labels.n_ids)

    def learn(self, records: bytes, units: Sequence[Unit], entry: Offset) -> list[bytes]:
        """Learn the next entry of the stream; return its records with a true label that are held out."""
        learned = self._outcomes.were_learned(records, units, entry)
        ends = record_ends(records, sum([unit.n for unit in units if not unit.emptied])).tolist()
        places: list[int] = []
        positions: list[int] = []
        at = position = 0
        for unit, good in zip(units, learned, strict=True):
            if good:
                places += range(at, at + unit.n)
                positions += range(position, position + unit.n)
            at += 0 if unit.emptied else unit.n
            position += unit.n
        first: list[bytes] = []
        first_positions: list[int] = []
        held: list[bytes] = []
        for place, position in zip(places, positions, strict=True):
            record = records[ends[place] : ends[place + 1]]
            shape = record_shape(record, 0)
            registers = shape.details_at >= 0
            if registers or self._most is None or self.n_read < self._most:
                if self._pass > 0:
                    self._learn_again(record, registers, entry._replace(position=position))
                else:
                    first.append(record)
                    first_positions.append(position)
            elif shape.n_true > 0:
                held.append(record)
            self.n_read += not registers
        if first:
            self._learn_first(first, first_positions, entry)
        return held

    def _fresh(self) -> OutcomeReplay:
        return OutcomeReplay(type(self.live.receipts).from_arrays(self._receipts))

    def _learn_first(self, records: list[bytes], positions: list[int], entry: Offset) -> None:
        """Learn the records of an entry, which stand at these positions in it. Other positions have no record."""
        units, end = [], 0
        for position in positions:
            units += [Unit(position - end, emptied=True)] * (position > end) + [Unit(1)]
            end = position + 1
        self.live.begin(b"".join(records), end, units, entry).finish()

    def _learn_again(self, record: bytes, registers: bool, at: Offset) -> None:
        vector = record[: int(vector_end(record, 0))]
        _, _, labels, rejected, ignored, weight, _ = unpack(record)
        if registers:
            if not labels:  # a change of labels, which the first pass has applied
                return
            class_id = self.live.find(labels[0], at)
            is_new = self._names.is_new(class_id, vector)
            self._names.put(class_id, b"", vector)
            if not is_new:
                return
        ids, values = self.live.active(vector)
        known = ids >= 0  # all, unless max_features evicted some
        taken: set[int] = set()
        true, wrong = self._known_classes(labels, at, taken), self._known_classes(rejected, at, taken)
        unwanted = self._known_classes(ignored if self.live.config.implicit else [], at, taken)
        if not (true or wrong or unwanted) and self.live.changes:
            return
        class_ids = np.array(true + wrong + unwanted, np.int32)
        self.live.learn_again(ids[known], values[known], class_ids, Feedback(len(true), len(wrong), weight))

    def _known_classes(self, labels: Sequence[str], at: Offset, taken: set[int]) -> list[int]:
        """Return the classes of labels that are not retired, and not ``taken``; add them to these."""
        found = dict.fromkeys([self.live.find(label, at) for label in labels])
        kept = [one for one in found if one >= 0 and one not in taken and not self.live.changes.is_retired(one)]
        taken.update(kept)
        return kept


def reciprocal_rank(live: LiveModel, record: bytes) -> float:
    """Return 1 / rank of the best true label of a record, 0 if it is not among the best ``MAX_RANKED``."""
    end = int(vector_end(record, 0))
    true = set(map(live.find, unpack_labels(record, end)))
    ranking = live.rank(record[:end], MAX_RANKED)
    for rank, class_id in enumerate(ranking.class_ids.tolist(), start=1):
        if class_id in true:
            return 1.0 / rank
    return 0.0
