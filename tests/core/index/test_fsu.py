"""The index against an oracle of dictionaries and plain floats: the same connections, weights, ranks and rankings.

The weights may differ by 1e-5 by contract. In fact kernels and oracle do the same operations on float64 in the same
order, and so the tests ask for the same bits.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from abound_core.index import learning_kernels as learning
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.numba.intrinsics import GATHERED
from tests.core.oracles.index import Oracle, Posting
from tests.randomness import examples


class Instance(NamedTuple):
    ids: np.ndarray
    values: np.ndarray
    class_ids: np.ndarray
    count_seen: bool
    feedback: Feedback | None = None

    def known(self) -> Feedback:
        return self.feedback or Feedback(len(self.class_ids), 0, 1.0)

    def strengths(self, implicit: float) -> dict[int, float]:
        n_true, n_rejected, *_ = self.known()
        return {c: 1.0 if j < n_rejected else implicit for j, c in enumerate(self.class_ids[n_true:].tolist())}


def connections(index: Index) -> dict[int, dict[int, float]]:
    arrays = index.to_arrays()
    ends = np.cumsum(arrays["lengths"])
    return {
        feature: dict(zip(arrays["class_ids"][own].tolist(), arrays["counts"][own].tolist(), strict=True))
        for feature, own in enumerate(map(slice, ends - arrays["lengths"], ends))
        if own.stop > own.start
    }


def ranks_of_learning(index: Index, instance: Instance) -> tuple[list[int], bool]:
    ids, values, class_ids, count_seen, _ = instance
    if not learning.has_room(index.arrays, index.kernel_params, ids, class_ids):
        index.make_room_for(ids, class_ids)
        assert learning.has_room(index.arrays, index.kernel_params, ids, class_ids)
    feedback, values = instance.known(), values.copy()
    ranks = np.full(feedback.n_true, -1, np.int32)
    arrays, params = index.arrays, index.kernel_params
    updated = learning.learn_feedback(arrays, params, ids, values, class_ids, feedback, count_seen, ranks)
    return ranks.tolist(), updated


def compare(params: IndexParams, instances: list[Instance], every: int = 20) -> Index:
    index, oracle = Index(params), Oracle(params)
    for number, instance in enumerate(instances):
        ids, values = instance.ids.tolist(), instance.values.tolist()
        if number % every == 0:
            ranking, expected = index.rank(instance.ids, instance.values, 100), oracle.ranking(ids, values)[:100]
            assert list(zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)) == expected
            assert connections(index) == oracle.connections()
        n_true, _, weight, _ = instance.known()
        true, strengths = instance.class_ids[:n_true].tolist(), instance.strengths(params.implicit)
        outcome = oracle.learn(ids, values, true, instance.count_seen, strengths, weight)
        assert ranks_of_learning(index, instance) == outcome, number
        assert not index.arrays.scores.any()
    assert connections(index) == oracle.connections()
    arrays = index.to_arrays()
    postings = [oracle.postings.get(feature, Posting()) for feature in range(index.n_features)]
    assert arrays["totals"].tolist() == [posting.total for posting in postings]
    assert arrays["seen"].tolist() == [min(511, posting.seen) for posting in postings]
    return index


def drawn_values(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    if kind == "boolean":
        return np.ones(n, np.float32)
    if kind == "equal":
        return np.full(n, n**-0.5, np.float32)
    if kind == "normalised":
        values = rng.random(n) + 1e-3
        return (values / np.linalg.norm(values)).astype(np.float32)
    return np.clip(np.exp(rng.normal(0, 20, n)), 1e-45, 3e38).astype(np.float32)


def drawn_stream(seed: int, shape: tuple[int, int, int], kind: str, n: int) -> Iterator[Instance]:
    n_features, n_classes, n_labels = shape
    rng = np.random.default_rng(seed)
    for _ in range(n):
        length = int(rng.integers(1, min(n_features, 30) + 1))
        ids = rng.choice(n_features, length, replace=False).astype(np.int32)
        m = int(rng.integers(1, min(n_labels, n_classes) + 1))
        # Classes of unequal frequency, so that some stay and many come and go.
        class_ids = np.unique((n_classes * rng.random(m) ** 3).astype(np.int32))
        rng.shuffle(class_ids)
        yield Instance(ids, drawn_values(rng, kind, length), class_ids, bool(rng.random() < 0.8))


PARAMS = st.builds(
    IndexParams,
    w_min=st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.7, 1.0]),
    d_max=st.sampled_from([1, 3, 25, 1000]),
    margin=st.sampled_from([0.0, 0.1, 0.5, 3.0, 7.0]),
    leak=st.booleans(),
    rating=st.booleans(),
    memory=st.sampled_from([None, None, 5.0, 50.0]),
)


def with_feedback(instance: Instance, rng: np.random.Generator, n_classes: int, implicit: float) -> Instance:
    true = instance.class_ids[rng.random(len(instance.class_ids)) < 0.6]
    wrong = np.setdiff1d(np.append(rng.integers(0, n_classes, rng.integers(0, 5)), instance.class_ids), true)
    wrong = rng.permutation(wrong).astype(np.int32)
    n_rejected = int(rng.integers(0, len(wrong) + 1))
    class_ids = np.append(true, wrong if implicit else wrong[:n_rejected])
    weight = float(np.float32(rng.choice([0.01, 0.3, 1.0, 1.0, 2.0, 100.0])))
    return instance._replace(
        class_ids=class_ids, feedback=Feedback(len(true), n_rejected, weight, bool(rng.integers(2)))
    )


@settings(max_examples=examples(250), deadline=None)
@given(
    params=PARAMS,
    implicit=st.sampled_from([None, None, 0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.sampled_from([1, 3, 20, 200]), st.sampled_from([1, 2, 10, 300]), st.sampled_from([1, 2, 6])),
    kind=st.sampled_from(["boolean", "equal", "normalised", "wide"]),
)
@example(
    params=IndexParams(w_min=0.0, d_max=25, margin=7.0, leak=False, rating=True, memory=50.0),
    implicit=None,
    seed=1,
    shape=(3, 300, 6),
    kind="wide",
)
def test_random_streams(params, implicit, seed, shape, kind):
    """``implicit`` None: without feedback."""
    rng, stream = np.random.default_rng(seed), list(drawn_stream(seed, shape, kind, 150))
    if implicit is not None:
        params = replace(params, implicit=implicit)
        stream = [with_feedback(instance, rng, shape[1], implicit) for instance in stream]
    compare(params, stream)


@pytest.mark.parametrize("kind", ["boolean", "equal", "normalised", "wide"])
@pytest.mark.parametrize("memory", [None, 30.0])
def test_long_histories_of_few_features(kind, memory):
    params = IndexParams(w_min=0.01, d_max=25, margin=1e9, leak=True, rating=True, memory=memory)
    index = compare(params, list(drawn_stream(5, (6, 300, 2), kind, 1500)), every=500)
    assert 0 < index.to_arrays()["lengths"].max() <= 100


@pytest.mark.parametrize("memory", [None, 30.0])
def test_an_instance_with_more_votes_than_are_gathered_at_once(memory):
    params = IndexParams(w_min=0.0, d_max=1000, margin=1e9, leak=True, rating=True, memory=memory)
    index = compare(params, list(drawn_stream(8, (30, 300, 4), "normalised", 200)))
    assert index.to_arrays()["lengths"].sum() > 2 * GATHERED


def test_options_may_change_on_the_way():
    """What is below a higher ``w_min`` goes with the next update of its feature, not before."""
    params = IndexParams(w_min=0.0, d_max=25, margin=1e9, leak=True, rating=False, memory=None)
    index, oracle = Index(params), Oracle(params)
    stream = list(drawn_stream(9, (20, 300, 1), "normalised", 400))
    for w_min, d_max in ((0.0, 25), (0.2, 3), (0.001, 1000), (0.05, 1)):
        index.params = oracle.params = IndexParams(
            w_min=w_min, d_max=d_max, margin=0.3, leak=True, rating=True, memory=None
        )
        assert connections(index) == oracle.connections()
        for instance in stream:
            outcome = oracle.learn(instance.ids.tolist(), instance.values.tolist(), instance.class_ids.tolist())
            assert ranks_of_learning(index, instance._replace(count_seen=True)) == outcome
    assert connections(index) == oracle.connections()
