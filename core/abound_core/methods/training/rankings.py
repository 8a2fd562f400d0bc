"""Rankings of many instances: built from scores, and joined from blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.measures import Ints, Rankings
from abound_core.methods.training.parallel import spread
from abound_core.numba.top_k import top_of_rows

__all__ = ["Rankings", "dense_top", "in_blocks", "joined", "of_padded"]


def dense_top(scores: npt.NDArray[Any], k: int) -> Rankings:
    """Rank the best ``k`` labels of each row of scores (n, L), equal scores by label id; -inf: not ranked; no NaN."""
    n, k = scores.shape[0], min(k, scores.shape[1])
    ids, best = np.empty((n, k), np.int32), np.empty((n, k), np.float64)
    counts = np.empty(n, np.int64)
    top_of_rows(np.ascontiguousarray(scores), ids, best, counts)
    return of_padded(ids, best, counts)


def of_padded(ids: npt.NDArray[np.int32], scores: npt.NDArray[np.float64], counts: Ints) -> Rankings:
    """Build rankings from a sorted table, shape (n, k), of which each row is used up to its count."""
    used = np.arange(ids.shape[1]) < counts[:, None]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Rankings(starts, ids[used].astype(np.int64), scores[used].astype(np.float64))


def joined(blocks: Sequence[Rankings]) -> Rankings:
    sizes = [np.diff(block.starts) for block in blocks]
    starts = np.concatenate(([0], np.cumsum(np.concatenate(sizes) if sizes else []))).astype(np.int64)
    ids = np.concatenate([np.zeros(0, np.int64), *(block.ids for block in blocks)])
    return Rankings(starts, ids, np.concatenate([np.zeros(0), *(block.scores for block in blocks)]))


def in_blocks(n: int, size: int, rank: Callable[[int, int], Rankings]) -> Rankings:
    """Rank rows in blocks by ``rank(first, end)``, which changes no shared data, on the executor of ``spread``."""
    bounds = [(first, min(first + size, n)) for first in range(0, n, size)]
    return joined(spread(rank, bounds))
