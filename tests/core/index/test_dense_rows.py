"""``update: sls`` with ``rows``: against the plain oracle, in either form and from one to the other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.errors import Conflict, Corrupted, InvalidInstance
from abound_core.index.dense_rows import ARRAYS
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.instances.record import pack_labels
from abound_core.model.label_features import weights_to
from abound_core.model.live_model import INTERCEPT, LiveModel
from tests.core.index.test_sls import applied, fed_back, oracle_learns, postings_of, records, stream
from tests.core.oracles.sls_rows import RowsOracle
from tests.randomness import examples

EMPTY = np.zeros(0, np.int32)


def params(**more):
    return IndexParams.of(ModelConfig(update="sls", **more))


def pair(most_cells=2**19, shared=2**17, **more):
    """An index and an oracle with these bounds."""
    index, oracle = Index(params(**more)), RowsOracle(most_cells, shared=shared, **more)
    index.kernel_params = index.kernel_params._replace(most_cells=np.uint64(most_cells), shared=np.uint64(shared))
    return index, oracle


def dense(events):
    """The same stream with classes numbered as they come, as a model's labels are."""
    known: dict[int, int] = {}
    for ids, values, true in events:
        yield ids, values, np.array([known.setdefault(c, len(known)) for c in true.tolist()], np.int32)


def both_learn(index, oracle, ids, values, class_ids, counted=True, feedback=None):
    """Let both learn an instance; they must be in the same form and give the same rank."""
    feedback = feedback or Feedback(len(class_ids), 0, 1.0)
    rank, _ = index.learn(ids, values, class_ids, count_seen=counted, feedback=feedback)
    expected = oracle_learns(oracle, ids, values, class_ids, feedback, index.params.implicit, counted)
    assert index.in_rows == oracle.in_rows
    assert rank == expected


def same_rows(index, oracle):
    """The rows, or else the connections, are the oracle's up to rounding."""
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


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_it_equals_the_oracle_on_any_stream(data):
    """Few labels and many by turns, growth, features that are forgotten, and passes that are not counted."""
    most_cells = data.draw(st.sampled_from([2**19, 150, 300]))
    index, oracle = pair(most_cells, data.draw(st.sampled_from([0, 60, 2**17])), slots=data.draw(st.integers(1, 8)))
    for turn in range(4):
        seed, labels = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from([1, 7]))
        shape = {"n_features": 10 + 10 * turn, "n_classes": 8 + 4 * turn, "active": 4}
        for ids, values, true in stream(seed, data.draw(st.integers(1, 40)), labels=labels, **shape):
            again = data.draw(st.integers(0, 9)) == 0 and all(oracle.seen.get(i) for i in ids.tolist())
            both_learn(index, oracle, ids, values, np.sort(true), counted=not again)
            if data.draw(st.integers(0, 9)) == 0:
                index.forget_feature(int(ids[0]))
                oracle.forget(int(ids[0]))
        copy = Index.from_arrays(index.params, index.to_arrays())
        assert copy.digest() == index.digest()
    if oracle.in_rows:
        same_rows(index, oracle)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 8]), st.sampled_from([2**19, 300]), st.sampled_from([0.0, 0.4])
)
def test_it_equals_the_oracle_with_any_feedback(seed, labels, most_cells, implicit):
    index, oracle = pair(most_cells)
    index.params = replace(index.params, implicit=implicit)
    index.kernel_params = index.kernel_params._replace(most_cells=np.uint64(most_cells))
    events = list(dense(stream(seed, 60, 30, 12, labels, 4)))
    for event in events:
        both_learn(index, oracle, *event)
    for ids, values, class_ids, feedback in fed_back(seed, events, index.n_classes, implicit):
        both_learn(index, oracle, ids, values, class_ids, True, feedback)
        assert not index.arrays.scores.any()
    same_rows(index, oracle)


@pytest.mark.parametrize("labels", [1, 5])
def test_feedback_without_true_labels_does_not_change_the_form(labels):
    index, oracle = pair()
    forms = []
    for ids, values, true in dense(stream(3, 200, labels=labels)):
        both_learn(index, oracle, ids, values, true)
        for _ in range(5):
            both_learn(index, oracle, ids, values, true, True, Feedback(0, len(true), 1.0))
        forms.append(index.in_rows)
    assert forms[-1] == (labels == 5)
    assert not any(forms) or forms == sorted(forms)


