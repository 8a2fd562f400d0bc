"""The arrays of an index in rows: their room, and their part of an index as plain arrays and of its digest.

What of them is in use, and where they are, stand in the index's counters: see ``abound.core.kernels.index.sls_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.errors import Damaged
from abound.core.kernels.index import layout, sls_rows
from abound.core.kernels.index.sls_rows import MOST_CELLS, MOST_IN_ROW

PARTS = {
    "form": np.int64,
    "row_weights": np.float32,
    "row_steps": np.float64,
    "intercepts": np.float64,
    "class_times": np.float64,
}
"""Names and types of the arrays that an index has beside the others if it may ever be in rows.

``form`` holds the form, the number of classes, the labels learned in all and the instances learned in rows; the others
are empty in lists. ``row_weights`` has row after row; ``class_times`` is n_c.
"""

STATE = [int(at) for at in (layout.FORM, sls_rows.N_CLASSES, sls_rows.N_LABELS, sls_rows.N_IN_ROWS)]
"""Places in the counters of what ``form`` holds."""


class Rows:
    """The arrays, empty at first.

    Parameters
    ----------
    counters : uint64 array
        Of the index; they are told where the arrays are.
    """

    def __init__(self, counters: npt.NDArray[np.uint64]) -> None:
        self._counters = counters
        self._take_room(0, 0)

    @property
    def in_use(self) -> bool:
        """Whether the index is in rows."""
        return bool(self._counters[layout.FORM] == sls_rows.ROWS)

    @property
    def n_classes(self) -> int:
        """1 + the highest class id that was learned."""
        return int(self._counters[sls_rows.N_CLASSES])

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, with what is reserved for growth."""
        return sum(array.nbytes for array in (self._weights, self._steps, self._classes))

    @property
    def n_bytes_used(self) -> int:
        """Bytes of what is in use."""
        return _n_bytes(*self._size()) if self.in_use else 0

    @property
    def n_bytes_ahead(self) -> int:
        """Bytes that arrays take when they grow next, or are begun: the old ones are there until they are copied."""
        return _n_bytes(*_roomy(*self._size()))

    def make_room(self, n_features: int, n_classes: int) -> None:
        """Grow to so many features and classes, and a quarter more of each that is exceeded."""
        capacity, stride = self._weights.shape
        grown = _roomy(n_features, n_classes)
        old = self._weights, self._steps, self._classes
        self._take_room(capacity if n_features <= capacity else grown[0], stride if n_classes <= stride else grown[1])
        self._weights[:capacity, :stride] = old[0]
        self._steps[:capacity] = old[1]
        self._classes[:, :stride] = old[2]

    def make_none(self) -> None:
        """Give the memory back; the index is in lists for good."""
        if self._weights.size:
            self._take_room(0, 0)

    def _take_room(self, capacity: int, stride: int) -> None:
        self._weights = np.zeros((capacity, stride), np.float32)
        self._steps = np.zeros(capacity, np.float64)
        self._classes = np.zeros((2, stride), np.float64)
        places = {
            sls_rows.WEIGHTS: self._weights.ctypes.data,
            sls_rows.ROW_STEPS: self._steps.ctypes.data,
            sls_rows.INTERCEPTS: self._classes.ctypes.data,
            sls_rows.TIMES: self._classes.ctypes.data + 8 * stride,
            sls_rows.STRIDE: stride,
            sls_rows.CAPACITY: capacity,
        }
        for at, value in places.items():
            self._counters[at] = value

    def _size(self) -> tuple[int, int]:
        return int(self._counters[layout.N_FEATURES]), self.n_classes

    def intercept(self, class_id: int) -> float:
        """What every instance has of the score of a class; 0 in lists."""
        return float(self._classes[0, class_id]) if self.in_use and 0 <= class_id < self.n_classes else 0.0

    # --- as arrays

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Fresh arrays, ``PARTS``."""
        n_features, n_classes = self._size() if self.in_use else (0, 0)
        form = self._counters[STATE].astype(np.int64)
        of_classes = self._classes[:, :n_classes].copy()
        weights = self._weights[:n_features, :n_classes].ravel().copy()
        return dict(zip(PARTS, (form, weights, self._steps[:n_features].copy(), *of_classes), strict=True))

    def digest_bytes(self) -> bytes:
        """What the digest of an index is over beside its pages."""
        n_classes = self.n_classes if self.in_use else 0
        return self._counters[STATE].tobytes() + self._classes[:, :n_classes].tobytes()

    def take(self, arrays: Mapping[str, npt.NDArray[Any]], n_features: int, n_connections: int, highest: int) -> None:
        """Become what ``to_arrays`` wrote.

        Parameters
        ----------
        n_features, n_connections : int
            Of the index.
        highest : int
            The highest class that a connection is to, -1 without any.

        Raises
        ------
        Damaged
            Missing arrays, other types, or what no index can look like.
        """
        form, weights, steps, intercepts, times = self._checked(arrays)
        in_rows, n_classes = bool(form[0]), int(form[1])
        of = (n_features, n_classes) if in_rows else (0, 0)
        if [len(part) for part in (weights, steps, intercepts, times)] != [of[0] * of[1], of[0], of[1], of[1]]:
            raise Damaged("the rows of the index do not have matching lengths")
        too_large = max(n_features, 1) * n_classes > MOST_CELLS or n_classes > MOST_IN_ROW
        if in_rows and (n_connections or too_large):
            raise Damaged("an index in rows has connections, or is too large for rows")
        if highest >= n_classes or (not in_rows and form[3]):
            raise Damaged("the classes of the index are fewer than it has connections to, or its form is none")
        if not all(np.isfinite(part).all() for part in (weights, steps, intercepts, times)):
            raise Damaged("a number in the rows of the index is not finite")
        if (steps < 0).any() or (times < 0).any():
            raise Damaged("a number in the rows of the index is below 0")
        if in_rows and weights.reshape(of)[(steps == 0) & (arrays["totals"] == 0)].any():
            raise Damaged("a feature that was never learned has weights")
        self._counters[STATE] = form.astype(np.uint64)
        if in_rows:
            self._take_room(*of)
            self._weights[:] = weights.reshape(of)
            self._steps[:] = steps
            self._classes[:] = intercepts, times

    def _checked(self, arrays: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        if any(
            name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1 for name, dtype in PARTS.items()
        ):
            raise Damaged(f"an index with rows also has the arrays {', '.join(PARTS)}, each of its own type")
        form = arrays["form"]
        if len(form) != len(STATE) or form[0] not in (0, 1) or (form < 0).any() or form[1] > 2**31:
            raise Damaged("the form of the index is none")
        return [arrays[name] for name in PARTS]


def _roomy(n_features: int, n_classes: int) -> tuple[int, int]:
    """Room for so many features and classes, and for some more: at most three times the cells."""
    return n_features + n_features // 4 + 1, n_classes + n_classes // 4 + 1


def _n_bytes(n_features: int, n_classes: int) -> int:
    return 4 * n_features * n_classes + 8 * n_features + 16 * n_classes
