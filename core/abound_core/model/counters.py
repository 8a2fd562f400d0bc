"""Counters: how often each label was learned, the credits of the clock algorithm that evicts features, and feedback.

``abound_core.model.apply_kernels`` implements the eviction rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import MOST_EVENTS, ArraySpec, check_arrays
from abound_core.limits import MAX_DIMENSION
from abound_core.model.apply_kernels import (
    AWAITS_VECTOR,
    CODES,
    DIMENSION,
    HAND,
    IGNORED,
    MAX_CREDIT,
    MAX_FEATURES,
    N_CODES,
    REJECTED,
    UNLABELLED,
    WEIGHTED,
)

_FEEDBACK = {"unlabelled": UNLABELLED, "rejected": REJECTED, "ignored": IGNORED, "weighted": WEIGHTED}
_FEEDBACK_PLACES = list(_FEEDBACK.values())

ARRAYS = {
    "label_counts": ArraySpec(np.int64, ("classes",), 0, MOST_EVENTS),
    "credits": ArraySpec(np.uint8, ("credits",), 0, MAX_CREDIT),
    "hand": ArraySpec(np.int64, (1,), 0, "hands"),
    "dimension": ArraySpec(np.int64, (1,), 0, MAX_DIMENSION),
    "feedback": ArraySpec(np.int64, (len(_FEEDBACK),), 0, MOST_EVENTS),
}
"""The arrays of ``Counters.to_arrays``."""


class Counters:
    """Counts by class id and credits by feature id; changed by the apply kernel.

    Attributes
    ----------
    label_counts : int64 array, shape (>= n_classes,)
        Times each label was learned.
    credits : uint8 array, shape (>= n_features,) or (0,)
        0 to ``MAX_CREDIT``; empty without ``max_features``.
    control : int64 array, shape (10,)
        The bound (0: none), the feature id at the clock's hand, the dimension of the model's vectors (0: not known
        yet), the number of codes that exist, how many of them are features, four counts of feedback, and
        whether the first vector starts the re-ranker.
    """

    def __init__(self) -> None:
        self.label_counts = np.zeros(0, np.int64)
        self.credits = np.zeros(0, np.uint8)
        self.control = np.zeros(10, np.int64)

    @property
    def is_bounded(self) -> bool:
        return bool(self.control[MAX_FEATURES])

    @property
    def dimension(self) -> int:
        """Dimension of the vectors that the model learns; 0 before the first one."""
        return int(self.control[DIMENSION])

    def set_codes(self, codes: int, n_features: int) -> None:
        self.control[[CODES, N_CODES]] = codes, n_features

    def set_awaiting(self, awaits_vector: bool) -> None:
        """Set whether the first vector starts the re-ranker. It follows from the configuration and the re-ranker."""
        self.control[AWAITS_VECTOR] = awaits_vector

    @property
    def awaits_vector(self) -> bool:
        return bool(self.control[AWAITS_VECTOR])

    def set_bound(self, max_features: int | None) -> None:
        """Set ``max_features``. Without a bound the credits are dropped."""
        if max_features is None:
            self.credits = np.zeros(0, np.uint8)
            self.control[[MAX_FEATURES, HAND]] = 0
        else:
            self.control[MAX_FEATURES] = max_features

    @property
    def n_unlabelled(self) -> int:
        """Learned instances without a true label."""
        return int(self.control[UNLABELLED])

    def feedback(self) -> dict[str, int]:
        return {name: int(self.control[place]) for name, place in _FEEDBACK.items()}

    def continue_feedback(self, other: Counters) -> None:
        """Take over the counts of feedback of another state of the same model."""
        self.control[_FEEDBACK_PLACES] = other.control[_FEEDBACK_PLACES]

    def make_room(self, n_features: int, n_classes: int) -> None:
        if n_classes > len(self.label_counts):
            self.label_counts.resize(n_classes + n_classes // 8 + 64, refcheck=False)
        if self.is_bounded and n_features > len(self.credits):
            self.credits.resize(n_features + n_features // 8 + 64, refcheck=False)

    @property
    def n_bytes(self) -> int:
        return self.label_counts.nbytes + self.credits.nbytes

    def to_arrays(self, n_features: int, n_classes: int) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the counters of the first ids; those of feedback only after there was any."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "label_counts": self.label_counts[:n_classes].copy(),
            "credits": self.credits[: n_features if self.is_bounded else 0].copy(),
            "hand": self.control[[HAND]],
            "dimension": self.control[[DIMENSION]],
        }
        feedback = self.control[_FEEDBACK_PLACES]
        return arrays | {"feedback": feedback} if feedback.any() else arrays

    def load_arrays(self, arrays: Mapping[str, npt.NDArray[Any]], n_features: int, n_classes: int) -> None:
        """Load counters with the same bound. Raises Corrupted if they are invalid, or do not fit the ids."""
        arrays = {"feedback": np.zeros(len(_FEEDBACK), np.int64), **arrays}
        sizes = {"classes": n_classes, "credits": n_features if self.is_bounded else 0, "hands": n_features + 1}
        arrays = check_arrays("the counters", arrays, ARRAYS, **sizes)
        self.control[_FEEDBACK_PLACES] = arrays["feedback"]
        self.label_counts, self.credits = arrays["label_counts"].copy(), arrays["credits"].copy()
        self.control[HAND], self.control[DIMENSION] = arrays["hand"][0], arrays["dimension"][0]

    def digest_bytes(self, n_features: int, n_classes: int) -> bytes:
        own_credits = self.credits[:n_features].tobytes() if self.is_bounded else b""
        feedback = self.control[_FEEDBACK_PLACES]
        given = feedback.tobytes() if feedback.any() else b""
        return self.label_counts[:n_classes].tobytes() + own_credits + self.control[: DIMENSION + 1].tobytes() + given
