"""Conversion of an index to and from plain arrays that hold its logical state, independent of the layout in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import MOST_EVENTS, ArraySpec
from abound_core.errors import Corrupted
from abound_core.index import export_kernels as export
from abound_core.index import layout_kernels as layout
from abound_core.index import sls_kernels as sls
from abound_core.index.layout_kernels import IndexArrays

MOST_TOTAL = 2.0**192  # more events than there can be, each with the largest float32

ARRAYS = {
    "lengths": ArraySpec(np.uint16, ("features",)),
    "seen": ArraySpec(np.uint16, ("features",), 0, int(layout.SEEN_FULL)),
    "totals": ArraySpec(np.float64, ("features",), 0, MOST_TOTAL),
    "class_ids": ArraySpec(np.uint32, ("connections",), 0, "classes"),
    "counts": ArraySpec(np.float64, ("connections",), 0, MOST_TOTAL),
}
"""The arrays with ``fsu``, in the order in which the kernels take them."""

SQUARES_ARRAYS = {
    "lengths": ArraySpec(np.uint16, ("features",)),
    "totals": ArraySpec(np.float64, ("features",), 0, MOST_EVENTS),
    "class_ids": ArraySpec(np.uint32, ("connections",), 0, "classes"),
    "weights": ArraySpec(np.float32, ("connections",)),
    "steps": ArraySpec(np.uint16, ("connections",)),
    "counted": ArraySpec(np.int64, (1,), 0, MOST_EVENTS),
}


def export_index(index: IndexArrays, squares: bool) -> dict[str, npt.NDArray[Any]]:
    counters = index.counters
    sizes = {"features": int(counters[layout.N_FEATURES]), "connections": int(counters[layout.N_CONNECTIONS])}
    arrays = {name: spec.empty(**sizes) for name, spec in (SQUARES_ARRAYS if squares else ARRAYS).items()}
    (sls.export_squares if squares else export.export_features)(index, *arrays.values())
    return arrays


def import_index(index: IndexArrays, arrays: Mapping[str, npt.NDArray[Any]], squares: bool) -> None:
    """Fill an empty index that is large enough with checked arrays. Raises Corrupted if they contradict each other."""
    parts = [np.require(arrays[name], requirements=("C", "W")) for name in (SQUARES_ARRAYS if squares else ARRAYS)]
    if squares and not sls.import_squares(index, *parts):
        raise Corrupted("a number of the index is out of range, or a feature is connected to a class twice")
    if not squares and not export.import_features(index, *parts, np.zeros(len(index.scores), np.uint64)):
        raise Corrupted("the connections of the index are out of order, repeated, or exceed the total of their feature")
