"""``update: sls`` in lists against the plain oracle, and what must hold of its state."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, InvalidInstance
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.instances.record import pack_labels
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
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
    """The index has the oracle's connections, the same numbers in the same order."""
    for own, expected in postings_of(index, oracle):
        assert list(own.items()) == list(expected.items())


def postings_of(index, oracle):
    """Yield the postings of all features of both: class ids with weights and step sums."""
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
    [
        (1, 1, {}),
        (2, 4, {}),
        (3, 1, {"slots": 3}),
        (4, 3, {"slots": 5, "eta": 1.0}),
        (5, 2, {"idf": False}),
    ],
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
        yield ids, values, class_ids, Feedback(len(kept), n_rejected, weight)


def oracle_learns(oracle, ids, values, class_ids, feedback, implicit, counted=True):
    """Let an oracle learn an instance with feedback; return the best rank."""
    n_true, n_rejected, weight = feedback
    strengths = {c: 1.0 if j < n_rejected else implicit for j, c in enumerate(class_ids[n_true:].tolist())}
    instance = dict(zip(ids.tolist(), values.tolist(), strict=True))
    ranks = oracle.learn(instance, class_ids[:n_true].tolist(), counted, strengths, weight)
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


@pytest.mark.parametrize("rows", [False, True])
def test_a_rejected_class_falls_and_no_other_changes(rows):
    index = Index(IndexParams.of(ModelConfig(update="sls", rows=rows)))
    events = list(stream(21, 300, labels=5 if rows else 1))
    for ids, values, true in events:
        index.learn(ids, values, np.sort(true))
    assert index.in_rows == rows
    fell = 0
    for ids, values, _ in events[:50]:
        before = index.rank(ids, values, 20)
        first = int(before.class_ids[0])
        index.learn(ids, values, before.class_ids[:1].copy(), count_seen=False, feedback=Feedback(0, 1, 1.0))
        after = index.rank(ids, values, 20)
        old, new = (dict(zip(r.class_ids.tolist(), r.scores.tolist(), strict=True)) for r in (before, after))
        assert all(abs(new[c] - old[c]) < 1e-9 for c in old if c != first)
        assert new[first] < old[first]
        fell += after.class_ids[0] != first
    assert fell > 5


def score_after(index, events, weight, times):
    """The score of the last instance's first true class, learned so many times with this weight."""
    for ids, values, true in events[:-1]:
        index.learn(ids, values, true)
    ids, values, true = events[-1]
    for i in range(times):
        index.learn(ids, values, true, count_seen=i == 0, feedback=Feedback(len(true), 0, weight))
    ranking = index.rank(ids, values, 30)
    return float(ranking.scores[ranking.class_ids == true[0]][0])


@pytest.mark.parametrize("rows", [False, True])
def test_a_weight_of_two_is_close_to_learning_twice_and_none_passes_the_target(rows):
    ratios = []
    for seed in range(20):
        events = list(stream(seed, 200, labels=5 if rows else 1))
        often = [(1.0, 0), (0.5, 1), (1.0, 1), (2.0, 1), (100.0, 1), (1.0, 2)]
        before, half, once, double, most, twice = (
            score_after(Index(IndexParams.of(ModelConfig(update="sls", rows=rows))), events, *how) for how in often
        )
        if before < 0.8:
            assert before < half < once < double < most < 1.1
            ratios.append((double - once) / (twice - once))
    assert len(ratios) >= 3
    assert 0.6 < np.median(ratios) < 1.4


def test_contributions_sum_to_the_score_negative_ones_too():
    index = Index(params())
    for ids, values, true in stream(7, 300):
        index.learn(ids, values, true)
    negative = 0
    for ids, values, _ in stream(8, 20):
        ranking = index.rank(ids, values, 20)
        for class_id, score in zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True):
            contributions = index.explain(ids, values, class_id)
            assert abs(contributions.sum() - score) < 1e-9
            negative += int((contributions < 0).sum())
    assert negative > 0


def test_an_index_that_was_written_and_read_goes_on_as_if_nothing_had_been():
    index = Index(params(slots=6))
    events = list(stream(9, 600, labels=3))
    for ids, values, true in events[:300]:
        index.learn(ids, values, true)
    again = Index.from_arrays(params(slots=6), index.to_arrays())
    assert again.digest() == index.digest()
    for ids, values, true in events[300:]:
        assert again.learn(ids, values, true) == index.learn(ids, values, true)
    assert again.digest() == index.digest()
    index.learn(*events[0])
    assert again.digest() != index.digest()


