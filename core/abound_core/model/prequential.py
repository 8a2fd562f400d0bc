"""The prequential score: every event is ranked before it is learned, and the ranks give a running accuracy.

The score is kept over all time and over two windows of the newest events. If the short one falls behind the long one,
the ranking has become worse. It covers whole instances (the rank of the
best true label) and single labels, grouped by how often the label had been learned before: **tail** fewer than 10
times, **torso** fewer than 100, **head** the rest. It is part of a model's state: the same log gives the same figures
on every replica.

The **trace** is the score over time in bounded memory: the counts after every ``stride`` instances. When the trace is
full, every second point is dropped and the stride doubles. A model of any age therefore has between
``TRACE_POINTS / 2`` and ``TRACE_POINTS`` points, evenly spaced over its history.

R_k, MRR: Madani, Connor and Greiner (JMLR 2009), section 3.3. Prequential evaluation: Dawid (1984).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import MOST_EVENTS, ArraySpec, check_arrays
from abound_core.errors import Corrupted
from abound_core.model.prequential_kernels import (
    GROUP_BITS,
    HITS_AT_1,
    HITS_AT_5,
    LABELS,
    LEARNED,
    N_COUNTS,
    N_ROWS,
    UPDATED,
)
from abound_core.rank_sums import RankSums

WINDOW = 10_000  # instances for the total, labels for the groups

RECENT = 500  # instances; it lies within the long one, so it needs no state of its own

NEWEST = 100  # ranks of a label that count for its own R@1

MOST_CONFUSED = 10

TRACE_POINTS = 256
MOST_TIME = 8_640_000_000_000_000  # milliseconds since 1970: the last one that is a date in a browser
FIRST_STRIDE = 10

GROUPS = ("tail", "torso", "head")
MEASURES = ("R@1", "R@5", "MRR")

ARRAYS = {
    "counts": ArraySpec(np.int64, (N_ROWS, N_COUNTS), 0, MOST_EVENTS),
    "reciprocal": ArraySpec(np.float64, (N_ROWS,), 0, MOST_EVENTS),
    "window": ArraySpec(np.int32, (WINDOW,), 0),
    "label_window": ArraySpec(np.int32, (WINDOW,), 0),
    "label_ids": ArraySpec(np.int32, (WINDOW,), 0),
    "label_answers": ArraySpec(np.int32, (WINDOW,), -1),
    "trace_counts": ArraySpec(np.int64, (TRACE_POINTS, N_ROWS, N_COUNTS), 0, MOST_EVENTS),
    "trace_reciprocal": ArraySpec(np.float64, (TRACE_POINTS, N_ROWS), 0, MOST_EVENTS),
    "stride": ArraySpec(np.int64, (1,), FIRST_STRIDE, MOST_EVENTS),
    "trace_times": ArraySpec(np.int64, (TRACE_POINTS,), 0, MOST_TIME),
    "now": ArraySpec(np.int64, (1,), 0, MOST_TIME),
}


class PrequentialArrays(NamedTuple):
    """The arrays that the kernels use."""

    counts: npt.NDArray[np.int64]  # shape (N_ROWS, N_COUNTS); row 0 for the instances, then one row per group of labels
    reciprocal: npt.NDArray[np.float64]  # shape (N_ROWS,); sums of 1/rank
    # shape (WINDOW,); ring buffer of the newest instances' ranks, 0 where no true label was retrieved
    window: npt.NDArray[np.int32]
    label_window: npt.NDArray[np.int32]  # shape (WINDOW,); ring buffer of the newest labels: rank << GROUP_BITS | group
    label_ids: npt.NDArray[np.int32]  # shape (WINDOW,); their class ids
    label_answers: npt.NDArray[np.int32]  # shape (WINDOW,); the wrong class ranked first, -1 if none was
    # shape (TRACE_POINTS, N_ROWS, N_COUNTS); ``counts`` after each ``stride`` instances; 0 after the last point
    trace_counts: npt.NDArray[np.int64]
    trace_reciprocal: npt.NDArray[np.float64]  # shape (TRACE_POINTS, N_ROWS); ``reciprocal`` at the same points
    stride: npt.NDArray[np.int64]  # shape (1,); instances from one point to the next
    # Of the log entry at each point, and of the one that is applied, in milliseconds since 1970; 0 if unknown. They do
    # not count for the digest: the same events may be learned at other times.
    trace_times: npt.NDArray[np.int64]  # shape (TRACE_POINTS,)
    now: npt.NDArray[np.int64]  # shape (1,)


class Prequential:
    """The running score of a model; changed only by the apply kernel."""

    def __init__(self) -> None:
        self.arrays = PrequentialArrays(**{name: np.zeros_like(spec.empty()) for name, spec in ARRAYS.items()})
        self.arrays.stride[0] = FIRST_STRIDE

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def n_learned(self) -> int:
        return int(self.arrays.counts[0, LEARNED])

    @property
    def n_updated(self) -> int:
        return int(self.arrays.counts[0, UPDATED])

    def scores(self) -> dict[str, Any]:
        """Return R@1, R@5 and MRR (0..1, None before the first event) over all time and both windows, and by group."""
        ever, *groups = map(_of_counts, self.arrays.counts, self.arrays.reciprocal.tolist())
        return {
            "all": ever | {"groups": dict(zip(GROUPS, groups, strict=True))},
            "window": self._newest(WINDOW),
            "recent": self._newest(RECENT),
        }

    def _newest(self, n: int) -> dict[str, Any]:
        """Return R@1, R@5 and MRR over the newest ``n`` instances, and by group over the newest ``n`` labels."""
        counts, window, label_window = self.arrays.counts[0], self.arrays.window, self.arrays.label_window
        labels = _end_of(label_window, int(counts[LABELS]), n)
        groups = labels & ((1 << GROUP_BITS) - 1)
        return RankSums.of(_end_of(window, int(counts[LEARNED]), n)).measures() | {
            "groups": {
                name: RankSums.of(labels[groups == group] >> GROUP_BITS).measures() for group, name in enumerate(GROUPS)
            }
        }

    def move_label(self, class_id: int, into: int) -> None:
        """Count the newest ranks of a class for another one."""
        for ring in (self.arrays.label_ids, self.arrays.label_answers):
            ring[ring == class_id] = into

    def of_labels(self, n_classes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return by class how many of its newest ``NEWEST`` ranks are in the window, and their R@1 (NaN of none)."""
        ids, hits, _ = self._newest_labels(n_classes)
        order = np.argsort(ids, kind="stable")
        ids, hits = ids[order], hits[order]
        newest = np.arange(len(ids)) - np.searchsorted(ids, ids) < NEWEST
        n = np.bincount(ids[newest], minlength=n_classes)
        with np.errstate(invalid="ignore"):
            return n, np.bincount(ids[newest], hits[newest], n_classes) / n

    def confusions(self, class_id: int, n_classes: int) -> list[tuple[int, int]]:
        """Return the wrong classes ranked first in the newest ranks of a class, and how often each was; most first."""
        ids, _, answers = self._newest_labels(n_classes)
        answers = answers[ids == class_id][:NEWEST]
        known = answers[(answers >= 0) & (answers < n_classes) & (answers != class_id)]  # itself: it was merged since
        return Counter(sorted(known.tolist())).most_common(MOST_CONFUSED)

    def _newest_labels(
        self, n_classes: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """Return ids, whether ranked first, and wrong first answers of the labels in the window, newest first."""
        n, arrays = int(self.arrays.counts[0, LABELS]), self.arrays
        rings = arrays.label_ids, arrays.label_window, arrays.label_answers
        ids, ranks, answers = (_end_of(ring, n, WINDOW)[::-1] for ring in rings)
        known = ids < n_classes
        return ids[known], (ranks >> GROUP_BITS == 1)[known], answers[known]

    def trace(self) -> dict[str, Any]:
        """Return R@1, R@5 and MRR over time: each point covers the ``stride`` instances that end with it.

        All lists have one length. ``learned`` has the instances learned at each point, and ``times`` the milliseconds
        since 1970, None if unknown. ``groups`` has the number ``n`` of labels of each group in between and their
        measures, None without labels.
        """
        n_points = self.n_learned // int(self.arrays.stride[0])
        counts = np.diff(self.arrays.trace_counts[:n_points], axis=0, prepend=0)
        reciprocal = np.diff(self.arrays.trace_reciprocal[:n_points], axis=0, prepend=0.0)
        groups = {
            name: _series(counts[:, row], reciprocal[:, row]) | {"n": counts[:, row, LEARNED].tolist()}
            for row, name in enumerate(GROUPS, start=1)
        }
        return {
            "stride": int(self.arrays.stride[0]),
            "learned": self.arrays.trace_counts[:n_points, 0, LEARNED].tolist(),
            "times": [time or None for time in self.arrays.trace_times[:n_points].tolist()],
            **_series(counts[:, 0], reciprocal[:, 0]),
            "groups": groups,
        }

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return self.arrays._asdict()

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Prequential:
        fresh, given = cls(), check_arrays("a prequential score", arrays, ARRAYS)
        fresh.arrays = PrequentialArrays(**{name: array.copy() for name, array in given.items()})
        stride = int(fresh.arrays.stride[0])
        if fresh.n_learned // stride > TRACE_POINTS:
            raise Corrupted(f"the stride of a prequential score is {stride} after {fresh.n_learned} instances")
        n_points = fresh.n_learned // stride
        learned = fresh.arrays.trace_counts[:, 0, LEARNED]
        if not np.array_equal(learned[:n_points], stride * np.arange(1, n_points + 1)) or np.any(learned[n_points:]):
            raise Corrupted("the trace of a prequential score has points that do not match its stride")
        return fresh

    def digest_bytes(self) -> bytes:
        return b"".join(array.tobytes() for array in self.arrays[:-2])  # without times


def _end_of(ring: npt.NDArray[np.int32], n_written: int, n: int) -> npt.NDArray[np.int32]:
    """Return the newest ``n`` numbers of a ring buffer, oldest first; fewer if fewer were written."""
    return ring[np.arange(max(0, n_written - n), n_written) % len(ring)]


def _of_counts(counts: npt.NDArray[np.int64], reciprocal: float) -> dict[str, Any]:
    return RankSums(int(counts[LEARNED]), int(counts[HITS_AT_1]), int(counts[HITS_AT_5]), reciprocal).measures()


def _series(counts: npt.NDArray[np.int64], reciprocal: npt.NDArray[np.float64]) -> dict[str, list[Any]]:
    points = [_of_counts(row, total) for row, total in zip(counts, reciprocal.tolist(), strict=True)]
    return {name: [None if point[name] is None else round(point[name], 4) for point in points] for name in MEASURES}
