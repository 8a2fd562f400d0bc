"""``update: sls`` with ``rows``: against the plain oracle, in either form and from one to the other."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from tests.core.index.test_sls import fed_back, oracle_learns, postings_of, stream
from tests.core.model.forging import records
from tests.core.oracles.sls_rows import RowsOracle
from tests.randomness import examples

EMPTY = np.zeros(0, np.int32)


def params(**more):
    return IndexParams.of(ModelConfig(update="sls", **more))


def pair(most_cells=2**19, shared=2**17, **more):
    index, oracle = Index(params(**more)), RowsOracle(most_cells, shared=shared, **more)
    index.kernel_params = index.kernel_params._replace(most_cells=np.uint64(most_cells), shared=np.uint64(shared))
    return index, oracle


def dense(events):
    """The same stream with classes numbered as they come, as a model's labels are."""
    known: dict[int, int] = {}
    for ids, values, true in events:
        yield ids, values, np.array([known.setdefault(c, len(known)) for c in true.tolist()], np.int32)


def both_learn(index, oracle, ids, values, class_ids, counted=True, feedback=None):
    feedback = feedback or Feedback(len(class_ids), 0, 1.0)
    rank, _ = index.learn(ids, values, class_ids, count_seen=counted, feedback=feedback)
    expected = oracle_learns(oracle, ids, values, class_ids, feedback, index.params.implicit, counted)
    assert index.in_rows == oracle.in_rows
    assert rank == expected


def same_rows(index, oracle):
    if not oracle.in_rows:
        same_up_to_rounding(index, oracle)
        return
    arrays, n_features, n_classes = index.to_arrays(), oracle.n_features, oracle.n_classes
    assert arrays["form"].tolist() == [1, n_classes, oracle.n_labels, oracle.n_in_rows]
    assert not arrays["lengths"].any()
    assert arrays["totals"].tolist() == [oracle.seen.get(feature, 0) for feature in range(n_features)]
    weights = arrays["row_weights"].reshape(n_features, n_classes)
    assert np.allclose(weights, oracle.weights[:n_features, :n_classes], rtol=0, atol=2e-5)
    assert np.allclose(arrays["row_steps"], oracle.grown[:n_features], rtol=0, atol=1e-3)
    assert np.allclose(arrays["intercepts"], oracle.intercepts[:n_classes], rtol=0, atol=1e-5)
    assert arrays["class_times"].tolist() == oracle.times[:n_classes].tolist()


def same_up_to_rounding(index, oracle):
    """The connections are the oracle's. Those that came from rows are rounded and ordered by numbers that differ."""
    for own, expected in postings_of(index, oracle):
        assert own.keys() == expected.keys()
        assert np.allclose([own[c] for c in expected] or 0, list(expected.values()) or 0, rtol=2**-15, atol=1e-5)