def test_the_form_goes_by_the_labels_and_back():
    index, oracle = pair()
    forms = []
    for labels, n in ((6, 40), (1, 100), (9, 200)):
        for event in dense(stream(7, n, labels=labels)):
            both_learn(index, oracle, *event)
        forms.append(index.in_rows)
    same_rows(index, oracle)
    assert forms == [True, False, True]


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
    assert index._rows.n_bytes == 0
    for event in dense(stream(9, 300, labels=6)):
        both_learn(index, oracle, *event)
    assert not index.in_rows


def grown(n=300, labels=6, seed=10, **more):
    index = Index(params(**more))
    for event in dense(stream(seed, n, labels=labels)):
        index.learn(*event)
    return index


def test_an_index_of_few_features_and_very_many_classes_has_lists():
    index = Index(params())
    for n in range(0, 4098, 2):
        assert index.in_rows == (n // 2 >= 8)
        index.learn(np.array([n % 3], np.int32), np.ones(1, np.float32), np.array([n, n + 1], np.int32))
    assert not index.in_rows
    assert (index.n_features, index.n_classes) == (3, 4098)


def test_rows_are_left_without_more_room_than_lists_take():
    """By an instance with thousands of new features."""
    sizes = []
    for more in ({}, {"rows": False}):
        index = Index(params(**more))
        for ids, values, true in stream(1, 600, labels=5):
            index.learn(ids, values, true)
        before = index.n_bytes
        assert index.in_rows == (not more)
        ids = np.arange(60, 30_060, dtype=np.int32)
        index.learn(ids, np.ones(len(ids), np.float32), np.arange(5, dtype=np.int32))
        assert not index.in_rows
        sizes.append(index.n_bytes - before)
    assert sizes[0] < 1.2 * sizes[1]


def test_contributions_and_the_intercept_sum_to_the_score():
    index = grown()
    assert index.in_rows
    for ids, values, _ in stream(11, 20):
        ranking = index.rank(ids, values, 50)
        assert len(ranking.class_ids) == index.n_classes
        for class_id, score in zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True):
            assert index.intercept(class_id) != 0
            assert abs(index.explain(ids, values, class_id).sum() + index.intercept(class_id) - score) < 1e-9
    assert index.intercept(-1) == index.intercept(index.n_classes) == 0.0
    assert not index.explain(ids, values, index.n_classes).any()


def test_features_point_to_a_class_by_their_weights():
    index = grown()
    weights = index.to_arrays()["row_weights"].reshape(index.n_features, index.n_classes)
    assert np.allclose(weights_to(index, 3, 0, index.n_features), weights[:, 3], rtol=1e-6, atol=1e-9)


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


def test_what_was_forgotten_is_as_if_it_had_never_been():
    index = grown()
    before = index.digest()
    index.forget_feature(3)
    assert index.digest() != before
    assert not index.to_arrays()["row_weights"].reshape(index.n_features, -1)[3].any()
    assert index.to_arrays()["row_steps"][3] == 0
    assert not weights_to(index, 0, 3, 4).any()


def test_connections_in_rows_are_features_times_classes():
    index = grown()
    assert index.n_connections == index.n_features * index.n_classes
    assert index.n_bytes_used > 4 * index.n_connections
    assert index.n_bytes > index.n_bytes_used
    assert index.growth_bytes > index.n_bytes // 8


@pytest.mark.parametrize("n", [5, 60, 200])
@pytest.mark.parametrize("most_cells", [2**19, 900])
def test_an_index_that_was_written_and_read_goes_on_as_if_nothing_had_been(n, most_cells):
    index, _ = pair(most_cells)
    events = list(dense(stream(13, 400, labels=6)))
    for event in events[:n]:
        index.learn(*event)
    again = Index.from_arrays(index.params, index.to_arrays())
    again.kernel_params = index.kernel_params
    assert again.digest() == index.digest()
    for event in events[n:]:
        assert again.learn(*event) == index.learn(*event)
    assert again.digest() == index.digest()
    ids, values, _ = events[0]
    assert again.rank(ids, values, 20).scores.tolist() == index.rank(ids, values, 20).scores.tolist()


