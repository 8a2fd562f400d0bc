"""Prequential scoring: the index ranks each instance before learning it; the versions rank it at any later time.

A version does not change, so it may rank an instance at any time. The index changes with each instance, so it
must rank immediately before learning. ``RankingProxy`` therefore ranks inside the ordinary apply path. Records
that this path skips, such as repeats and emptied requests, are not scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound.log.events import Event, LearnEvent
from abound.state.replicated_model import ReplicatedModel, step
from abound.versions.ranking import RankingRequest, rank_all
from abound.versions.versions import LoadedVersion
from abound_core.instances.record import record_shape, unpack_labels
from abound_core.instances.record_kernels import vector_end
from abound_core.model.entry_application import EntryApplication
from abound_core.model.label_changes import Renamed
from abound_core.model.live_model import LiveModel
from abound_core.model.receipts import Receipts
from abound_core.types import START, Offset

DEPTH = 50  # best labels that are compared; a label below has rank 0


class LearnedInstance(NamedTuple):
    at: Offset  # of its log entry
    vector: bytes
    true_labels: Set[str]
    live: Sequence[str]  # the ``DEPTH`` best labels of the index before learning


class RankingProxy:
    """Proxy of a LiveModel that ranks records before it applies them; ``EntryApplication`` uses it like the model."""

    at: tuple[Offset, int]

    def __init__(self, live: LiveModel, at: Offset, seen: list[LearnedInstance]) -> None:
        self.receipts: Receipts = live.receipts
        self._live = live
        self._at = at
        self._seen = seen

    def apply(
        self,
        buffer: bytes,
        at: int,
        ranks: npt.NDArray[np.int32],
        updated: npt.NDArray[np.bool_],
    ) -> tuple[int, int]:
        """Rank each record, then apply it. It is recorded if all its true labels are known."""
        live = self._live
        entry, first = self.at
        for i in range(len(ranks)):
            shape = record_shape(buffer, at)
            end = int(vector_end(buffer, at))
            vector, true = buffer[at:end], frozenset(filter(None, map(live.present, unpack_labels(buffer, end))))
            best = live.rank(vector, DEPTH)
            live.at = entry, first + i
            listed = [live.label(class_id) for class_id in best.class_ids.tolist()]
            at, _ = live.apply(buffer, at, ranks[i : i + 1], updated[i : i + 1])
            if true and shape.details_at < 0 and not shape.partial:
                self._seen.append(LearnedInstance(self._at, vector, true, listed))
        return at, len(ranks)


class ScoredModel(ReplicatedModel):
    """Model replica that records how the index ranked each instance before learning it."""

    recording = False  # set while there are versions to rank the instances too
    recorded: list[LearnedInstance]

    def reset(self) -> None:
        self.recorded = []
        super().reset()

    async def _apply_event(self, event: Event, at: Offset) -> EntryApplication | None:
        if not self.recording or type(event) is not LearnEvent:
            return await super()._apply_event(event, at)
        live = self.live
        applying = EntryApplication(RankingProxy(live, at, self.recorded), event.records, event.n, event.units, at)
        while not applying.done:
            await step(live, applying, self.slice_events)
            await asyncio.sleep(0)
        return applying


def rank_by_version(loaded: LoadedVersion, renamed: Renamed, vectors: Sequence[bytes]) -> list[list[str]]:
    asked = [RankingRequest(loaded, vector, DEPTH, None, None, None, START, renamed) for vector in vectors]
    return [[label for label, _ in ranked] for ranked in rank_all(asked)]