@pytest.mark.parametrize(
    ("seed", "labels", "config"),
    [
        (1, 5, {}),
        (2, 8, {"eta": 0.3}),
        (3, 4, {"idf": False}),
        (4, 1, {}),
        (5, 6, {"most_cells": 1150, "slots": 5, "shared": 0}),
    ],
)
def test_it_equals_the_oracle_at_every_step(seed, labels, config):
    index, oracle = pair(**config)
    forms = set()
    for count, (ids, values, true) in enumerate(dense(stream(seed, 300, labels=labels))):
        ranking = index.rank(ids, values, 50)
        expected = oracle.rank(dict(zip(ids.tolist(), values.tolist(), strict=True)))
        assert ranking.class_ids.tolist() == [class_id for class_id, _ in expected]
        assert np.allclose(ranking.scores, [score for _, score in expected], rtol=0, atol=5e-5)
        both_learn(index, oracle, ids, values, true, counted=count % 5 != 4)
        forms.add(index.in_rows)
    same_rows(index, oracle)
    assert forms == ({False} if labels == 1 else {False, True})
    assert index.in_rows == (labels > 1 and "most_cells" not in config)


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_it_equals_the_oracle_on_any_stream(data):
    """Few labels and many by turns, any feedback, growth, forgotten features, and passes that are not counted."""
    most_cells, implicit = data.draw(st.sampled_from([2**19, 150, 300])), data.draw(st.sampled_from([0.0, 0.4]))
    slots, shared = data.draw(st.integers(1, 8)), data.draw(st.sampled_from([0, 60, 2**17]))
    index, oracle = pair(most_cells, shared, slots=slots)
    bounds, index.params = index.kernel_params, replace(index.params, implicit=implicit)
    index.kernel_params = index.kernel_params._replace(most_cells=bounds.most_cells, shared=bounds.shared)
    for turn in range(4):
        seed, labels = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from([1, 4, 8]))
        shape = {"n_features": 10 + 10 * turn, "n_classes": 8 + 4 * turn, "active": 4}
        events = [
            (*one, np.sort(true), None)
            for *one, true in stream(seed, data.draw(st.integers(1, 40)), labels=labels, **shape)
        ]
        if turn and data.draw(st.booleans()):
            events = fed_back(seed, [event[:3] for event in events], index.n_classes, implicit)
        for ids, values, class_ids, feedback in events:
            again = data.draw(st.integers(0, 9)) == 0 and all(oracle.seen.get(i) for i in ids.tolist())
            both_learn(index, oracle, ids, values, class_ids, not again, feedback)
            assert not index.arrays.scores.any()
            if data.draw(st.integers(0, 9)) == 0:
                index.forget_feature(int(ids[0]))
                oracle.forget(int(ids[0]))
        copy = Index.from_arrays(index.params, index.to_arrays())
        assert copy.digest() == index.digest()
    if oracle.in_rows:
        same_rows(index, oracle)


def test_an_index_that_has_outgrown_rows_stays_in_lists_and_gives_their_memory_back():
    index, oracle = pair(2000)
    for ids, values, true in dense(stream(8, 100, n_features=60, n_classes=20, labels=6)):
        both_learn(index, oracle, ids, values, true)
    assert index.in_rows
    held = index.n_bytes
    last = np.array([20, 21, 22, 45], np.int32)
    both_learn(index, oracle, ids, values, last)
    assert not index.in_rows
    same_rows(index, oracle)
    assert all(list(own) == list(expected) for own, expected in postings_of(index, oracle))
    index.make_room_for(ids, last)
    assert index.n_bytes < held + 8 * 64 * 60
    for event in dense(stream(9, 300, labels=6)):
        both_learn(index, oracle, *event)
    assert not index.in_rows


def grown(n=300, labels=6, seed=10, **more):
    index = Index(params(**more))
    for event in dense(stream(seed, n, labels=labels)):
        index.learn(*event)
    return index


def test_a_ranking_knows_k_and_the_mask_and_skips_unknown_features():
    index = grown()
    ids, values, _ = next(stream(12, 1))
    whole = index.rank(ids, values, 100)
    for k in (0, 1, 5, 70):
        assert index.rank(ids, values, k).class_ids.tolist() == whole.class_ids[:k].tolist()
    mask = np.zeros(index.n_classes, np.uint8)
    mask[[2, 5, 7]] = 1
    assert index.rank(ids, values, 100, mask).class_ids.tolist() == [c for c in whole.class_ids if mask[c]]
    nothing = index.rank(EMPTY, np.zeros(0, np.float32), 100)
    assert nothing.scores.tolist() == sorted((index.intercept(c) for c in range(index.n_classes)), reverse=True)
    more = np.append(ids, [-1, 10_000]).astype(np.int32)
    assert index.rank(more, np.append(values, [0, 0]).astype(np.float32), 5).scores.tolist() == [
        *whole.scores[:5].tolist()
    ]
    assert index.reader().rank(ids, values, 5).scores.tolist() == whole.scores[:5].tolist()


def test_a_later_pass_learns_in_the_same_form():
    model = LiveModel(ModelConfig(update="sls"), (1, 2))
    made = records(random.Random(19), "rows", 31)
    model.begin(b"".join(made), 31, [Unit(31)]).finish()
    before = model.digest()
    ids, values = np.arange(3, dtype=np.int32), np.ones(3, np.float32)
    for _ in range(40):  # before the 32nd instance a form is due; these do not count
        model.learn_again(ids, values, np.zeros(1, np.int32))
    assert model.index.in_rows
    assert model.digest() != before
