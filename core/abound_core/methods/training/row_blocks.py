"""Matrices in blocks of rows with bounded work, so that a method can report progress and be cancelled between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from abound_core.measures import Ints
from abound_core.methods.training.matrices import Csr
from abound_core.methods.training.progress import Progress


def pieces(costs: Ints, most: int, rows: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of blocks of rows that cost at most ``most`` and have 1 to ``rows`` rows."""
    n = len(costs)
    sums = np.concatenate(([0], np.cumsum(costs)))
    first = 0
    while first < n:
        many = int(np.searchsorted(sums, sums[first] + most, side="right")) - 1 - first
        end = min(first + max(1, many if rows is None else min(many, rows)), n)
        yield first, end
        first = end


def stacked(parts: list[Csr], stage: str, progress: Progress) -> Csr:
    """Stack parts of one matrix below each other. Consumes ``parts``, so that only one part is in memory twice."""
    starts = np.concatenate(([0], np.cumsum([part.nnz for part in parts])))
    wide = np.int32 if max(starts[-1], parts[0].shape[1]) < 2**31 else np.int64
    data, indices = np.empty(starts[-1], parts[0].dtype), np.empty(starts[-1], wide)
    ends, columns = [np.zeros(1, wide)], parts[0].shape[1]
    for number, start in enumerate(starts[:-1].tolist()):
        progress(stage, number / len(parts))
        part, parts[number] = parts[number], parts[-1][:0]
        data[start : start + part.nnz], indices[start : start + part.nnz] = part.data, part.indices
        ends.append((part.indptr[1:] + start).astype(wide))
    indptr = np.concatenate(ends)
    return sparse.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, columns), copy=False)
