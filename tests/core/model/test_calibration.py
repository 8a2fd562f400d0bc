"""Calibration against a plain oracle, bit for bit; what it learns from; its reliability."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from abound_core.config import ModelConfig
from abound_core.instances.record import add_details, pack_change, pack_labels
from abound_core.limits import Limits
from abound_core.model import reranker_kernels as reranker
from abound_core.model.calibration import Calibration, binned, reliability_of
from abound_core.model.calibration_kernels import (
    MOST_SOLVED,
    MOST_SUSPECTS,
    N_TERMS,
    estimate,
    learn_pairs,
    note_suspect,
    solve,
)
from abound_core.model.entry_application import Unit
from abound_core.model.label_changes import ChangeRequest, LabelChange, encode
from abound_core.model.live_model import LiveModel
from abound_core.numba.exp_log import exponential
from abound_core.numba.intrinsics import pointer
from abound_core.numba.top_k import Best
from abound_core.types import Offset, Ranking
from tests.core.model.test_live_model import Instance, learn, learned, vector_of
from tests.core.oracles import calibration as calibration_oracle
from tests.core.oracles.calibration import Oracle
from tests.randomness import examples


def stream(n: int, seed: int, n_labels: int = 1) -> list[Instance]:
    rng = random.Random(seed)
    made = []
    for _ in range(n):
        kinds = rng.sample(range(6), rng.randint(1, n_labels))
        words = {f"k{kind}w{rng.randrange(5)}" for kind in kinds for _ in range(2)}
        words |= {f"k{rng.randrange(6)}w{rng.randrange(5)}" for _ in range(2)} | {f"n{rng.randrange(9)}"}
        made.append((sorted(words), [f"c{kind}" for kind in kinds]))
    return made


def ranked(model: LiveModel, keys: list[str]) -> list[tuple[int, float]]:
    ranking = model.rank(vector_of(keys), 1000)
    return list(zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True))


def counted(model: LiveModel, vector: bytes) -> LiveModel:
    """Return a copy of the model that has only counted the features of an instance: what learning it begins with.

    For at most ``max_features`` features: learning leaves others out, and ranking weighs them as unknown ones.
    """
    copy = LiveModel.from_arrays(model.meta(), model.to_arrays(), (3, 4))
    copy.begin(vector + pack_labels([], Limits(), [], ["unknown"]), 1, [Unit(1)]).finish()
    return copy


def followed(model: LiveModel, instances: list[Instance], oracle: Oracle) -> None:
    for keys, labels in instances:
        best = ranked(counted(model, vector_of(keys)), keys)
        learn(model, [(keys, labels)])
        oracle.learn(best, {model.labels.find(label.encode()) for label in labels})


compiled_exp = njit(lambda x: exponential(x))


@njit
def solved(curvature: np.ndarray, gradient: np.ndarray, step: np.ndarray, ridge: float) -> None:
    solve(pointer(curvature), pointer(gradient), pointer(step), len(gradient), ridge)


def test_the_exponential_is_one():
    for x in [*np.random.default_rng(1).uniform(-40, 40, 20_000), 0.0, -0.0, 1.0, 700.0, -700.0, 1e-300]:
        assert abs(compiled_exp(x) / math.exp(x) - 1) < 5e-16
        assert compiled_exp(x) == calibration_oracle.exponential(x)


def test_the_step_solves_the_equations():
    assert max(N_TERMS, reranker.N_TERMS) <= MOST_SOLVED
    rng = np.random.default_rng(2)
    for _ in range(200):
        n = int(rng.integers(1, MOST_SOLVED + 1))
        rows = rng.normal(size=(rng.integers(1, 20), n)) * rng.uniform(0.1, 30)
        curvature, gradient, step = np.eye(n) + rows.T @ rows, rng.normal(size=n), np.empty(n)
        solved(np.tril(curvature), gradient, step, 1.0)
        np.testing.assert_allclose(step, np.linalg.solve(curvature, gradient), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("update", "n_labels", "most"), [("fsu", 3, 20), ("sls", 1, 20), ("sls", 5, None)])
def test_learns_as_the_oracle_does_bit_for_bit(update, n_labels, most):
    """What is learned is what an instance's ranking is worth when it is learned, after its features were counted."""
    model, oracle = learned([], update=update, max_features=most), Oracle()
    followed(model, stream(240, n_labels, n_labels), oracle)
    state = model.calibration.arrays
    assert state.weights.tolist() == oracle.weights
    assert state.curvature.tolist() == oracle.curvature
    assert state.bins[0, :, 0].sum() == len(oracle.stretches[0]) > 180
    assert model.index.in_rows or update == "fsu" or n_labels < 5


