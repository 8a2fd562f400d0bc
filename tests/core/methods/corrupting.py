"""Load fitted methods with one of their arrays corrupted in turn, and rank by what loads: ``python -m ... METHOD ...``.

A process of its own, since a kernel that trusts a wrong number ends the process. Prints for each method how many arrays
were refused and how many loaded.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.errors import Corrupted
from abound_core.methods.fitted import FittedMethod
from tests.core.methods.toy import RAW, SECRET, fit, made, queries

SMALL: dict[str, dict[str, Any]] = {"unweighted": {"tolerance": 1, "classifiers": 2}}


def corrupted(array: npt.NDArray[Any]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The array, wrong in every way that there is."""
    yield "truncated", array[:-1] if array.ndim else array.reshape(1)
    yield "longer", np.concatenate([array, array[-1:]]) if array.ndim else np.stack([array, array])
    yield "empty", array[:0] if array.ndim else np.zeros((0,), array.dtype)
    yield "another shape", array[None]
    yield "turned", array.reshape(array.shape[::-1])
    kind = array.dtype.kind
    if kind == "U":
        yield "other text", np.full_like(array, "?")
        return
    yield "another type", array.astype(np.int16 if array.dtype == np.float32 else np.float32)
    yield "objects", np.asarray(array, object)
    wrong = [0, 1, 2**40] + ([-1.0, np.nan, np.inf, -1e30, 1e30] if kind == "f" else [-1, -(2**31), 2**31 - 1, 2**62])
    for value in wrong:
        if kind == "f" or np.iinfo(array.dtype).min <= value <= np.iinfo(array.dtype).max:
            yield f"all {value}", np.full_like(array, value)
            for at in {0, array.size // 2, array.size - 1}:
                changed = array.copy()
                changed.reshape(-1)[at : at + 1] = value
                yield f"{value} at {at}", changed


def corrupt(method: str) -> None:
    """Try all arrays of a method; fails when something was neither refused nor ranks."""
    data = made(80, seed=0)
    whole = fit(method, data, **RAW.get(method, {}) | SMALL.get(method, {}))
    arrays, X = whole.to_arrays(), queries(data, 5, seed=1)
    refused = loaded = 0
    for name, array in arrays.items():
        if name.startswith("features/"):
            continue
        for how, wrong in [("gone", None), *corrupted(array)]:
            left = {other: kept for other, kept in arrays.items() if other != name}
            try:
                model = FittedMethod.from_arrays(whole.meta(), left if wrong is None else left | {name: wrong}, SECRET)
            except Corrupted:
                refused += 1
                continue
            loaded += 1
            with np.errstate(all="ignore"):
                found = model.rank(X, 3)
            assert len(found.starts) == X.shape[0] + 1, f"{name} {how}"
            assert not len(found.ids) or 0 <= found.ids.min() <= found.ids.max() < len(model.labels), f"{name} {how}"
    print(method, refused, loaded, flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        corrupt(name)
