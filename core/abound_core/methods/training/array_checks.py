"""Checks of the arrays of an artifact. They run before any kernel, because kernels do not check their input.

All functions raise Corrupted. A check costs O(size of the array), once, when an artifact is loaded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.array_spec import Array, Arrays, ArraySpec, check_arrays
from abound_core.errors import Corrupted
from abound_core.methods.training.matrices import Csr

IDS = (np.int32, np.int64)  # scipy uses the wider type for large matrices


def require_array(
    arrays: Arrays,
    name: str,
    kinds: npt.DTypeLike | tuple[npt.DTypeLike, ...],
    *shape: int | None,
    low: float | None = None,
    high: float | None = None,
) -> Array:
    """Return an array after checking its type, its shape (None: any length) and the range of its numbers."""
    sizes = tuple(f"size {axis}" if length is None else length for axis, length in enumerate(shape))
    own = {name: arrays[name]} if name in arrays else {}
    return check_arrays("a version", own, {name: ArraySpec(kinds, sizes, low, high)})[name]


def require_ascending(name: str, array: Array) -> Array:
    if (array[1:] <= array[:-1]).any():
        raise Corrupted(f"the array {name} does not ascend")
    return array


def require_rows(arrays: Arrays, starts: str, ids: str, values: str | None, shape: tuple[int | None, int]) -> Csr:
    """Build compressed rows from three arrays, or two where each value is 1; float32, or int8.

    If the number of rows is None, it is that of ``starts``.
    """
    n, width = shape
    ends = require_array(arrays, starts, IDS, None if n is None else n + 1)
    columns = require_array(arrays, ids, IDS, None, low=0, high=width - 1)
    if not len(ends) or ends[0] != 0 or ends[-1] != len(columns) or (ends[1:] < ends[:-1]).any():
        raise Corrupted(f"the array {starts} does not divide {ids} into rows")
    filled = (
        np.ones(len(columns), np.int8) if values is None else require_array(arrays, values, np.float32, len(columns))
    )
    return sparse.csr_matrix((filled, columns, ends), shape=(len(ends) - 1, width))
