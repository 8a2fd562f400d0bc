"""Checks of the arrays of an artifact. They run before any kernel, because kernels do not check their input.

All functions raise Corrupted. A check costs O(size of the array), once, when an artifact is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound.core.errors import Corrupted
from abound.core.methods.training.matrices import Csr

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

IDS = (np.int32, np.int64)
"""Index types of compressed rows: scipy uses the wider one for large matrices."""


def require_array(
    arrays: Arrays, name: str, kinds: npt.DTypeLike | tuple[npt.DTypeLike, ...], *shape: int | None
) -> Array:
    """Return an array after checking its type, its shape (None: any length) and that its floats are finite."""
    array = arrays.get(name)
    if array is None:
        raise Corrupted(f"there is no array {name}")
    known = kinds if isinstance(kinds, tuple) else (kinds,)
    if array.dtype not in [np.dtype(kind) for kind in known]:
        raise Corrupted(f"the array {name} has the type {array.dtype}")
    if array.ndim != len(shape) or any(
        wanted not in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
    ):
        raise Corrupted(f"the array {name} has the shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Corrupted(f"the array {name} has a number that is not finite")
    return np.require(array, requirements="A")


def require_range(name: str, array: Array, low: float, high: float) -> Array:
    """Return the array after checking that all numbers lie from ``low`` to ``high``."""
    if array.size and not (array.min() >= low and array.max() <= high):
        raise Corrupted(f"the array {name} has a number that is not from {low:g} to {high:g}")
    return array


def require_indices(name: str, array: Array, n: int) -> Array:
    """Return the array after checking that its elements are indices below ``n``."""
    return require_range(name, array, 0, n - 1)


def require_ascending(name: str, array: Array) -> Array:
    """Return the array after checking that its elements ascend strictly."""
    if (array[1:] <= array[:-1]).any():
        raise Corrupted(f"the array {name} does not ascend")
    return array


def require_rows(arrays: Arrays, starts: str, ids: str, values: str | None, shape: tuple[int | None, int]) -> Csr:
    """Build compressed rows from three arrays, or two where each value is 1; float32, or int8.

    Parameters
    ----------
    shape : (int or None, int)
        None: take the number of rows from ``starts``.
    """
    n, width = shape
    ends = require_array(arrays, starts, IDS, None if n is None else n + 1)
    columns = require_indices(ids, require_array(arrays, ids, IDS, None), width)
    if not len(ends) or ends[0] != 0 or ends[-1] != len(columns) or (ends[1:] < ends[:-1]).any():
        raise Corrupted(f"the array {starts} does not divide {ids} into rows")
    filled = (
        np.ones(len(columns), np.int8) if values is None else require_array(arrays, values, np.float32, len(columns))
    )
    return sparse.csr_matrix((filled, columns, ends), shape=(len(ends) - 1, width))