def test_the_digest_knows_how_many_instances_were_counted():
    ids, values, true = np.array([0], np.int32), np.ones(1, np.float32), np.array([0], np.int32)
    index = Index(params())
    index.learn(ids, values, true)
    arrays = index.to_arrays()
    more = Index.from_arrays(params(), arrays | {"counted": arrays["counted"] + 1})
    assert more.digest() != index.digest()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("counted", lambda a: -a),
        ("counted", lambda a: np.repeat(a, 2)),
        ("totals", lambda a: a + 1e9),
        ("totals", lambda a: a * np.nan),
        ("weights", lambda a: a * np.float32(np.inf)),
        ("weights", lambda a: np.nextafter(a, np.float32(9))),
        ("class_ids", lambda a: a * 0),
        ("class_ids", lambda a: a + 2**31),
        ("lengths", lambda a: a + 1),
        ("steps", lambda a: a[:-1]),
        ("steps", lambda a: a.astype(np.int64)),
    ],
)
def test_arrays_that_are_no_index_are_refused(name, change):
    index = Index(params())
    for ids, values, true in stream(10, 50, labels=3):
        index.learn(ids, values, true)
    arrays = index.to_arrays()
    with pytest.raises(Corrupted), np.errstate(all="ignore"):
        Index.from_arrays(params(), arrays | {name: change(arrays[name])})


def records(model, seed, n):
    made = []
    for ids, values, true in stream(seed, n, labels=3):
        features = ", ".join(f'"f{i}": {v:.4f}' for i, v in zip(ids.tolist(), values.tolist(), strict=True))
        vector = model.vectorizer.vectorize(f"{{{features}}}".encode(), None)
        made.append(vector + pack_labels([f"c{c}" for c in true.tolist()], model.limits))
    return made


def applied(model, made):
    for record in made:
        applying = model.begin(record, 1, [Unit(1)])
        while not applying.done:
            applying.step(32)


@pytest.mark.parametrize("more", [{}, {"max_features": 40}])
def test_a_model_survives_a_snapshot(more):
    config = ModelConfig(update="sls", rows=False, slots=8, numbers="raw", **more)
    model = LiveModel(config, (1, 2))
    made = records(model, 11, 400)
    applied(model, made[:200])
    again = LiveModel.from_arrays(model.meta(), model.to_arrays(), (3, 4))
    assert again.digest() == model.digest()
    for one in (model, again):
        applied(one, made[200:])
    assert again.digest() == model.digest()
    assert model.n_learned == 400
    vector = model.vectorizer.vectorize(b'{"f1": 1, "f2": 0.5}', None)
    assert model.rank(vector, 5).scores.tolist() == again.rank(vector, 5).scores.tolist()
    assert len(model.features) <= more.get("max_features", 60)


def sharing(shared, slots, implicit=0.0, eta=0.6):
    """An index and an oracle whose features share so many connections."""
    index, oracle = Index(params(slots=slots, implicit=implicit, eta=eta)), Oracle(slots=slots, shared=shared, eta=eta)
    index.kernel_params = index.kernel_params._replace(shared=np.uint64(shared))
    return index, oracle


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6), st.sampled_from([0, 24, 60, 2**17]))
def test_it_equals_the_oracle_on_any_stream(seed, labels, slots, shared):
    index, oracle = sharing(shared, slots)
    for ids, values, true in stream(seed, 60, n_features=12, n_classes=8, labels=labels, active=4):
        index.learn(ids, values, true)
        oracle.learn(dict(zip(ids.tolist(), values.tolist(), strict=True)), true.tolist())
    same(index, oracle)


def test_what_few_features_may_have_goes_down_to_slots_as_more_come():
    index = Index(params(slots=2))
    one, value = np.array([0], np.int32), np.ones(1, np.float32)
    for class_id in range(1200):
        index.learn(one, value, np.array([class_id], np.int32))
    assert index.to_arrays()["lengths"].tolist() == [1024]
    index.learn(np.array([2**16], np.int32), value, np.array([0], np.int32))
    other = np.array([1], np.int32)
    for class_id in range(5):
        index.learn(other, value, np.array([class_id], np.int32))
    assert index.to_arrays()["lengths"][:2].tolist() == [1024, 2]


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


def test_a_weak_connection_is_not_made():
    index, ids = Index(params(idf=False)), np.array([0, 1], np.int32)
    index.learn(ids, np.array([0.9999, 0.0141], np.float32), np.array([0], np.int32))
    assert index.to_arrays()["lengths"].tolist() == [1, 0]


def test_a_new_class_is_ranked_first_after_one_example():
    model = LiveModel(ModelConfig(update="sls", rows=False), (1, 2))
    applied(model, records(model, 12, 300))
    vector = model.vectorizer.vectorize(b'{"never": 1, "seen": 1}', None)
    applied(model, [vector + pack_labels(["brand new"], model.limits)])
    assert model.label(int(model.rank(vector, 1).class_ids[0])) == "brand new"


@pytest.mark.parametrize("wrong", [{"memory": 5.0}, {"eta": 0}, {"slots": 0}, {"slots": 2000}, {"idf": 1}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidInstance) as refused:
        ModelConfig(update="sls", **wrong)
    assert refused.value.field == next(iter(wrong))
