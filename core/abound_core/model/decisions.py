"""Decisions of a model with ``decide``: their state, fixed in size, and its figures.

``abound_core/model/decision_kernels.py`` has the rules. No class number is part of the state, so labels that are
renamed, merged, split or retired leave it as it is: what the change is worth, the next events show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import MOST_EVENTS, ArraySpec, check_arrays
from abound_core.config import DecideConfig
from abound_core.errors import Corrupted
from abound_core.model import decision_kernels as kernels
from abound_core.model.calibration_kernels import OFFSET

NAMES = ("defer", "answer", "none")

Floats = npt.NDArray[np.float64]

ARRAYS = {
    "outcomes": ArraySpec(np.float64, (kernels.N_BINS, 3), 0, MOST_EVENTS),
    "scores": ArraySpec(np.float64, (2, kernels.N_SCORES), 0, MOST_EVENTS),
    "sets": ArraySpec(np.float64, (kernels.N_SETS,), 0, MOST_EVENTS),
    "totals": ArraySpec(np.int64, (kernels.N_TOTALS,), 0, MOST_EVENTS),
    "newest": ArraySpec(np.uint8, (kernels.NEWEST,)),
}
"""The arrays of ``Decisions.to_arrays``, about 5 kB; without ``decide`` there are none."""


class DecisionArrays(NamedTuple):
    """The arrays that the kernels use; all are empty unless the model decides."""

    params: Floats  # shape (N_PARAMS,); from the configuration
    outcomes: Floats  # shape (N_BINS, 3)
    scores: Floats  # shape (2, N_SCORES)
    sets: Floats  # shape (N_SETS,)
    totals: npt.NDArray[np.int64]  # shape (N_TOTALS,)
    # shape (NEWEST,); ring buffer: the decision | labels of an audited answer << 2 | right ones << 5
    newest: npt.NDArray[np.uint8]
    plain: Floats  # shape (1,); the index's best score for the instance that is answered; not part of the state
    # shape (n,); 1 for each of the first n classes that is retired; not part of the state
    retired: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)


class Decisions:
    """The decisions of a model; changed only by the apply kernel. If not ``on``, the state is empty."""

    def __init__(self, config: DecideConfig | None) -> None:
        self.on = config is not None
        fresh = {name: np.zeros_like(spec.empty()[: None if self.on else 0]) for name, spec in ARRAYS.items()}
        self.arrays = DecisionArrays(
            np.zeros(kernels.N_PARAMS if self.on else 0), plain=np.zeros(int(self.on)), **fresh
        )
        self.configure(config)

    def configure(self, config: DecideConfig | None) -> None:
        """Use other parameters, of a model that decides before and after."""
        if config is not None:
            self.arrays.params[:] = config.agreement, config.audit, config.none, config.coverage

    def figures(self) -> dict[str, Any] | None:
        """Return shares, agreement, threshold and curve, of all time and of the newest; None unless the model decides.

        Shares and agreement are estimates for all instances of ``/classify``: what counts once is deferred, or gets
        none; what was answered and audited stands for 1 / audit instances.
        """
        if not self.on:
            return None
        params, outcomes, scores, sets, totals, newest = self.arrays[:6]
        n, curve = int(totals[: kernels.LABELS].sum()), np.empty((kernels.N_BINS, 3))
        codes = newest[:n].astype(np.int64)
        recent = np.append(np.bincount(codes & 3, minlength=3), [(codes >> 2 & 7).sum(), (codes >> 5).sum()])
        threshold = int(kernels.put_curve(outcomes, 1.0 + sets[kernels.TRUE_LABELS], params[kernels.AGREEMENT], curve))
        bound, deferred = int(kernels.find_bound(scores, params[kernels.NONE_SHARE])), sets[kernels.DEFERRED]
        return {
            "agreement": float(params[kernels.AGREEMENT]),
            "threshold": probability_of(threshold) if threshold < kernels.N_BINS else None,
            "all": self._shares(totals),
            "newest": self._shares(recent),
            "candidates": {
                "coverage": float(params[kernels.COVERAGE]),
                "held": float(sets[kernels.HELD] / deferred) if deferred else None,
                "reached": float(sets[kernels.REACHED] / deferred) if deferred else None,
                "reachable": self.reaches_coverage,
            },
            "none_below": math.exp(kernels.LOWEST_LOG + bound / kernels.BINS_PER_LOG) - OFFSET if bound else None,
            "curve": [
                {"threshold": probability_of(b), "share": traffic / curve[0, 0], "agreement": agreement, "low": low}
                for b, (traffic, agreement, low) in enumerate(curve.tolist())
                if traffic > 0.0
            ],
        }

    @property
    def reaches_coverage(self) -> bool:
        """Whether the best labels contain a true one as often as the coverage demands."""
        params, sets = self.arrays.params, self.arrays.sets
        return bool(sets[kernels.REACHED] >= params[kernels.COVERAGE] * sets[kernels.DEFERRED])

    def _shares(self, totals: npt.NDArray[np.int64]) -> dict[str, Any]:
        counts, (labels, right) = totals[: kernels.LABELS], totals[kernels.LABELS :].tolist()
        weights = counts * np.array([1.0, 1.0 / self.arrays.params[kernels.AUDIT], 1.0])
        return {
            "n": int(counts.sum()),
            "shares": dict(zip(NAMES, (weights / max(weights.sum(), 1.0)).tolist(), strict=True)),
            "audited": int(counts[kernels.ANSWER]),
            "agreement": right / labels if labels else None,
            "low": float(kernels.lower_bound.py_func(right / labels, labels)) if labels else None,
        }

    # --- as arrays

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self.arrays, name).copy() for name in ARRAYS} if self.on else {}

    @classmethod
    def from_arrays(cls, config: DecideConfig | None, arrays: Mapping[str, npt.NDArray[Any]]) -> Decisions:
        fresh = cls(config)
        given = check_arrays("the decisions", arrays, ARRAYS if fresh.on else {})
        if not fresh.on:
            return fresh
        totals, sets, outcomes = given["totals"], given["sets"], given["outcomes"]
        if (
            np.any(outcomes[:, kernels.RIGHT] > outcomes[:, kernels.N])
            or totals[kernels.RIGHT_LABELS] > totals[kernels.LABELS]
            or max(sets[kernels.HELD], sets[kernels.REACHED]) > sets[kernels.DEFERRED]
            or sets[kernels.THETA] > kernels.MOST_THETA
            or np.any((given["newest"] & 3) > kernels.NONE)
            or np.any(given["newest"] >> 5 > (given["newest"] >> 2 & 7))
        ):
            raise Corrupted("the decisions of a model have contradictory counts")
        for name, array in given.items():
            getattr(fresh.arrays, name)[...] = array
        return fresh

    def digest_bytes(self) -> bytes:
        return b"".join(array.tobytes() for array in self.to_arrays().values())


def probability_of(place: int) -> float:
    """Return the least probability of a bin of outcomes."""
    return 1.0 / (1.0 + math.exp(-(kernels.LOWEST_LOGIT + place / kernels.BINS_PER_LOGIT))) if place else 0.0
