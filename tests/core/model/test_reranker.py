"""The re-ranker against a plain oracle, bit for bit; when it starts; what it changes in answers."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from abound_core.config import ModelConfig
from abound_core.instances.record import add_dense, add_details, pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import RERANKED, LiveModel
from abound_core.model.refit import Refitter
from abound_core.model.reranker import Reranker
from abound_core.model.reranker_kernels import MOST_COUNTED, add_vector
from abound_core.types import START
from tests.core.model.test_calibration import counted
from tests.core.oracles.calibration import Oracle as CalibrationOracle
from tests.core.oracles.reranker import Oracle, Ranked
from tests.randomness import examples

D = 8

Instance = tuple[list[str], list[int] | None, list[str]]
"""Words, numbers of the vector (None: no vector), labels."""


def stream(n: int, seed: int, n_classes: int = 6, n_labels: int = 1, p_vector: float = 0.9) -> list[Instance]:
    rng = random.Random(seed)
    centres = [[rng.gauss(0, 40) for _ in range(D)] for _ in range(n_classes)]
    made: list[Instance] = []
    for _ in range(n):
        kinds = rng.sample(range(n_classes), rng.randint(1, n_labels))
        words = {f"k{kind}w{rng.randrange(9)}" for kind in kinds} | {f"n{rng.randrange(9)}"}
        q = [round(sum(centres[kind][i] for kind in kinds) / len(kinds) + rng.gauss(0, 30)) for i in range(D)]
        q = [max(-127, min(127, number)) for number in q]
        has_vector = rng.random() < p_vector and any(q)
        made.append((sorted(words), q if has_vector else None, [f"c{kind}" for kind in kinds]))
    return made


def vector_of(words: list[str], q: list[int] | None) -> bytes:
    plain = pack_vector([word.encode() for word in words], np.full(len(words), 0.5, np.float32))
    return plain if q is None else add_dense(plain, np.array(q, np.int8).tobytes(), 0.25)


def learn(model: LiveModel, instances: list[Instance], slices: int = 1000, **feedback: Any) -> list[int]:
    records = b"".join(
        vector_of(words, q) + pack_labels(labels, Limits(), **feedback) for words, q, labels in instances
    )
    applying = model.begin(records, len(instances), [Unit(len(instances))])
    while not applying.done:
        applying.step(slices)
    return applying.ranks.tolist()


def model_of(instances: list[Instance], slices: int = 1000, secret: tuple[int, int] = (3, 4), **more: Any) -> LiveModel:
    model = LiveModel(ModelConfig.from_dict({"update": "sls", "rerank": True, **more}), secret)
    learn(model, instances, slices)
    return model


def by_index(model: LiveModel, vector: bytes, allowed: set[int] | None = None) -> Ranked:
    ids, values = model.active(vector)
    ranking = model.index.rank(ids, values, len(model.labels) + 1)
    pairs = zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)
    return [pair for pair in pairs if allowed is None or pair[0] in allowed]


def followed(model: LiveModel, instances: list[Instance], oracle: Oracle) -> None:
    """Learn instances one by one, and show each to the oracle before."""
    for words, q, labels in instances:
        ranks: dict[int, int] = {}
        if q is not None and model.dimension in (0, len(q)):
            known = [class_id for label in labels if (class_id := model.labels.find(label.encode())) >= 0]
            ranked = by_index(model, vector_of(words, q)) if model.dimension else []
            n = len(model.labels)
            if model.dimension == 0:  # the codes of the first vector are features that no class has
                ranked = by_index(model, vector_of(words, None))
            ranks = oracle.learn(q, ranked, n, known) if known else oracle.learn(q, ranked, n, [-1])
        [told] = learn(model, [(words, q, labels)])
        if ranks and len(ranks) == len(known):  # labels that are no candidates keep their rank in the index
            assert told == min(ranks.values())
        if q is not None and model.dimension == len(q):
            for label in labels:
                oracle.add(q, model.labels.find(label.encode()))


def check(model: LiveModel, oracle: Oracle) -> None:
    state = model.reranker.arrays
    assert state.weights.tolist() == oracle.weights
    assert state.curvature.tolist() == oracle.curvature
    assert state.guard[:2].tolist() == [oracle.gain, oracle.allowance]
    counts = {i: n for i, n in enumerate(state.counts.tolist()) if n}
    assert counts == oracle.counts
    assert {i: state.sums[state.rows[i]].tolist() for i in counts} == oracle.sums
    assert {i: state.means[state.rows[i]].tolist() for i in counts} == {i: oracle.mean(i) for i in counts}
    figures = model.reranker.figures()
    assert figures["n"] == len(oracle.told)
    if oracle.told:
        for at, side in enumerate(("index", "answers")):
            ranks = [pair[at] for pair in oracle.told]
            assert figures[side]["R@1"] == ranks.count(1) / len(ranks)
            assert figures[side]["MRR"] == pytest.approx(sum(1 / rank for rank in ranks if rank) / len(ranks))


@pytest.mark.parametrize(
    ("seed", "n_classes", "n_labels", "more"),
    [(1, 6, 1, {}), (2, 6, 3, {}), (3, 90, 2, {}), (4, 8, 1, {"max_features": 20}), (5, 90, 1, {"rows": False})],
)
def test_learns_and_answers_as_the_oracle_does_bit_for_bit(seed, n_classes, n_labels, more):
    model, oracle = model_of([], calibrate=False, **more), Oracle()
    instances = stream(300, seed, n_classes, n_labels)
    followed(model, instances[:260], oracle)
    check(model, oracle)
    assert len(oracle.told) > 150
    names = [model.label(i) for i in range(len(model.labels))]
    for words, q, _ in instances[260:]:
        vector = vector_of(words, q)
        if q is None:
            assert model.rank(vector, 5).probabilities is None
            continue
        everyone = by_index(model, vector)
        for asked in ({}, {"include": names[::2]}, {"exclude": names[:3]}):
            allowed = set(range(len(names)))
            allowed &= {names.index(name) for name in asked.get("include", names)}
            allowed -= {names.index(name) for name in asked.get("exclude", [])}
            expected = oracle.answer(
                q, by_index(model, vector, allowed), allowed if asked else None, everyone, len(names)
            )
            for k in (1, 10, 1000):
                ranking = model.rank(vector, k, **asked)
                assert list(zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)) == expected[:k]
                assert ranking.probabilities.tolist() == ranking.scores.tolist()
        shares = [share for _, share in oracle.answer(q, everyone, None, everyone, len(names))[:10]]
        assert len(model.rank(vector, 10, threshold=0.01).scores) == sum(share >= 0.01 for share in shares)


def test_the_guard_lets_the_index_answer():
    model = model_of(stream(200, 6))
    vector = vector_of(*stream(1, 7, p_vector=1.0)[0][:2])
    assert model.reranker.is_used
    assert any(key == RERANKED for key, _ in model.explain(vector, model.rank(vector, 3))[0])
    model.reranker.arrays.guard[0] = -1e6
    assert not model.reranker.is_used
    ranking = model.rank(vector, 6)
    assert list(zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)) == by_index(model, vector)[:6]
    assert 0 < ranking.probabilities.sum() <= 1.0000001
    assert not any(key == RERANKED for key, _ in model.explain(vector, model.rank(vector, 3))[0])


def test_it_begins_when_it_is_turned_on_and_ends_when_it_is_turned_off():
    model, oracle = model_of(stream(100, 12), rerank=False), Oracle()
    model.configure({"rerank": True})
    followed(model, stream(100, 13), oracle)
    check(model, oracle)
    never = model_of(stream(100, 12), rerank=False)
    learn(never, stream(100, 13))
    model.configure({"rerank": False})
    assert model.index.digest() == never.index.digest()
    assert "class_means" not in model.sizes()["memory"]


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([0.02, 0.1, 0.9]),
    st.sampled_from([None, 15]),
    st.integers(1, 119),
)
def test_by_default_it_starts_at_the_first_vector(seed, slices, calibrate, p_vector, most, cut):
    """Wherever slices and snapshots begin and end: as if it had been turned on before."""
    instances = stream(120, seed, 70, 3, p_vector)
    more = {"calibrate": calibrate, "max_features": most}
    expected = model_of(instances, **more)
    model = model_of(instances, slices, **more, rerank=None)
    first = next((i for i, (_, q, _) in enumerate(instances) if q is not None), 120)
    assert model.reranker.on == (first < 120)
    loaded = model_of(instances[:cut], 7, **more, rerank=None)
    assert loaded.reranker.on == (cut > first)
    loaded = LiveModel.from_arrays(loaded.meta(), loaded.to_arrays(), (5, 6))
    learn(loaded, instances[cut:], slices)
    assert loaded.digest() == model.digest()
    if first < 120:
        assert_equal(model, expected)
    plain = model_of(instances[:first], **more, rerank=False)
    assert model_of(instances[:first], **more, rerank=None).digest() == plain.digest()


def assert_equal(model: LiveModel, other: LiveModel) -> None:
    own, theirs = model.to_arrays(), other.to_arrays()
    assert set(own) == set(theirs)
    for name, array in own.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert model.digest() != other.digest()
    model.configure({"rerank": other.config.rerank})
    assert model.digest() == other.digest()


NAMED = add_details(vector_of([], [1] * D) + pack_labels(["c1"], Limits()), b"{}")


def test_the_first_vector_may_be_of_a_registration():
    """The vector of a name, made by an encoder, starts it as well."""
    models = []
    for rerank, calibrate in ((True, False), (None, False), (True, True), (None, True)):
        model = model_of(stream(5, 1, p_vector=0), rerank=rerank, calibrate=calibrate)
        model.begin(NAMED, 1, [Unit(1)]).finish()
        assert model.reranker.on
        assert model.reranker.arrays.counts[model.labels.find(b"c1")] == 1
        learn(model, stream(30, 2))
        models.append(model)
    assert_equal(models[1], models[0])
    assert_equal(models[3], models[2])


def test_it_calibrates_by_the_answer_of_a_vector_and_by_the_index_without_one():
    model, oracle = model_of([]), CalibrationOracle()
    for words, q, labels in stream(300, 19, n_labels=2, p_vector=0.6):
        vector = vector_of(words, q)
        asked = counted(model, vector) if q is None or model.dimension == 0 else model
        ranking = asked.rank(vector, 1000)
        learn(model, [(words, q, labels)])
        best = list(zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True))
        oracle.learn(best, {model.labels.find(label.encode()) for label in labels})
    assert model.calibration.arrays.weights.tolist() == oracle.weights
    assert model.reranker.figures()["n"] > 100


def test_rejections_some_labels_and_other_dimensions_teach_it_nothing_and_a_weight_counts_once():
    model, heavy = model_of(stream(100, 18)), model_of(stream(100, 18))
    before = model.reranker.digest_bytes()
    for one in (model, heavy):
        learn(one, [(["k0w0"], [1] * D, [])], rejected=["c1"])
        learn(one, [(["k0w0"], [1] * (D + 1), ["c0"])])
    assert model.reranker.digest_bytes() == before
    weights, guard = model.reranker.arrays.weights.copy(), model.reranker.arrays.guard.copy()
    for one in (model, heavy):  # a vector of some of the labels is one of theirs, and says nothing of the order
        assert learn(one, [(["k0w0"], [1] * D, ["c0"])], partial=True)[0] > 0
    assert (model.reranker.arrays.weights == weights).all()
    assert (model.reranker.arrays.guard == guard).all()
    assert model.reranker.digest_bytes() != before
    assert model.rank(vector_of(["k0w0"], [1] * (D + 1)), 3).probabilities is None
    for one, weight in ((model, 1.0), (heavy, 5.0)):
        learn(one, stream(1, 19, p_vector=1.0), weight=weight)
    assert heavy.reranker.digest_bytes() == model.reranker.digest_bytes() != before


def test_a_refit_learns_it_in_the_first_pass():
    instances = stream(100, 21)
    records = b"".join(vector_of(words, q) + pack_labels(labels, Limits()) for words, q, labels in instances)
    refitter = Refitter(model_of([]))
    for _ in range(2):
        refitter.learn(records, [Unit(100)], START)
        refitter.next_pass()
    assert refitter.live.reranker.digest_bytes() == model_of(instances).reranker.digest_bytes()


def test_full_counts_are_halved():
    reranker, oracle = Reranker(True), Oracle()
    reranker.make_room(3, 1, 1, D)
    reranker.arrays.rows[1], reranker.arrays.used[0] = 1, 2
    q = [127, -3, 0, 5, -128, 60, 1, 1]
    oracle.counts[1], oracle.sums[1] = MOST_COUNTED - 2, [2**29, -(2**29), 1, -1, 0, 7, 8, 9]
    reranker.arrays.counts[1], reranker.arrays.sums[1] = oracle.counts[1], oracle.sums[1]
    record = np.frombuffer(vector_of([], q), np.uint8)
    for _ in range(3):
        oracle.add(q, 1)
        add_one(reranker.arrays, record, 4, 1)
    assert reranker.arrays.counts[1] == oracle.counts[1] == MOST_COUNTED // 2 + 1
    assert reranker.arrays.sums[1].tolist() == oracle.sums[1]
    assert reranker.arrays.means[1].tolist() == oracle.mean(1)


@njit
def add_one(arrays: Any, record: Any, dense_at: int, class_id: int) -> None:
    add_vector(arrays, record, dense_at, class_id)


def test_the_first_vector_takes_memory_for_its_own_classes_only():
    model = model_of([(["w"], None, [f"c{i}"]) for i in range(3000)])
    before = model.n_bytes
    learn(model, [(["w"], [1] * 2048, ["c5", "c2999"])])
    assert model.dimension == 2048
    assert model.n_bytes - before < 2**20
    assert model.to_arrays()["reranker/sums"].shape == (2, 2048)
    loaded = LiveModel.from_arrays(model.meta(), model.to_arrays(), (7, 8))
    learn(model, [(["w"], [2] * 2048, ["c7"])])
    learn(loaded, [(["w"], [2] * 2048, ["c7"])])
    assert loaded.digest() == model.digest()