def test_probabilities_are_the_oracles_whatever_is_asked_for():
    model, oracle = learned([], update="sls"), Oracle()
    followed(model, stream(300, 4, 2), oracle)
    for keys, _ in stream(40, 5, 2):
        vector, best = vector_of(keys), ranked(model, keys)
        expected = {class_id: oracle.answer(best, place) for place, (class_id, _) in enumerate(best)}
        names = [model.label(class_id) for class_id, _ in best]
        for asked in ({}, {"k": 1}, {"include": names[1:]}, {"exclude": names[:2]}, {"threshold": best[1][1]}):
            given = {"k": 20} | asked
            plain, ranking = model.rank(vector, **given), model.rank_estimated(vector, **given)
            assert ranking.class_ids.tolist() == plain.class_ids.tolist()
            assert ranking.scores.tolist() == plain.scores.tolist()
            assert ranking.probabilities.tolist() == [expected[class_id] for class_id in plain.class_ids.tolist()]
            assert len(plain.class_ids) > 0
        least = sorted(expected.values())[-2]
        kept = model.rank_estimated(vector, 20, min_probability=least)
        assert kept.class_ids.tolist() == [class_id for class_id, _ in best if expected[class_id] >= least]
        assert len(kept.class_ids) == 2


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), min_size=10, max_size=10),
    st.lists(st.floats(-5, 5), min_size=6, max_size=6),
    st.floats(0, 1),
)
def test_a_probability_never_falls_where_score_and_lead_rise_together(tenths, weights, second):
    calibration = Calibration(True)
    calibration.arrays.weights[:] = weights
    for tenth, (n, share) in enumerate(tenths):
        calibration.arrays.bins[2, tenth, :3] = n, share * n, n * (tenth + 0.5) / 10
    scores = np.linspace(second, 1, 60)
    found = [
        calibration.probabilities(Ranking(np.arange(2, dtype=np.int32), np.array([score, second])))[0]
        for score in scores.tolist()
    ]
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(found))
    assert 0 <= min(found) <= max(found) <= 1


def test_with_few_events_nothing_is_sure():
    """After twenty events no probability exceeds what so few right answers are worth; after many it is what it was."""
    few, many = Calibration(True), Calibration(True)
    sure = Ranking(np.arange(2, dtype=np.int32), np.array([1.0, 0.0]))
    true, known = np.arange(5) == 0, np.ones(5, np.bool_)
    for calibration, n in ((few, 20), (many, 4000)):
        for _ in range(n):
            learn_pairs(calibration.arrays, np.array([1.0, 0.0, 0.0, 0.0, 0.0]), true, known)
    assert few.probabilities(sure)[0] < 0.9
    assert many.probabilities(sure)[0] > 0.98


def test_nothing_is_estimated_of_nothing():
    model = LiveModel(ModelConfig(), (1, 2))
    assert len(model.rank_estimated(vector_of(["a"]), 5).class_ids) == 0
    reliability = model.calibration.reliability()
    assert (reliability["all"]["n"], reliability["all"]["error"], reliability["newest"]["brier"]) == (0, None, None)