def test_the_digest_is_over_all_that_is_in_rows():
    index = grown()
    arrays = index.to_arrays()
    for name in ARRAYS:
        for at in (0, -1):
            if (name, at) == ("form", 0):
                continue
            changed = arrays[name].copy()
            changed[at] += 1
            if (name, at) != ("form", 1):
                assert Index.from_arrays(index.params, arrays | {name: changed}).digest() != index.digest()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("form", lambda a: a * 0),
        ("form", lambda a: a + np.array([1, 0, 0, 0])),
        ("form", lambda a: a + np.array([0, 1, 0, 0])),
        ("form", lambda a: a - np.array([0, 0, 10**9, 0])),
        ("form", lambda a: a[:3]),
        ("form", lambda a: a.astype(np.float64)),
        ("row_weights", lambda a: a * np.float32(np.nan)),
        ("row_weights", lambda a: a[:-1]),
        ("row_weights", lambda a: a.astype(np.float64)),
        ("row_steps", lambda a: a - 1e9),
        ("row_steps", lambda a: np.append(a, 0.0)),
        ("intercepts", lambda a: a + np.inf),
        ("intercepts", lambda a: a[1:]),
        ("class_times", lambda a: -a),
        ("class_times", lambda a: a.reshape(-1, 1)),
    ],
)
def test_arrays_that_are_no_index_are_refused(name, change):
    index = grown()
    arrays = index.to_arrays()
    with pytest.raises(Corrupted), np.errstate(all="ignore"):
        Index.from_arrays(index.params, arrays | {name: change(arrays[name])})
    with pytest.raises(Corrupted):
        Index.from_arrays(index.params, {key: array for key, array in arrays.items() if key != name})


def test_an_index_in_rows_has_no_connections_and_lists_know_their_classes():
    lists, in_rows = grown(6), grown()
    assert not lists.in_rows
    mixed = lists.to_arrays() | {name: in_rows.to_arrays()[name] for name in ARRAYS}
    with pytest.raises(Corrupted):
        Index.from_arrays(lists.params, mixed)
    few = lists.to_arrays()
    few["form"] = few["form"] - np.array([0, 1, 0, 0])
    with pytest.raises(Corrupted):
        Index.from_arrays(lists.params, few)


def test_steps_that_are_too_long_overflow_nothing():
    index = Index(params(eta=10.0))
    for event in dense(stream(14, 3000, labels=12)):
        index.learn(*event)
    assert index.in_rows
    assert Index.from_arrays(index.params, index.to_arrays()).digest() == index.digest()


@pytest.mark.parametrize("update", ["sls", "fsu"])
def test_without_rows_an_index_learns_the_same_bits_in_every_release(update):
    index = Index(IndexParams.of(ModelConfig(update=update, rows=False)))
    for labels, seed in ((3, 21), (1, 22)):
        for count, (ids, values, true) in enumerate(stream(seed, 300, labels=labels)):
            index.learn(ids, values, true, count_seen=count % 7 != 6)
            if count % 50 == 49:
                index.forget_feature(int(ids[0]))
    expected = {"sls": "b61d2fee50d8c3c6a6cd26f0f806212d", "fsu": "50abff65f0dd926822b9777de19ee719"}
    assert index.digest().hex() == expected[update]
    assert not set(index.to_arrays()) & set(ARRAYS)


# --- the configuration


def test_rows_are_for_new_models_with_sls():
    assert ModelConfig.from_dict({"update": "sls"}).rows
    assert not ModelConfig.from_dict({"update": "sls", "rows": False}).rows
    assert not ModelConfig.from_dict({}).rows
    with pytest.raises(InvalidInstance):
        ModelConfig(update="sls", rows=1)


def test_a_model_that_becomes_sls_has_rows_unless_the_change_says_otherwise():
    plain, own = ModelConfig(), ModelConfig(update="sls", rows=False)
    assert plain.with_changes({"update": "sls"}).rows
    assert not plain.with_changes({"update": "sls", "rows": False}).rows
    assert not plain.with_changes({"margin": 1.0}).rows
    assert not own.with_changes({"update": "sls"}).rows
    assert own.with_changes({"update": "fsu"}).with_changes({"update": "sls"}).rows
    with pytest.raises(InvalidInstance, match="rows is for update sls"):
        plain.with_user_changes({"rows": True})


@pytest.mark.parametrize("config", [ModelConfig(), ModelConfig(update="sls", rows=False), ModelConfig(update="sls")])
def test_a_configuration_is_stored_whole(config):
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_a_change_of_the_update_that_comes_too_late_changes_no_other_field():
    model = LiveModel(ModelConfig(update="sls", rows=False), (1, 2))
    applied(model, records(model, 15, 3))
    model.configure({"update": "fsu"})
    assert model.config == ModelConfig(update="sls", rows=False)


