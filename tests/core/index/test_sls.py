"""``update: sls`` in lists against the plain oracle, and what must hold of its state."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from abound_core.config import ModelConfig
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.numba.exp_log import logarithm
from abound_core.numba.intrinsics import GATHERED
from tests.core.oracles.sls import Oracle
from tests.randomness import examples


def params(**more):
    return IndexParams.of(ModelConfig(update="sls", rows=False, **more))


compiled_ln = njit(lambda x: logarithm(x))


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_the_logarithm_is_within_two_units_in_the_last_place(number):
    exact = math.log(number)
    assert abs(compiled_ln(number) - exact) <= 2 * math.ulp(max(abs(exact), 0.3))


def stream(seed, n, n_features=60, n_classes=20, labels=1, active=8):
    """Instances whose classes lean on features, so that there are errors, corrections and full postings."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        true = rng.choice(n_classes, size=rng.integers(1, labels + 1), replace=False)
        own = (true[0] * 7 + rng.integers(0, 5, size=active // 2)) % n_features
        ids = rng.permutation(np.unique(np.concatenate([own, rng.integers(0, n_features, size=active // 2)])))
        values = (rng.random(len(ids)) + 0.05).astype(np.float32)
        yield ids.astype(np.int32), values, true.astype(np.int32)


def same(index, oracle):
    for own, expected in postings_of(index, oracle):
        assert list(own.items()) == list(expected.items())


def postings_of(index, oracle):
    arrays = index.to_arrays()
    assert arrays["counted"].tolist() == [oracle.n]
    at = 0
    for feature, length in enumerate(arrays["lengths"].tolist()):
        assert arrays["totals"][feature] == oracle.seen.get(feature, 0)
        weights, steps, class_ids = (
            arrays[name][at : at + length].tolist() for name in ("weights", "steps", "class_ids")
        )
        numbers = [(weight, count / 4096) for weight, count in zip(weights, steps, strict=True)]
        yield dict(zip(class_ids, numbers, strict=True)), oracle.postings.get(feature, {})
        at += length


@pytest.mark.parametrize(
    ("seed", "labels", "config"),
    [(1, 1, {}), (2, 4, {}), (3, 1, {"slots": 3}), (4, 3, {"slots": 5, "eta": 1.0}), (5, 2, {"idf": False})],
)
def test_it_equals_the_oracle_at_every_step(seed, labels, config):
    index, oracle = Index(params(**config)), Oracle(**config, shared=0)
    index.kernel_params = index.kernel_params._replace(shared=np.uint64(0))
    for count, (ids, values, true) in enumerate(stream(seed, 400, labels=labels)):
        instance = dict(zip(ids.tolist(), values.tolist(), strict=True))
        given = values.copy()
        ranking, expected = index.rank(ids, values, 50), oracle.rank(instance)
        assert ranking.class_ids.tolist() == [class_id for class_id, _ in expected]
        assert np.allclose(ranking.scores, [score for _, score in expected], rtol=0, atol=2e-5)
        counted = count % 5 != 4
        rank, _ = index.learn(ids, values, true, count_seen=counted)
        ranks = [place for place in oracle.learn(instance, true.tolist(), counted) if place]
        assert rank == min(ranks, default=0)
        assert np.array_equal(values, given)
    same(index, oracle)
    if "slots" in config:
        assert index.to_arrays()["lengths"].max() == config["slots"]


def test_an_instance_with_more_connections_than_are_gathered_at_once():
    index, oracle = Index(params()), Oracle(shared=0)
    index.kernel_params = index.kernel_params._replace(shared=np.uint64(0))
    for ids, values, true in stream(6, 150, active=100):
        instance = dict(zip(ids.tolist(), values.tolist(), strict=True))
        ranking, expected = index.rank(ids, values, 50), oracle.rank(instance)
        assert ranking.class_ids.tolist() == [class_id for class_id, _ in expected]
        index.learn(ids, values, true)
        oracle.learn(instance, true.tolist())
    same(index, oracle)
    assert index.to_arrays()["lengths"].sum() > GATHERED


def fed_back(seed, events, n_classes, implicit):
    """The stream with rejected and ignored classes and weights: class ids (true ones first) and feedback."""
    rng = np.random.default_rng(seed)
    for ids, values, true in events:
        kept = true[rng.random(len(true)) < 0.7]
        others = np.setdiff1d(np.append(rng.integers(0, n_classes, rng.integers(0, 6)), true), kept)
        wrong = rng.permutation(others).astype(np.int32)
        n_rejected = int(rng.integers(0, len(wrong) + 1))
        weight = float(np.float32(rng.choice([0.01, 0.3, 1.0, 1.0, 2.0, 7.5, 100.0])))
        class_ids = np.append(kept, wrong if implicit else wrong[:n_rejected])
        yield ids, values, class_ids, Feedback(len(kept), n_rejected, weight, rng.random() < 0.3)


def oracle_learns(oracle, ids, values, class_ids, feedback, implicit, counted=True):
    n_true, n_rejected, weight, partial = feedback
    strengths = {c: 1.0 if j < n_rejected else implicit for j, c in enumerate(class_ids[n_true:].tolist())}
    instance = dict(zip(ids.tolist(), values.tolist(), strict=True))
    ranks = oracle.learn(instance, class_ids[:n_true].tolist(), counted, strengths, weight, partial)
    return min((place for place in ranks if place), default=0)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(2, 8),
    st.sampled_from([0, 60, 2**17]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.6, 2.0]),
)
def test_it_equals_the_oracle_with_any_feedback(seed, labels, slots, shared, implicit, eta):
    index, oracle = sharing(shared, slots, implicit=implicit, eta=eta)
    for number, event in enumerate(fed_back(seed, stream(seed, 80, 12, 9, labels, 4), 9, implicit)):
        ids, values, class_ids, feedback = event
        counted = number % 7 != 3 or any(not oracle.seen.get(i) for i in ids.tolist())
        rank, _ = index.learn(ids, values, class_ids, count_seen=counted, feedback=feedback)
        assert rank == oracle_learns(oracle, *event, implicit, counted)
        assert not index.arrays.scores.any()
    same(index, oracle)


def sharing(shared, slots, implicit=0.0, eta=0.6):
    index, oracle = Index(params(slots=slots, implicit=implicit, eta=eta)), Oracle(slots=slots, shared=shared, eta=eta)
    index.kernel_params = index.kernel_params._replace(shared=np.uint64(shared))
    return index, oracle


@pytest.mark.parametrize("weight", [1.0, 100.0])
@pytest.mark.parametrize("n_features", [10, 30, 200])
@pytest.mark.parametrize("eta", [2.0, 4.0, 5.0, 10.0])
def test_steps_that_are_too_long_overflow_nothing(eta, n_features, weight):
    """One text that has two labels in turn, by steps so long that each goes further past the last."""
    index, oracle = Index(params(eta=eta)), Oracle(eta=eta)
    ids, values = np.arange(n_features, dtype=np.int32), np.full(n_features, n_features**-0.5, np.float32)
    for count in range(3000):
        index.learn(ids, values, np.array([count % 2], np.int32), feedback=Feedback(1, 0, weight))
        if count < 4:
            oracle.learn(dict(zip(ids.tolist(), values.tolist(), strict=True)), [count % 2], weight=weight)
            same(index, oracle)
    assert np.isfinite(index.to_arrays()["weights"]).all()
    assert np.isfinite(index.rank(ids, values, 2).scores).all()
    assert Index.from_arrays(index.params, index.to_arrays()).digest() == index.digest()
