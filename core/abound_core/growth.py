"""Growth of arrays: in place, with one copy on the way to huge pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

HUGE_PAGES_BYTES = 2**22  # a new array of at least this size gets huge pages (``NUMPY_MADVISE_HUGEPAGE``)


def longer(array: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """Return an array with ``n`` elements, more than before; the new ones are 0.

    It is the same array, grown in place (realloc: for large arrays a remapping of pages), without a pause for a copy.
    Only an array that becomes large is copied, once, since a small one never had huge pages.
    """
    if array.nbytes < HUGE_PAGES_BYTES <= n * array.itemsize:
        copy = np.empty(n, array.dtype)
        copy[: len(array)] = array
        copy[len(array) :] = 0
        return copy
    array.resize(n, refcheck=False)
    return array