def test_reliability_counts_each_estimate_before_its_outcome():
    model, oracle = learned([], update="sls"), Oracle()
    followed(model, stream(600, 7, 2), oracle)
    pairs = [pair for stretch in oracle.stretches for pair in stretch]
    told = model.calibration.reliability()
    assert told["newest"] == told["all"]
    error = squares = 0.0
    for tenth, found in enumerate(told["all"]["bins"]):
        own = [pair for pair in pairs if min(int(pair[0] * 10), 9) == tenth]
        assert found["n"] == len(own)
        if own:
            assert found["estimate"] == pytest.approx(sum(estimate for estimate, _ in own) / len(own))
            assert found["true"] == pytest.approx(sum(true for _, true in own) / len(own))
            error += abs(found["estimate"] - found["true"]) * len(own) / len(pairs)
    squares = sum((estimate - true) ** 2 for estimate, true in pairs) / len(pairs)
    assert told["all"]["n"] == len(pairs)
    assert told["all"]["error"] == pytest.approx(error)
    assert told["all"]["brier"] == pytest.approx(squares)
    again = reliability_of(binned(np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])))
    assert again["error"] == pytest.approx(error)
    assert [one["n"] for one in again["bins"]] == [one["n"] for one in told["all"]["bins"]]


def test_the_newest_are_ten_to_twenty_thousand():
    calibration = Calibration(True)
    scores = np.array([0.9, 0.5, 0.3, 0.2, 0.1])
    true, known = np.arange(5) == 0, np.ones(5, np.bool_)
    newest = []
    for n in range(1, 9_001):
        learn_pairs(calibration.arrays, scores, true, known)
        told = calibration.reliability()
        if n % 10 == 0 and told is not None:
            assert told["all"]["n"] == 5 * n
            newest.append(told["newest"]["n"])
    assert max(newest) == 19_950
    assert newest[:399] == [50 * n for n in range(1, 400)]
    assert min(newest[200:]) == 10_000
    assert {later - earlier for earlier, later in pairwise(newest)} == {50, -9_950}


def test_it_begins_anew_when_it_is_turned_on_and_ends_when_it_is_turned_off():
    model, oracle = learned(stream(100, 15), calibrate=False), Oracle()
    never = learned(stream(100, 15), calibrate=False)
    model.configure({"calibrate": True})
    followed(model, stream(100, 16), oracle)
    assert model.calibration.arrays.weights.tolist() == oracle.weights
    model.configure({"margin": 0.0, "calibrate": True})
    assert model.calibration.arrays.weights.tolist() == oracle.weights
    learn(never, stream(100, 16))
    model.configure({"calibrate": False})
    assert model.digest() == never.digest()


def test_later_passes_and_registrations_teach_it_nothing():
    model = learned(stream(100, 17))
    before, (keys, labels) = model.calibration.digest_bytes(), stream(1, 21)[0]
    model.learn_again(np.arange(3, dtype=np.int32), np.full(3, 0.5, np.float32), np.zeros(1, np.int32))
    named = add_details(vector_of(keys) + pack_labels(labels, Limits()), b'{"name":"One"}')
    model.begin(named, 1, [Unit(1)]).finish()
    assert ranked(model, keys)
    assert model.calibration.digest_bytes() == before
    learn(model, [(keys, labels)])
    assert model.calibration.digest_bytes() != before


def test_whatever_scores_come_the_numbers_stay_finite():
    calibration, rng = Calibration(True), np.random.default_rng(18)
    for n in range(20_000):
        scores = np.sort(rng.uniform(-3, 10, 5) * 10.0 ** rng.integers(-3, 9))[::-1].copy()
        if n % 1000 == 0:
            scores[0] = np.inf
        scores[rng.integers(0, 6) :] = 0.0
        learn_pairs(calibration.arrays, scores, rng.random(5) < 0.3, np.ones(5, np.bool_))
    assert all(np.isfinite(array).all() for array in calibration.arrays)
    assert Calibration.from_arrays(True, calibration.to_arrays(), 0).digest_bytes() == calibration.digest_bytes()


