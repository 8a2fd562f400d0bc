"""The dense rows of an index: allocation, conversion to plain arrays, and their part of the digest.

The index's counters hold the addresses of the arrays and their used sizes: see
``abound_core.index.sls_rows_kernels``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import MOST_EVENTS, MOST_WEIGHT, ArraySpec
from abound_core.errors import Corrupted
from abound_core.index import layout_kernels as layout
from abound_core.index import sls_rows_kernels as sls_rows
from abound_core.index.sls_rows_kernels import MOST_CELLS, MOST_IN_ROW

ARRAYS = {
    "form": ArraySpec(np.int64, (4,), 0, MOST_EVENTS),
    "row_weights": ArraySpec(np.float32, ("cells",)),
    "row_steps": ArraySpec(np.float64, ("row_features",), 0, MOST_WEIGHT),
    "intercepts": ArraySpec(np.float64, ("row_classes",)),
    "class_times": ArraySpec(np.float64, ("row_classes",), 0, MOST_EVENTS),
}
"""The additional arrays of an index that may use rows.

``form`` holds the form, the number of classes, the labels learned in total and the instances learned in rows. The
other arrays are empty while the index is in lists. ``row_weights`` has one row after the other; ``class_times`` is
n_c.
"""

Flows = Mapping[int, Mapping[int, float]]  # for each class that moves: its targets, each with its part

STATE = [int(at) for at in (layout.FORM, sls_rows.N_CLASSES, sls_rows.N_LABELS, sls_rows.N_IN_ROWS)]
"""Indices of the counters that ``form`` holds."""


class DenseRows:
    """The arrays of the rows, empty at first. Their addresses are written into ``counters``, those of the index."""

    def __init__(self, counters: npt.NDArray[np.uint64]) -> None:
        self._counters = counters
        self._take_room(0, 0)

    @property
    def in_use(self) -> bool:
        return bool(self._counters[layout.FORM] == sls_rows.ROWS)

    @property
    def n_classes(self) -> int:
        """1 + the highest class id that was learned."""
        return int(self._counters[sls_rows.N_CLASSES])

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, including the reserve for growth."""
        return sum(array.nbytes for array in (self._weights, self._steps, self._classes))

    @property
    def n_bytes_used(self) -> int:
        return _n_bytes(*self._size()) if self.in_use else 0

    @property
    def growth_bytes(self) -> int:
        """Bytes that the arrays need when they grow next or are created: the old arrays stay until they are copied."""
        return _n_bytes(*_roomy(*self._size()))

    def make_room(self, n_features: int, n_classes: int) -> None:
        """Grow to at least ``n_features`` and ``n_classes``. A dimension that grows gets a quarter more than needed."""
        capacity, stride = self._weights.shape
        grown = _roomy(n_features, n_classes)
        old = self._weights, self._steps, self._classes
        self._take_room(capacity if n_features <= capacity else grown[0], stride if n_classes <= stride else grown[1])
        self._weights[:capacity, :stride] = old[0]
        self._steps[:capacity] = old[1]
        self._classes[:, :stride] = old[2]

    def release(self) -> None:
        """Free the memory. From then on the index stays in lists."""
        if self._weights.size:
            self._take_room(0, 0)

    def move_classes(self, flows: Flows) -> None:
        """Add the columns of some classes to those of their targets; one beyond what rows can hold gets nothing."""
        n_features, n = self._size()
        moving = {class_id: flow for class_id, flow in flows.items() if class_id < n}
        most = max([n, *(target + 1 for flow in moving.values() for target in flow)])
        if self.in_use:
            if max(n_features, 1) * most > MOST_CELLS or most > MOST_IN_ROW:
                most = n
            self.make_room(n_features, most)
            for columns in (self._weights.T, self._classes.T):
                given = columns[list(moving)]
                columns[list(moving)] = 0
                for column, flow in zip(given, moving.values(), strict=True):
                    for target in flow:
                        if target < most:
                            columns[target] += column
        self._counters[sls_rows.N_CLASSES] = most

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
        return float(self._classes[0, class_id]) if self.in_use and 0 <= class_id < self.n_classes else 0.0

    # --- as arrays

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        n_features, n_classes = self._size() if self.in_use else (0, 0)
        form = self._counters[STATE].astype(np.int64)
        of_classes = self._classes[:, :n_classes].copy()
        weights = self._weights[:n_features, :n_classes].ravel().copy()
        return dict(zip(ARRAYS, (form, weights, self._steps[:n_features].copy(), *of_classes), strict=True))

    def digest_bytes(self) -> bytes:
        """Return the bytes that the digest of an index covers in addition to its pages."""
        n_classes = self.n_classes if self.in_use else 0
        return self._counters[STATE].tobytes() + self._classes[:, :n_classes].tobytes()

    def load_arrays(
        self, arrays: Mapping[str, npt.NDArray[Any]], n_features: int, n_connections: int, highest: int
    ) -> None:
        """Load checked arrays; ``highest`` is the highest class id of a connection, -1 without connections.

        Raises Corrupted if they contradict each other.
        """
        form, weights, steps, intercepts, times = (arrays[name] for name in ARRAYS)
        in_rows, n_classes = bool(form[0]), int(form[1])
        if form[0] > 1 or n_classes > 2**31:
            raise Corrupted("the form of the index is unknown")
        of = (n_features, n_classes) if in_rows else (0, 0)
        if [len(part) for part in (weights, steps, times)] != [of[0] * of[1], of[0], of[1]]:
            raise Corrupted("the rows of the index do not have matching lengths")
        too_large = max(n_features, 1) * n_classes > MOST_CELLS or n_classes > MOST_IN_ROW
        if in_rows and (n_connections or too_large):
            raise Corrupted("an index in rows has connections, or is too large for rows")
        if highest >= n_classes or (not in_rows and form[3]):
            raise Corrupted("the index has connections to classes beyond its number of classes, or its form is unknown")
        if in_rows and weights.reshape(of)[(steps == 0) & (arrays["totals"] == 0)].any():
            raise Corrupted("a feature that was never learned has weights")
        self._counters[STATE] = form.astype(np.uint64)
        if in_rows:
            self._take_room(*of)
            self._weights[:] = weights.reshape(of)
            self._steps[:] = steps
            self._classes[:] = intercepts, times


def _roomy(n_features: int, n_classes: int) -> tuple[int, int]:
    return n_features + n_features // 4 + 1, n_classes + n_classes // 4 + 1


def _n_bytes(n_features: int, n_classes: int) -> int:
    return 4 * n_features * n_classes + 8 * n_features + 16 * n_classes
