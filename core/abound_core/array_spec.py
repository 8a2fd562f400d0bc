"""The types, shapes and ranges of the arrays of a model or of a fitted version, and the one check against them.

Each module keeps the specifications of its arrays next to its ``to_arrays``. Snapshots, state files, imported models
and versions are loaded by the same ``from_arrays``, which calls ``check_arrays`` before any kernel: kernels do not
check their input. What a table cannot say, such as arrays that contradict each other, is checked by ``from_arrays``.

A range is what learning can reach, with a margin such that nothing overflows and no further event leaves it. A count
in float64 stops at ``MOST_EVENTS``, and a sum where further summands are lost by rounding. A count in int64 does not
stop, so that imported models must leave room (``check_room``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.errors import Corrupted

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

MOST_EVENTS = 2**53  # 2,800 years of 100,000 a second

MOST_WEIGHT = 2.0**64  # the greatest float, unless its range says otherwise; times a weight it stays finite


class ArraySpec(NamedTuple):
    """What an array must be.

    ``shape`` has lengths, or the names of sizes. Without ``low`` and ``high`` the range is that of the type, for floats
    up to ``MOST_WEIGHT`` in size. If ``high`` is the name of a size, the numbers are indices below it.
    """

    dtype: npt.DTypeLike | tuple[npt.DTypeLike, ...]
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | str | None = None

    def empty(self, **sizes: int) -> Array:
        shape = [sizes[size] if isinstance(size, str) else size for size in self.shape]
        return np.empty(shape, np.dtype(self.dtype[0] if isinstance(self.dtype, tuple) else self.dtype))


def check_arrays(what: str, arrays: Arrays, specs: Mapping[str, ArraySpec], **sizes: int) -> dict[str, Array]:
    """Return the arrays of a table in its order, aligned in memory. Raises Corrupted.

    A size that is not in ``sizes`` is that of the first array that has it.
    """
    if unknown := sorted(arrays.keys() - specs.keys()):
        raise Corrupted(f"{what} has no arrays {', '.join(unknown)}")
    found = {}
    for name, spec in specs.items():
        array = arrays.get(name)
        if array is None:
            raise Corrupted(f"{what} needs an array {name}")
        kinds = spec.dtype if isinstance(spec.dtype, tuple) else (spec.dtype,)
        if array.dtype not in [np.dtype(kind) for kind in kinds]:
            raise Corrupted(f"the array {name} of {what} has the type {array.dtype}")
        if len(spec.shape) != array.ndim or any(
            length != (sizes.setdefault(size, length) if isinstance(size, str) else size)
            for size, length in zip(spec.shape, array.shape, strict=True)
        ):
            raise Corrupted(f"the array {name} of {what} has the shape {array.shape}")
        limit = MOST_WEIGHT if array.dtype.kind == "f" else None
        low = spec.low if spec.low is not None or limit is None else -limit
        high = sizes[spec.high] - 1 if isinstance(spec.high, str) else limit if spec.high is None else spec.high
        # NaN is the least and the greatest number of its array, and fails both comparisons.
        if array.size and (
            (low is not None and not array.min() >= low) or (high is not None and not array.max() <= high)
        ):
            raise Corrupted(f"the array {name} of {what} has a number out of range: it must be from {low} to {high}")
        found[name] = array if array.flags.aligned else array.copy()
    return found


def check_room(arrays: Arrays) -> None:
    """Raise Corrupted if counts of an imported model are so high that further events would take them out of range."""
    for name, array in arrays.items():
        if array.dtype == np.int64 and array.size and array.max() > MOST_EVENTS // 2:
            raise Corrupted(f"the array {name} has a count above {MOST_EVENTS // 2}, which learning cannot reach")
