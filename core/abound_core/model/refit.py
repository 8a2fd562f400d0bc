"""Refitting of the live index: several passes over a stream, with settings chosen on a held-out newest part.

The caller feeds the stream piece by piece, once per pass, so memory use is that of the model. The first pass does the
same as the service. In later passes features do not count as seen again and nothing is scored (Madani, Connor and
Greiner, JMLR 2009, section 4.1: several passes help where instances are few).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abound_core.index.layout_kernels import Feedback
from abound_core.instances.record import (
    RecordShape,
    details_of,
    pack_change,
    record_ends,
    record_shape,
    unpack,
    unpack_labels,
    with_labels,
)
from abound_core.instances.record_kernels import vector_end
from abound_core.model.entry_application import OutcomeReplay, Unit
from abound_core.model.label_changes import ChangeRequest, LabelChange, decode_request, encode
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
    named : LiveModel or None
        A model that has learned the stream: labels are learned by the names that they have there, so that those that
        were merged are one from the beginning. None: they are renamed and merged where the stream does.
    """

    def __init__(self, live: LiveModel, most: int | None = None, named: LiveModel | None = None) -> None:
        self.live = live
        self.n_read = 0
        self._receipts = live.receipts.to_arrays()
        self._details = live.details.to_arrays()
        self._most = most
        self._named = named
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
            names = self._named or (self.live if self._pass > 0 else None)
            if names is not None and names.changes:
                record = _by_name(record, shape, names, entry._replace(position=position))
                shape = record_shape(record, 0)
            registers = shape.details_at >= 0
            if registers or self._most is None or self.n_read < self._most:
                if self._pass > 0:
                    self._learn_again(record, registers)
                else:
                    first.append(record)
                    first_positions.append(position)
            elif shape.n_true > 0 and not shape.partial:
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

    def _learn_again(self, record: bytes, registers: bool) -> None:
        vector = record[: int(vector_end(record, 0))]
        _, _, labels, rejected, ignored, weight, partial, _ = unpack(record)
        if registers:
            if not labels:  # a change of labels, which the first pass has applied
                return
            class_id = self.live.find(labels[0])
            is_new = self._names.is_new(class_id, vector)
            self._names.put(class_id, b"", vector)
            if not is_new:
                return
        ids, values = self.live.active(vector)
        known = ids >= 0  # all, unless max_features evicted some
        true, wrong = self._known_classes(labels), self._known_classes(rejected)
        unwanted = self._known_classes(ignored if self.live.config.implicit else [])
        if not (true or wrong or unwanted) and self.live.changes:
            return
        class_ids = np.array(true + wrong + unwanted, np.int32)
        self.live.learn_again(
            ids[known], values[known], class_ids, Feedback(len(true), len(wrong), weight, partial and bool(true))
        )

    def _known_classes(self, labels: Sequence[str]) -> list[int]:
        found = map(self.live.find, labels)
        return [class_id for class_id in found if class_id >= 0 and not self.live.changes.is_retired(class_id)]


def _by_name(record: bytes, shape: RecordShape, names: LiveModel, at: Offset) -> bytes:
    """Return a record by the names that its labels have in a later state; of changes of labels those that are left."""

    def name_of(label: str) -> str:
        class_id = names.find(label, at)
        return names.label(class_id) if class_id >= 0 else label

    if shape.details_at < 0 or shape.n_true > 0:
        return with_labels(record, 0, shape, name_of)
    asked = decode_request(details_of(record, shape))
    left = [
        LabelChange(one.kind, name_of(one.name), list(dict.fromkeys(map(name_of, one.targets))))
        for one in asked.changes
        if one.kind in ("retire", "revive", "split")
    ]
    return pack_change(encode(ChangeRequest(left)))


def reciprocal_rank(live: LiveModel, record: bytes) -> float:
    """Return 1 / rank of the best true label of a record, 0 if it is not among the best ``MAX_RANKED``."""
    end = int(vector_end(record, 0))
    true = set(map(live.find, unpack_labels(record, end)))
    ranking = live.rank(record[:end], MAX_RANKED)
    for rank, class_id in enumerate(ranking.class_ids.tolist(), start=1):
        if class_id in true:
            return 1.0 / rank
    return 0.0
