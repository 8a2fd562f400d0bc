"""Calibration: the conversion of a label's score into a probability, learned from the stream and checked on it.

A model with ``calibrate`` has 42 numbers for a logistic model of the scores. It also counts how reliable its
estimates are. As in the prequential score, each estimate is made before the outcome is known. All of it is part of
the model's state: the same log gives the same numbers on every replica. ``abound_core/model/calibration_kernels.py``
has the learning rule.

It also keeps the most suspicious events, for people to look at. They keep the numbers that their labels had.

Reliability is counted over all time and for the **newest** 10,000 to 20,000 pairs of a label and its outcome, in
tenths of the estimate. The calibration error is the mean distance between the estimate and the share of true labels
(expected calibration error: Naeini, Cooper and Hauskrecht, AAAI 2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import MOST_EVENTS, ArraySpec, check_arrays
from abound_core.errors import Corrupted
from abound_core.model.calibration_kernels import (
    ALL,
    BEFORE,
    ERRORS,
    ESTIMATES,
    FIRST,
    GIVEN,
    MILLISECONDS,
    MOST_CURVATURE,
    MOST_LOGIT_WEIGHT,
    MOST_SUSPECTS,
    N_BINS,
    N_COLUMNS,
    N_ROWS,
    N_TERMS,
    NOW,
    NUMBER,
    PAIRS,
    RIDGE,
    SUSPECTED,
    TRUE,
    estimate,
)
from abound_core.types import Offset, Ranking

FIRST_WEIGHTS = (-2.0, 4.0, 0.0, 0.0, 0.0, 0.0)  # a score of one half means an even chance

Floats = npt.NDArray[np.float64]

ARRAYS = {
    "weights": ArraySpec(np.float64, (N_TERMS,), -MOST_LOGIT_WEIGHT, MOST_LOGIT_WEIGHT),
    "curvature": ArraySpec(np.float64, (N_TERMS, N_TERMS), -MOST_CURVATURE, MOST_CURVATURE),
    "bins": ArraySpec(np.float64, (N_ROWS, N_BINS, N_COLUMNS), 0, MOST_EVENTS),
    "suspects": ArraySpec(np.int64, (MOST_SUSPECTS, FIRST + 1), 0),
    "suspect_chances": ArraySpec(np.float64, (MOST_SUSPECTS, 2), 0, 1),
}
"""The arrays of ``Calibration.to_arrays``; without calibration there are none."""


class CalibrationArrays(NamedTuple):
    """The arrays that the kernels use; all are empty unless the model calibrates."""

    weights: Floats  # shape (N_TERMS,)
    curvature: Floats  # shape (N_TERMS, N_TERMS); the lower triangle of H
    bins: Floats  # shape (N_ROWS, N_BINS, N_COLUMNS); counts and sums by tenths of the estimate
    suspects: npt.NDArray[np.int64]  # shape (MOST_SUSPECTS, 6); in no order
    suspect_chances: Floats  # shape (MOST_SUSPECTS, 2); probabilities of their label and of the first one
    at: npt.NDArray[np.int64]  # shape (3,); offset of the next record; not part of the state


class Suspect(NamedTuple):
    """An event that may have a wrong label, with the probabilities before it was learned."""

    offset: Offset
    given: int  # class id of its label
    chance: float
    first: int  # class id of the label that was more probable
    first_chance: float


class Calibration:
    """The calibration of a model; changed only by the apply kernel. If not ``on``, the state is empty."""

    def __init__(self, on: bool) -> None:
        self.on = on
        fresh = {name: np.zeros_like(spec.empty()[: None if on else 0]) for name, spec in ARRAYS.items()}
        self.arrays = CalibrationArrays(**fresh, at=np.zeros(3, np.int64))
        if on:
            self.arrays.weights[:], self.arrays.curvature[:] = FIRST_WEIGHTS, RIDGE * np.eye(N_TERMS)

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def probabilities(self, ranking: Ranking) -> Floats:
        """Return the probabilities of the classes of a ranking of all classes, shape (k,)."""
        estimates = np.empty(len(ranking.scores))
        ids, scores = ranking.class_ids, ranking.scores
        if len(ids):
            estimate(self.arrays, ids, scores, ids[:2], scores[:2], estimates)
        return estimates

    def reliability(self) -> dict[str, Any] | None:
        """Return pairs, error, Brier score and bins, for ``all`` and ``newest``; None unless the model calibrates."""
        if not self.on:
            return None
        bins = self.arrays.bins
        return {"all": reliability_of(bins[ALL]), "newest": reliability_of(bins[BEFORE] + bins[NOW])}

    def suspects(self, n_learned: int) -> list[Suspect]:
        """Return the kept events among the newest ``SUSPECTED`` of ``n_learned``, most suspicious first."""
        events, chances = self.arrays.suspects, self.arrays.suspect_chances
        order = np.lexsort((-events[:, NUMBER], chances[:, 0] - chances[:, 1]))  # of equal ones the newest first
        return [
            Suspect(Offset(*event[MILLISECONDS:GIVEN]), event[GIVEN], chance, event[FIRST], first_chance)
            for event, (chance, first_chance) in zip(events[order].tolist(), chances[order].tolist(), strict=True)
            if event[NUMBER] > 0 and event[NUMBER] + SUSPECTED > n_learned
        ]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self.arrays, name) for name in ARRAYS} if self.on else {}

    @classmethod
    def from_arrays(cls, on: bool, arrays: Mapping[str, npt.NDArray[Any]], n_classes: int) -> Calibration:
        fresh = cls(on)
        given = check_arrays("a calibration", arrays, ARRAYS if on else {})
        if not on:
            return fresh
        bins = given["bins"]
        if np.any(bins[..., [TRUE, ESTIMATES, ERRORS]] > bins[..., [PAIRS]]):
            raise Corrupted("the bins of a calibration have contradictory counts")
        used = given["suspects"][:, NUMBER] > 0
        if np.any(given["suspects"][used][:, [GIVEN, FIRST]] >= n_classes):
            raise Corrupted("suspicious events of a calibration have unknown labels")
        for name, array in given.items():
            getattr(fresh.arrays, name)[...] = array
        return fresh

    def digest_bytes(self) -> bytes:
        return b"".join(array.tobytes() for array in self.to_arrays().values())


def reliability_of(bins: Floats) -> dict[str, Any]:
    """Return the reliability figures of one row of bins, with None where a bin or the row has no pairs."""
    pairs = bins[:, PAIRS]
    n = int(pairs.sum())
    some = np.maximum(pairs, 1.0)
    means, shares = bins[:, ESTIMATES] / some, bins[:, TRUE] / some
    return {
        "n": n,
        "error": float((np.abs(means - shares) * pairs).sum() / n) if n else None,
        "brier": float(bins[:, ERRORS].sum() / n) if n else None,
        "bins": [
            {"n": int(count), "estimate": float(mean), "true": float(share)} if count else _EMPTY
            for count, mean, share in zip(pairs, means, shares, strict=True)
        ],
    }


_EMPTY = {"n": 0, "estimate": None, "true": None}


def binned(estimates: Floats, true: npt.NDArray[np.bool_]) -> Floats:
    """Return the bins of estimates whose outcomes are known, shape (N_BINS, N_COLUMNS)."""
    bins = np.zeros((N_BINS, N_COLUMNS))
    at = np.minimum((estimates * N_BINS).astype(np.int64), N_BINS - 1)
    for column, summands in (
        (PAIRS, np.ones(len(at))),
        (TRUE, true.astype(np.float64)),
        (ESTIMATES, estimates),
        (ERRORS, (true - estimates) ** 2),
    ):
        bins[:, column] = np.bincount(at, summands, N_BINS)
    return bins
