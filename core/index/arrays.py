"""Conversion of an index to and from plain arrays that hold its logical state, independent of the layout in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.errors import Corrupted
from abound.core.kernels.index import export, layout, sls
from abound.core.kernels.index.layout import IndexArrays

PARTS = {"lengths": np.uint16, "seen": np.uint16, "totals": np.float64, "class_ids": np.uint32, "counts": np.float64}
"""Names and types of the arrays with ``fsu``, in the order in which the kernels take them."""

SQUARES_PARTS = {
    "lengths": np.uint16,
    "totals": np.float64,
    "class_ids": np.uint32,
    "weights": np.float32,
    "steps": np.uint16,
    "counted": np.int64,
}
"""Names and types of the arrays with ``sls``."""

PER_FEATURE = ("lengths", "seen", "totals")
"""The arrays with one number per feature. The others have one per connection, except ``counted``, a single number."""


def export_index(index: IndexArrays, squares: bool) -> dict[str, npt.NDArray[Any]]:
    """Return the logical state as new arrays, ``PARTS`` or ``SQUARES_PARTS``."""
    n_features, n_connections = (int(index.counters[at]) for at in (layout.N_FEATURES, layout.N_CONNECTIONS))
    arrays = {
        name: np.empty(_length(name, n_features, n_connections), dtype)
        for name, dtype in (SQUARES_PARTS if squares else PARTS).items()
    }
    (sls.export_squares if squares else export.export_features)(index, *arrays.values())
    return arrays


def check_parts(arrays: Mapping[str, npt.NDArray[Any]], squares: bool) -> list[npt.NDArray[Any]]:
    """Return the arrays in the order of their names.

    Raises
    ------
    Corrupted
        An array is missing or has another type, or the arrays do not fit together.
    """
    types = SQUARES_PARTS if squares else PARTS
    if any(
        name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1 for name, dtype in types.items()
    ):
        raise Corrupted(f"an index needs the arrays {', '.join(types)}, each with its own type and one dimension")
    lengths, class_ids = arrays["lengths"], arrays["class_ids"]
    if any(len(arrays[name]) != _length(name, len(lengths), len(class_ids)) for name in types):
        raise Corrupted("the arrays of the index do not have matching lengths")
    if int(lengths.sum(dtype=np.int64)) != len(class_ids) or int(class_ids.max(initial=0)) >= 2**31:
        raise Corrupted("the lengths of the index do not add up to its connections, or a class id is too large")
    return [np.require(arrays[name], requirements=("C", "W")) for name in types]


def import_index(index: IndexArrays, parts: Sequence[npt.NDArray[Any]], squares: bool) -> None:
    """Fill an empty index that is large enough. Raises Corrupted if a number is outside the range of an index."""
    if squares and not sls.import_squares(index, *parts):
        raise Corrupted("a number of the index is out of range, or a feature is connected to a class twice")
    if not squares and not export.import_features(index, *parts):
        raise Corrupted("the connections of the index are not in their order, or a number is out of range")


def _length(name: str, n_features: int, n_connections: int) -> int:
    return 1 if name == "counted" else n_features if name in PER_FEATURE else n_connections
