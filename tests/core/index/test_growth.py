"""The index's arrays have room for each other, and all that an instance takes of the arena was asked for before."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.index import export_kernels as export
from abound_core.index import index as index_module
from abound_core.index import layout_kernels as layout
from abound_core.index import learning_kernels as learning
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback, IndexArrays
from abound_core.index.params import IndexParams

EAGER = replace(IndexParams.of(ModelConfig()), margin=math.inf)
CANARY = np.uint64(0xC0FFEE_C0FFEE)
BEHIND = 4096


def test_every_class_can_be_touched_at_once_however_the_arrays_grew():
    index = Index(IndexParams.of(ModelConfig()))
    for n_classes in range(1, 2000):
        # 20 classes a feature: all of them vote, so that an instance with all features touches every class.
        ids, values = np.array([(n_classes - 1) // 20], np.int32), np.ones(1, np.float32)
        index.learn(ids, values, np.array([n_classes - 1], np.int32))
        assert len(index.arrays.touched) > len(index.arrays.scores), n_classes
    everything = np.arange(100, dtype=np.int32)
    ranking = index.rank(everything, np.full(100, 0.1, np.float32), 5000)
    assert sorted(ranking.class_ids.tolist()) == list(range(1999))


def learn_in_just_enough(index: Index, skew: int, ids: np.ndarray, values: np.ndarray, class_ids: np.ndarray) -> None:
    """Learn an instance in a copy that has the units which it may take and not one more, and no free block."""
    index.make_room_for(ids, class_ids)
    params = index.kernel_params
    m = np.uint64(learning.new_classes(params, np.uint64(len(class_ids))))
    needed = int(learning.units_needed(index.arrays, params, ids, m))
    if params.most_cells:
        needed = max(needed, int(learning.room_for_form(index.arrays, params, ids, class_ids, m)[1]))
    arrays = IndexArrays(*map(np.copy, index.arrays))
    used = int(arrays.counters[layout.USED])
    memory = np.full(skew + used + needed + BEHIND, CANARY)
    memory = memory[skew:]
    memory[:used] = arrays.arena[:used]
    arrays = arrays._replace(arena=memory[: used + needed])
    arrays.counters[layout.SKEW] = memory.ctypes.data % 64 // 8
    arrays.counters[layout.FREE :] = layout.NONE
    arrays.counters[layout.FREE_UNITS] = 0
    assert learning.has_room(arrays, params, ids, class_ids)
    ranks = np.zeros(len(class_ids), np.int32)
    learning.learn_feedback(
        arrays, params, ids, values.copy(), class_ids, Feedback(len(class_ids), 0, 1.0), True, ranks
    )
    assert int(arrays.counters[layout.USED]) <= used + needed
    assert (memory[used + needed :] == CANARY).all()


@pytest.mark.parametrize("skew", range(8))
def test_a_block_may_become_wide_in_its_own_size_and_then_shrink(skew):
    """Of 17 connections 12 are left in a block for 24; two labels then widen it into 24 units and leave two of them."""
    index, feature, unit = Index(replace(EAGER, w_min=0.05)), np.zeros(1, np.int32), np.float32(2**-20)
    for class_id, value in [*((c, 0.8) for c in range(5)), *((c, 1.0) for c in range(5, 17)), (16, 1.0)]:
        index.learn(feature, np.array([value], np.float32) * unit, np.array([class_id], np.int32))
    assert index.to_arrays()["lengths"].tolist() == [12]
    # 2^14 + 1 + 2^-19 has too many bits for a narrow record.
    learn_in_just_enough(index, skew, feature, np.array([16385], np.float32), np.array([16, 100], np.int32))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    skew=st.integers(0, 7),
    n_features=st.sampled_from([1, 4, 40]),
    most_labels=st.sampled_from([1, 3, 12, 60]),
    w_min=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    memory=st.sampled_from([None, 7.0]),
    leak=st.booleans(),
    spread=st.sampled_from([0.0, 1.0, 6.0]),
)
def test_fsu_takes_no_more_than_was_asked_for(seed, skew, n_features, most_labels, w_min, memory, leak, spread):
    index, rng = Index(replace(EAGER, w_min=w_min, memory=memory, leak=leak)), np.random.default_rng(seed)
    for _ in range(40):
        ids = rng.choice(n_features, rng.integers(1, min(n_features, 8) + 1), replace=False).astype(np.int32)
        values = np.exp(rng.normal(0, spread, len(ids))).astype(np.float32)
        class_ids = rng.choice(100, rng.integers(1, most_labels + 1), replace=False).astype(np.int32)
        learn_in_just_enough(index, skew, ids, values, class_ids)
        index.learn(ids, values, class_ids)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    skew=st.integers(0, 7),
    most_labels=st.sampled_from([1, 3, 6]),
    slots=st.sampled_from([1, 5, 64]),
    shared=st.sampled_from([0, 500, 2**17]),
    most_cells=st.sampled_from([0, 400, 2**19]),
)
def test_sls_takes_no_more_than_was_asked_for(seed, skew, most_labels, slots, shared, most_cells):
    """In lists, and where rows become lists."""
    index = Index(IndexParams.of(ModelConfig(update="sls", slots=slots, rows=most_cells > 0)))
    index.kernel_params = index.kernel_params._replace(shared=np.uint64(shared), most_cells=np.uint64(most_cells))
    rng = np.random.default_rng(seed)
    for count in range(40):
        few = most_labels if count < 20 else 1
        ids = rng.choice(10 + count, rng.integers(1, 9), replace=False).astype(np.int32)
        values = (rng.random(len(ids)) + 0.05).astype(np.float32)
        class_ids = rng.choice(6 + count, rng.integers(1, few + 1), replace=False).astype(np.int32)
        copy = Index.from_arrays(index.params, index.to_arrays())  # its rows are its own
        copy.kernel_params = index.kernel_params
        learn_in_just_enough(copy, skew, ids, values, class_ids)
        index.learn(ids, values, class_ids)


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_a_loaded_index_takes_no_more_than_was_asked_for(update):
    """Neither do lists of which some are wide, because their counts have many bits."""
    rng = np.random.default_rng(7)
    memory = 2.0 if update == "fsu" else None
    index = Index(IndexParams.of(ModelConfig(update=update, d_max=100, w_min=0.0, margin=0.9, memory=memory)))
    for _ in range(2_000):
        ids = np.minimum(rng.geometric(0.02, 12), 400).astype(np.int32)
        ids = np.unique(ids)
        index.learn(ids, rng.random(len(ids)).astype(np.float32) + 0.1, rng.integers(0, 90, 1).astype(np.int32))
    arrays = index.to_arrays()
    counts = arrays.get("counts", np.zeros(0))
    units = int(export.units_to_import(arrays["lengths"], arrays["class_ids"], counts))
    loaded = Index.from_arrays(index.params, arrays)
    assert 0.5 * units < int(loaded.arrays.counters[layout.USED]) <= units
    assert loaded.digest() == index.digest()


def test_the_arena_never_grows_past_what_positions_can_name(monkeypatch):
    monkeypatch.setattr(index_module, "MAX_UNITS", 4096)
    index, value = Index(EAGER), np.ones(1, np.float32)

    def learn_ever_more() -> None:
        for number in range(100_000):
            index.learn(np.array([number % 600], np.int32), value, np.array([number % 97], np.int32))
            assert len(index.arrays.arena) <= 4096

    with pytest.raises(MemoryError, match="32 GiB"):
        learn_ever_more()
    assert len(index.arrays.arena) > 3600
