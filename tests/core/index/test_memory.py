"""The index's memory: blocks used again, invariants after random histories, numbers that never stop growing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from abound_core.config import ModelConfig
from abound_core.index import layout_kernels as layout
from abound_core.index import learning_kernels as learning
from abound_core.index.index import Index
from abound_core.index.layout_kernels import UNITS, Feedback
from abound_core.index.params import IndexParams
from tests.randomness import examples

PARAMS = replace(IndexParams.of(ModelConfig()), margin=math.inf)


@njit
def learn_many(arrays, params, values, class_ids):
    ids, ranks, feedback = np.zeros(1, np.int32), np.zeros(1, np.int32), Feedback(1, 0, 1.0)
    for i in range(len(values)):
        learning.learn_feedback(arrays, params, ids, values[i : i + 1], class_ids[i : i + 1], feedback, True, ranks)


def live_blocks(index: Index) -> list[tuple[int, int]]:
    """First and end unit of every feature's block, after checking what a header says."""
    headers = index.arrays.headers[: 2 * index.n_features : 2]
    blocks = []
    for header, length in zip(headers.tolist(), index.to_arrays()["lengths"].tolist(), strict=True):
        first, size, wide = header & 0xFFFFFFFF, (header >> 48) & 63, (header >> 54) & 1
        units = int(UNITS[size])
        assert length + (length + 1) // 2 * wide <= units
        assert bool(size) or not length
        if size:
            blocks.append((first, first + units))
    return blocks


def free_blocks(index: Index) -> list[tuple[int, int]]:
    blocks = []
    for size, units in enumerate(UNITS.tolist()):
        block = int(index.arrays.counters[int(layout.FREE) + size])
        while block != int(layout.NONE):
            blocks.append((block, block + units))
            block = int(index.arrays.arena[block])
    return blocks


def check_invariants(index: Index) -> None:
    arrays, params = index.to_arrays(), index.params
    used, free = int(index.arrays.counters[int(layout.USED)]), free_blocks(index)
    blocks = sorted(live_blocks(index) + free)
    assert sum(end - first for first, end in free) == int(index.arrays.counters[int(layout.FREE_UNITS)])
    # Every unit before the arena's front is in exactly one block, live or free.
    assert [first for first, _ in blocks] == [0, *(end for _, end in blocks[:-1])] if blocks else used == 0
    assert not blocks or blocks[-1][1] == used <= len(index.arrays.arena)
    assert index.n_connections == int(arrays["lengths"].sum())
    first = 0
    for length, total in zip(arrays["lengths"].tolist(), arrays["totals"].tolist(), strict=True):
        own = slice(first, first + length)
        counts, class_ids = arrays["counts"][own], arrays["class_ids"][own]
        pairs = list(zip((-counts).tolist(), class_ids.tolist(), strict=True))
        assert pairs == sorted(pairs)
        assert len(set(class_ids.tolist())) == length
        assert not params.w_min or length <= 1 / params.w_min
        assert (counts / total >= params.w_min).all()
        assert counts.sum() <= total * (1 + 1e-12)
        first += length


@settings(max_examples=examples(30), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_features=st.sampled_from([3, 50, 400]),
    w_min=st.sampled_from([0.0, 0.01, 0.2]),
    memory=st.sampled_from([None, 7.0]),
    leak=st.booleans(),
)
def test_invariants_after_random_histories(seed, n_features, w_min, memory, leak):
    index = Index(replace(PARAMS, w_min=w_min, memory=memory, leak=leak))
    rng = np.random.default_rng(seed)
    for _ in range(400):
        ids = rng.choice(n_features, rng.integers(1, min(20, n_features) + 1), replace=False).astype(np.int32)
        m = int(rng.integers(1, 4))
        class_ids = rng.choice(150, m, replace=False).astype(np.int32)
        index.learn(ids, np.exp(rng.normal(0, 3, len(ids))).astype(np.float32), class_ids)
        if rng.random() < 0.1:
            index.forget_feature(int(rng.integers(0, n_features)))
    check_invariants(index)
    copy = Index.from_arrays(index.params, index.to_arrays())
    check_invariants(copy)
    assert copy.digest() == index.digest()
    assert copy.n_bytes_used <= index.n_bytes_used


def test_blocks_are_used_again_under_churn():
    """The arena's front stays where it is while connections come and go and features are forgotten for new ones."""
    index = Index(PARAMS)
    rng = np.random.default_rng(2)
    fronts = []
    for _ in range(5):
        for _ in range(3000):
            ids = rng.choice(300, 15, replace=False).astype(np.int32)
            index.learn(ids, rng.random(15, np.float32) + np.float32(0.01), rng.integers(0, 200, 1).astype(np.int32))
            index.forget_feature(int(rng.integers(0, 300)))
        fronts.append(int(index.arrays.counters[int(layout.USED)]))
    check_invariants(index)
    assert fronts[-1] < 1.1 * fronts[0]
    assert 8 * fronts[-1] < 40 * index.n_connections


@pytest.mark.long
def test_longest_posting():
    """Without ``w_min`` a posting has 65,535 connections and then the weakest goes."""
    n = layout.MAX_LENGTH + np.uint64(3)
    index = Index(replace(PARAMS, w_min=0.0))
    index.make_room(1, int(n), 1, 500_000)
    ones, class_ids = np.ones(int(n), np.float32), np.arange(int(n), dtype=np.int32)
    learn_many(index.arrays, index.kernel_params, ones, class_ids)
    assert index.n_connections == int(layout.MAX_LENGTH)
    # All are equally heavy, so that the ones with the highest ids went when they came.
    assert index.to_arrays()["class_ids"].tolist() == class_ids[: index.n_connections].tolist()
    heavy = np.array([int(n) - 1], np.int32)
    learn_many(index.arrays, index.kernel_params, np.full(1, 2, np.float32), heavy)
    assert index.to_arrays()["class_ids"].tolist() == [*heavy, *class_ids[: index.n_connections - 1]]