def test_rows_are_fixed_once_something_was_learned():
    model = LiveModel(ModelConfig(update="sls"), (1, 2))
    assert not model.check_change({"rows": False}).rows
    applied(model, records(model, 15, 3))
    with pytest.raises(Conflict):
        model.check_change({"rows": False})
    model.configure({"rows": False})
    assert model.config.rows


# --- models


def many(model, seed, n):
    """Records with three to seven labels each."""
    rng, made = np.random.default_rng(seed), []
    for ids, values, true in stream(seed, n, labels=1):
        features = ", ".join(f'"f{i}": {v:.4f}' for i, v in zip(ids.tolist(), values.tolist(), strict=True))
        labels = {f"c{(c + 3 * j) % 25}" for c in true.tolist() for j in range(rng.integers(3, 8))}
        vector = model.vectorizer.vectorize(f"{{{features}}}".encode(), None)
        made.append(vector + pack_labels(sorted(labels), model.limits))
    return made


@pytest.mark.parametrize("more", [{}, {"max_features": 40}, {"calibrate": True}])
def test_a_model_survives_a_snapshot(more):
    model = LiveModel(ModelConfig(update="sls", **more), (1, 2))
    made = many(model, 16, 300)
    applied(model, made[:150])
    assert model.index.in_rows
    again = LiveModel.from_arrays(model.meta(), model.to_arrays(), (3, 4))
    for one in (model, again):
        applied(one, made[150:])
    assert again.digest() == model.digest()
    vector = model.vectorizer.vectorize(b'{"f1": 1, "f2": 0.5}', None)
    assert model.rank(vector, 5).scores.tolist() == again.rank(vector, 5).scores.tolist()
    assert model.sizes()["connections"] == model.index.n_features * len(model.labels)


def test_a_state_with_more_classes_than_labels_is_damaged():
    model = LiveModel(ModelConfig(update="sls"), (1, 2))
    applied(model, many(model, 17, 6))
    arrays = model.to_arrays()
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(
            model.meta(), arrays | {"index/form": arrays["index/form"] + np.array([0, 1, 0, 0])}, (1, 2)
        )


def test_reasons_have_the_intercept_and_sum_to_the_score():
    model = LiveModel(ModelConfig(update="sls"), (1, 2))
    applied(model, many(model, 18, 100))
    vector = model.vectorizer.vectorize(b'{"f1": 1, "f2": 0.5, "never": 1}', None)
    ranking = model.rank(vector, 100, exclude=["c1"])
    assert len(ranking.class_ids) == len(model.labels) - 1
    for score, because in zip(ranking.scores.tolist(), model.explain(vector, ranking), strict=True):
        assert INTERCEPT in dict(because)
        assert abs(sum(contribution for _, contribution in because) - score) < 1e-9
        assert [c for _, c in because] == sorted((c for _, c in because), reverse=True)
    high = ranking.scores[3]
    assert len(model.rank(vector, 100, exclude=["c1"], threshold=high).scores) == 4


def test_a_later_pass_learns_in_the_same_form():
    model = LiveModel(ModelConfig(update="sls"), (1, 2))
    applied(model, many(model, 19, 31))
    before = model.digest()
    ids, values = np.arange(3, dtype=np.int32), np.ones(3, np.float32)
    for _ in range(40):  # before the 32nd instance a form is due; these do not count
        model.learn_again(ids, values, np.zeros(1, np.int32))
    assert model.index.in_rows
    assert model.digest() != before


def test_a_class_of_one_example_does_not_come_before_one_of_all():
    """Where an instance says nothing of the new one."""
    model = LiveModel(ModelConfig(update="sls"), (1, 2))
    for n in range(9):
        vector = model.vectorizer.vectorize(None, f"wheat prices w{n}")
        applied(model, [vector + pack_labels(["grain", f"l{n}"], model.limits)])
    assert model.index.in_rows
    best = model.rank(model.vectorizer.vectorize(None, "wheat"), 1)
    assert model.label(int(best.class_ids[0])) == "grain"


def test_a_new_class_is_ranked_first_after_one_example():
    model = LiveModel(ModelConfig(update="sls"), (1, 2))
    applied(model, many(model, 20, 300))
    assert model.index.in_rows
    vector = model.vectorizer.vectorize(b'{"never": 1, "seen": 1}', None)
    applied(model, [vector + pack_labels(["brand new"], model.limits)])
    assert model.label(int(model.rank(vector, 1).class_ids[0])) == "brand new"
