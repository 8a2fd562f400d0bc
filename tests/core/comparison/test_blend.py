"""The blend of two rankings, and how its weights are learned."""

import copy

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound.core.comparison.blend import (
    DEPTH,
    DISCOUNT,
    MIXTURES,
    BlendLearner,
    LabelRanking,
    mix,
    ranks_under,
    shares_of,
)

LIVE = LabelRanking(["a", "b", "c"], [3.0, 2.0, 1.0])
BATCH = LabelRanking(["c", "d"], [-1.0, -5.0])


def test_worked_by_hand() -> None:
    # Above the last, squared: a 4, b 1, c 0, so shares of 0.8, 0.2, 0; batch: c 1, d 0
    assert shares_of(LIVE.scores).tolist() == [0.8, 0.2, 0.0]
    assert mix(LIVE, BATCH, (0.75, 0.25), 10) == [("a", 0.75 * 0.8), ("c", 0.25), ("b", 0.75 * 0.2), ("d", 0.0)]
    assert mix(LIVE, BATCH, (0.25, 0.75), 2) == [("c", 0.75), ("a", 0.25 * 0.8)]


def test_a_list_whose_first_stands_out_says_so_louder() -> None:
    sure, unsure = LabelRanking(["a", "b", "c"], [9.0, 1.0, 0.0]), LabelRanking(["b", "a", "c"], [9.0, 8.0, 0.0])
    assert mix(sure, unsure, (0.5, 0.5), 1)[0][0] == "a"
    assert mix(unsure, sure, (0.5, 0.5), 1)[0][0] == "a"


def test_one_side_alone_keeps_its_order() -> None:
    assert [label for label, _ in mix(LIVE, BATCH, (1.0, 0.0), 3)] == ["a", "b", "c"]
    assert [label for label, _ in mix(LIVE, BATCH, (0.0, 1.0), 1)] == ["c"]


def test_ties_go_by_the_live_list() -> None:
    same = LabelRanking(["x", "y"], [1.0, 1.0])
    other = LabelRanking(["z", "y", "x"], [1.0, 1.0, 1.0])
    assert [label for label, _ in mix(same, other, (0.5, 0.5), 9)] == ["x", "y", "z"]


def test_an_empty_side_changes_nothing() -> None:
    assert mix(LabelRanking([], []), BATCH, (0.5, 0.5), 5) == [("c", 0.5), ("d", 0.0)]
    assert mix(LabelRanking([], []), LabelRanking([], []), (0.5, 0.5), 5) == []


def test_the_first_of_an_answer_do_not_depend_on_its_length() -> None:
    labels = [f"l{i}" for i in range(3 * DEPTH)]
    scores = np.linspace(9.0, 1.0, 3 * DEPTH)
    long, short = LabelRanking(labels, scores), LabelRanking(labels[:DEPTH], scores[:DEPTH])
    other = LabelRanking(labels[::-1][:DEPTH], scores[:DEPTH])
    assert mix(long, other, (0.5, 0.5), 9) == mix(short, other, (0.5, 0.5), 9)
    assert shares_of(scores)[DEPTH - 1 :].max() == 0.0
    assert shares_of(np.ones(3 * DEPTH)).tolist() == [1.0 / DEPTH] * DEPTH + [0.0] * (2 * DEPTH)


lists = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-3, 3)), max_size=8, unique_by=lambda pair: pair[0])


def listed(pairs: list[tuple[str, int]]) -> LabelRanking:
    ordered = sorted(pairs, key=lambda pair: -pair[1])
    return LabelRanking([label for label, _ in ordered], [float(score) for _, score in ordered])


