"""Feature Focus as a batch method."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from scipy import sparse

from core.index import Index
from core.methods.ff import Model, Params
from core.types import Ranking


class Slow:
    """An index that notes whether it is asked twice at once."""

    def __init__(self) -> None:
        self.busy = 0
        self.most = 0
        self.inside = threading.Event()

    def rank(self, *given: Any) -> Ranking:
        self.busy += 1
        self.most = max(self.most, self.busy)
        self.inside.wait(0.005)
        self.busy -= 1
        return Ranking(np.zeros(1, np.int32), np.ones(1))


def test_its_index_ranks_for_one_at_a_time() -> None:
    """Scores are summed up in the index itself, and its kernels let other threads run."""
    slow = Slow()
    model = Model(Params(), cast("Index", slow))
    X = sparse.csr_matrix(np.ones((3, 2), np.float32))
    with ThreadPoolExecutor(4) as pool:
        assert [len(found.ids) for found in pool.map(lambda _: model.rank(X, 1), range(4))] == [3] * 4
    assert slow.most == 1