def test_suspicious_events_are_those_that_a_plain_search_finds():
    """Events of which another label was much more probable before they were learned, at their offsets."""
    model, rng = learned([], update="sls", calibrate=True), random.Random(8)
    expected = []
    for number, (keys, labels) in enumerate(stream(400, 7)):
        label = f"c{rng.randrange(6)}" if rng.random() < 0.1 else labels[0] if number < 390 else "new"
        at, vector = Offset(1000 + number, 2, rng.randrange(3)), vector_of(keys)
        ranking = counted(model, vector).rank_estimated(vector, 5)
        chances = {
            model.label(class_id): chance
            for class_id, score, chance in zip(*map(np.ndarray.tolist, ranking), strict=True)  # type: ignore[arg-type]
            if score > 0
        }
        given, first = chances.get(label, 0.0), next(iter(chances), label)
        if first != label and chances[first] - given >= 0.5 and model.times_learned(model.find(label)) >= 5:
            expected.append((str(at), label, given, first, chances[first]))
        units = [Unit(at.position, emptied=True)] * (at.position > 0) + [Unit(1)]
        record = vector + pack_labels([label], Limits())
        model.begin(record, at.position + 1, units, at._replace(position=0)).finish()
    expected.sort(key=lambda one: one[2] - one[4])

    def listed():
        return [
            (str(s.offset), model.label(s.given), s.chance, model.label(s.first), s.first_chance)
            for s in model.suspects()
        ]

    assert listed() == expected
    assert len(expected) > 10
    # Renamed labels have their present names. Merged with one another, or retired, they contradict nothing.
    (_, given, _, first, _), other = expected[0], expected[0][3]
    change(model, "rename", first, "other")
    assert listed()[0][3] == "other"
    change(model, "merge", given, "other")
    assert {frozenset(one[1::2]) for one in listed()}.isdisjoint({frozenset((given, "other")), frozenset(("other",))})
    change(model, "retire", "other", "")
    assert [one for one in expected if not {one[1], one[3]} & {given, other}] == listed()


def change(model: LiveModel, kind: str, name: str, to: str) -> None:
    model.begin(pack_change(encode(ChangeRequest([LabelChange(kind, name, to)]))), 1, [Unit(1)]).finish()


@njit
def noted(calibration, number, scores, class_ids):
    counts, true = np.full(3, 5), np.zeros(5, np.bool_)
    ids = np.array([0, 1, -1, -1, -1], np.int32)
    true[1] = class_ids[0] == 1
    note_suspect(calibration, number, Best(ids, scores), counts, class_ids, 1, true)


def test_the_most_suspicious_of_the_newest_events_are_kept():
    calibration, rng, best = Calibration(True), np.random.default_rng(3), np.array([0, 1], np.int32)
    calibration.arrays.bins[1] = 1e4  # the estimates have proved right
    rows, number, chances = [(0, 0.0)] * MOST_SUSPECTS, 0, np.empty(2)
    for _ in range(4000):
        number += int(rng.integers(1, 100))
        scores = np.append(rng.uniform([0.6, 0.0], [1.2, 0.5]), np.zeros(3))
        estimate(calibration.arrays, best, scores[:2], best, scores[:2], chances)
        calibration.arrays.at[:] = number, 0, 0
        noted(calibration.arrays, number, scores, np.array([rng.integers(3)], np.int32))
        given = calibration.arrays.suspects[calibration.arrays.suspects[:, 0] == number, 4]
        if len(given):
            suspicion = chances[0] - (chances[1] if given[0] == 1 else 0.0)
            worth = [one if row + 100_000 > number else 0.0 for row, one in rows]
            assert suspicion > min(worth)
            rows[worth.index(min(worth))] = number, suspicion
    kept = calibration.suspects(number)
    newest = [row for row in rows if row[0] + 100_000 > number > 0 < row[0]]
    assert [(one.offset.milliseconds, one.first_chance - one.chance) for one in kept] == sorted(
        newest, key=lambda row: (-row[1], -row[0])
    )
    assert 500 < len(kept) < 1000