@given(lists, lists, st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_ranks_are_those_of_the_mixed_rankings(live: list, batch: list, true: set[str]) -> None:
    one, two = listed(live), listed(batch)
    ranks = ranks_under(one, two, np.array(MIXTURES), true)
    for weights, rank in zip(MIXTURES, ranks.tolist(), strict=True):
        order = [label for label, _ in mix(one, two, weights, 100)]
        assert rank == next((place for place, label in enumerate(order, 1) if label in true), 0)


def teach(weighing: BlendLearner, n: int, better: str, seed: int) -> None:
    """Instances on which one side has the true label first in four of five, the other in two."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        chances = (0.8, 0.4) if better == "live" else (0.4, 0.8)
        live, batch = (
            LabelRanking(["t", "f"], [1.0, 0.0]) if rng.random() < chance else LabelRanking(["f", "t"], [1.0, 0.0])
            for chance in chances
        )
        weighing.learn(live, batch, {"t"})


def test_weights_follow_the_better_side_and_change_their_mind() -> None:
    weighing = BlendLearner()
    teach(weighing, 3000, "live", 1)
    assert weighing.weights[0] > 0.5
    teach(weighing, 3000, "batch", 2)
    assert weighing.weights[1] > 0.5
    teach(weighing, 3000, "live", 3)
    assert weighing.weights[0] > 0.5


def test_a_side_that_nothing_beats_is_left_alone() -> None:
    weighing = BlendLearner()
    wrong = LabelRanking(["f", "g"], [1.0, 0.0])
    for _ in range(300):
        weighing.learn(LabelRanking(["t", "f", "g"], [1.0, 0.99, 0.0]), wrong, {"t"})
    assert weighing.weights == (1.0, 0.0)


def test_a_mixture_that_is_better_than_both_is_found() -> None:
    weighing = BlendLearner()
    for i in range(600):  # each is wrong, and not sure of it, where the other one is sure
        sure, unsure = (
            LabelRanking(["t", "f", "g"], [9.0, 1.0, 0.0]),
            LabelRanking([f"x{i}", "y", "t"], [5.0, 4.9, 0.0]),
        )
        live, batch = (sure, unsure) if i % 2 else (unsure, sure)
        weighing.learn(live, batch, {"t"})
    assert 0.3 <= weighing.weights[1] <= 0.7
    assert weighing.gains[MIXTURES.index(weighing.weights)] > 1.2 * max(weighing.gains[0], weighing.gains[-1])


def test_the_error_of_a_difference_is_its_standard_deviation() -> None:
    """Of a sum of n differences of a variance v each, discounted by g: v (1 - g^2n) / (1 - g^2)."""
    weighing, n = BlendLearner(), 3000
    first, second = LabelRanking(["t", "f"], [1.0, 0.0]), LabelRanking(["f", "t"], [1.0, 0.0])
    for i in range(n):  # reciprocal ranks of 1 and 1/2, one side and the other in turn
        weighing.learn(*((first, second) if i % 2 else (second, first)), {"t"})
    variance = 0.25 * (1.0 - DISCOUNT ** (2 * n)) / (1.0 - DISCOUNT**2)
    of_the_version = weighing.squares[0][-1]
    assert of_the_version == pytest.approx(variance, rel=1e-9)
    assert weighing.squares[1][0] == pytest.approx(variance, rel=1e-9)
    difference = weighing.gains[-1] - weighing.gains[0]
    weighing.start_version()
    kept = (weighing.gains[-1] - weighing.gains[0]) / difference
    assert kept < 0.7, "only a part stays"
    assert weighing.squares[0][-1] == pytest.approx(variance * kept**2, rel=1e-9)


def test_begins_with_what_is_expected_of_the_version() -> None:
    shares = []
    for advantage in (-0.3, -0.05, 0.0, 0.05, 0.3):
        weighing = BlendLearner()
        weighing.start_version(advantage)
        shares.append(weighing.weights[1])
    assert shares[0] <= 0.1
    assert 0.3 <= shares[2] <= 0.6
    assert shares[4] >= 0.9
    assert shares == sorted(shares)


def test_what_was_expected_is_forgotten() -> None:
    weighing = BlendLearner()
    weighing.start_version(0.3)
    teach(weighing, 2000, "live", 1)
    assert weighing.weights[0] > 0.5


def test_others_hear_of_weights_soon_at_the_beginning() -> None:
    weighing, heard, at = BlendLearner(), 0, []
    for i in range(1, 1501):
        weighing.since = i
        if weighing.should_publish(heard, 250):
            heard = i
            at.append(i)
    assert at[:6] == [1, 2, 3, 4, 5, 6]
    assert at[-3:] == [at[-1] - 500, at[-1] - 250, at[-1]]
    assert len(at) < 40


def test_another_version_begins_with_little_evidence() -> None:
    weighing = BlendLearner()
    teach(weighing, 20_000, "live", 1)
    slow = copy.deepcopy(weighing)
    weighing.start_version()
    teach(weighing, 1200, "batch", 2)
    teach(slow, 1200, "batch", 2)
    assert weighing.weights[1] > 0.5 > slow.weights[1]


def test_what_an_earlier_release_kept_can_be_read() -> None:
    kept = b'{"n": 700, "gains": [' + b",".join([b"3.5"] * len(MIXTURES)) + b"]}"
    weighing = msgspec.json.decode(kept, type=BlendLearner)
    teach(weighing, 1, "live", 1)
    assert weighing.n == 701
    assert weighing.should_publish(700, 250)


def test_refuses_gains_of_another_number_of_mixtures() -> None:
    with pytest.raises(ValueError, match="mixtures"):
        BlendLearner(gains=[1.0])
