"""The blend of two rankings, and how its weights are learned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.blend import DEPTH, MIXTURES, Listed, Weighing, mix, normalised, ranks_under

LIVE = Listed(["a", "b", "c"], [3.0, 2.0, 1.0])
BATCH = Listed(["c", "d"], [-1.0, -5.0])


def test_worked_by_hand() -> None:
    # live: a 1, b 0.5, c 0; batch: c 1, d 0
    assert mix(LIVE, BATCH, (0.75, 0.25), 10) == [("a", 0.75), ("b", 0.375), ("c", 0.25), ("d", 0.0)]
    assert mix(LIVE, BATCH, (0.25, 0.75), 2) == [("c", 0.75), ("a", 0.25)]


def test_one_side_alone_keeps_its_order() -> None:
    assert [label for label, _ in mix(LIVE, BATCH, (1.0, 0.0), 3)] == ["a", "b", "c"]
    assert [label for label, _ in mix(LIVE, BATCH, (0.0, 1.0), 1)] == ["c"]


def test_ties_go_by_the_live_list() -> None:
    same = Listed(["x", "y"], [1.0, 1.0])
    other = Listed(["z", "y", "x"], [1.0, 1.0, 1.0])
    assert [label for label, _ in mix(same, other, (0.5, 0.5), 9)] == ["x", "y", "z"]


def test_an_empty_side_changes_nothing() -> None:
    assert mix(Listed([], []), BATCH, (0.5, 0.5), 5) == [("c", 0.5), ("d", 0.0)]
    assert mix(Listed([], []), Listed([], []), (0.5, 0.5), 5) == []


def test_the_first_of_an_answer_do_not_depend_on_its_length() -> None:
    labels = [f"l{i}" for i in range(3 * DEPTH)]
    scores = np.linspace(9.0, 1.0, 3 * DEPTH)
    long, short = Listed(labels, scores), Listed(labels[:DEPTH], scores[:DEPTH])
    other = Listed(labels[::-1][:DEPTH], scores[:DEPTH])
    assert mix(long, other, (0.5, 0.5), 9) == mix(short, other, (0.5, 0.5), 9)
    assert normalised(scores)[DEPTH - 1 :].max() == 0.0


lists = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-3, 3)), max_size=8, unique_by=lambda pair: pair[0])


def listed(pairs: list[tuple[str, int]]) -> Listed:
    ordered = sorted(pairs, key=lambda pair: -pair[1])
    return Listed([label for label, _ in ordered], [float(score) for _, score in ordered])


@given(lists, lists, st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_ranks_are_those_of_the_mixed_rankings(live: list, batch: list, true: set[str]) -> None:
    one, two = listed(live), listed(batch)
    ranks = ranks_under(one, two, np.array(MIXTURES), true)
    for weights, rank in zip(MIXTURES, ranks.tolist(), strict=True):
        order = [label for label, _ in mix(one, two, weights, 100)]
        assert rank == next((place for place, label in enumerate(order, 1) if label in true), 0)


def teach(weighing: Weighing, n: int, better: str, seed: int) -> None:
    """Instances on which one side has the true label first in four of five, the other in two."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        chances = (0.8, 0.4) if better == "live" else (0.4, 0.8)
        live, batch = (
            Listed(["t", "f"], [1.0, 0.0]) if rng.random() < chance else Listed(["f", "t"], [1.0, 0.0])
            for chance in chances
        )
        weighing.note(live, batch, {"t"})


def test_weights_follow_the_better_side_and_change_their_mind() -> None:
    weighing = Weighing()
    assert weighing.weights == (1.0, 0.0)
    teach(weighing, 3000, "live", 1)
    assert weighing.weights[0] > 0.5
    teach(weighing, 3000, "batch", 2)
    assert weighing.weights[1] > 0.5
    teach(weighing, 3000, "live", 3)
    assert weighing.weights[0] > 0.5


def test_another_version_begins_with_little_evidence() -> None:
    weighing = Weighing()
    teach(weighing, 5000, "live", 1)
    slow = Weighing(n=weighing.n, gains=list(weighing.gains))
    weighing.begin_anew()
    teach(weighing, 300, "batch", 2)
    teach(slow, 300, "batch", 2)
    assert weighing.weights[1] > 0.5 > slow.weights[1]


def test_refuses_gains_of_another_number_of_mixtures() -> None:
    with pytest.raises(ValueError, match="mixtures"):
        Weighing(gains=[1.0])
