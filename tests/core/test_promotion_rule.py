"""The scores of challengers and the rule of the gate: seldom wrong however often it is looked at, and never blind."""

import math

import msgspec
import numpy as np
import pytest

from abound_core.promotion_rule import (
    BLOCK,
    BLOCKS,
    INSTANCES_PER_GAMBLER,
    MAX_GAMBLERS,
    Contest,
    GateParams,
    PairedComparison,
    Score,
)

ALPHA = 0.05
QUICK = GateParams(alpha=ALPHA, min_events=50)
STEPS = np.array([-1.0, -0.5, 0.0, 0.0, 0.5, 1.0])


def shown(n: int, chance: float, rng: np.random.Generator) -> list[int]:
    """Ranks: 1 with a chance, else 2 to 10 or none."""
    return np.where(rng.random(n) < chance, 1, rng.integers(0, 10, n)).tolist()


def test_the_window_forgets_and_is_bounded():
    score = Score()
    for _ in range(BLOCK * BLOCKS):
        score.add(0)
    for _ in range(BLOCK * BLOCKS):
        score.add(1)
    assert score.window.measures()["R@1"] == 1.0
    assert score.all.measures()["R@1"] == 0.5
    assert len(score.blocks) == BLOCKS


def test_nothing_takes_over_without_being_better():
    """Looked at after every instance: capital reaches 1 / alpha in at most about alpha of all runs."""
    rng = np.random.default_rng(5)
    runs, wrong, outside = 300, 0, 0
    for _ in range(runs):
        one = PairedComparison()
        passed = missed = False
        for d in rng.choice(STEPS, 1200).tolist():
            one.add(d, ALPHA)
            low, high = one.interval(ALPHA)
            passed = passed or one.evidence >= 1.0 / ALPHA
            missed = missed or not low <= 0.0 <= high
        wrong += passed
        outside += missed
    # More than 26 of 300 come with a chance below 0.002 where each has one of 0.05.
    assert wrong <= 26
    assert outside <= 26


@pytest.mark.parametrize("mean", [0.1, 0.3])
def test_a_real_difference_is_found(mean):
    rng = np.random.default_rng(6)
    needed = []
    for _ in range(20):
        one = PairedComparison()
        for d in np.clip(rng.normal(mean, 0.4, 5000), -1, 1).tolist():
            one.add(d, ALPHA)
            if one.evidence >= QUICK.needed:
                break
        needed.append(one.n)
        low, high = one.interval(ALPHA)
        assert low <= one.mean <= high
    assert max(needed) < 5000
    # Nobody can do with less than 2 log(1/p) var / mean^2 instances; a few times that is what learning to bet costs.
    assert np.median(needed) < 6 * 2 * math.log(QUICK.needed) * 0.16 / mean**2


def test_one_that_becomes_better_after_a_long_time_is_found_as_soon():
    """By then the gamblers that never bet are all richer than what a new one begins with."""
    rng = np.random.default_rng(11)
    one = PairedComparison()
    for d in np.where(rng.random(60_000) < 0.4, -1.0, 0.5).tolist():
        one.add(d, ALPHA)
    assert one.evidence < 1.0
    for d in np.where(rng.random(12_000) < 0.3, -1.0, 0.5).tolist():
        one.add(d, ALPHA)
        if one.evidence >= QUICK.needed:
            break
    assert one.n - 60_000 < 10_000


def test_capital_changes_hands_and_none_is_made():
    """Whenever a gambler begins, what all have, with what is put by for those to come, stays what it was."""
    rng = np.random.default_rng(12)
    one = PairedComparison()
    for i, d in enumerate(rng.choice(STEPS, 20 * INSTANCES_PER_GAMBLER).tolist()):
        if i and i % INSTANCES_PER_GAMBLER == 0:
            before = one.evidence
            again = msgspec.convert(msgspec.to_builtins(one), PairedComparison)
            again.add(0.0, ALPHA)  # who bets on 0 wins nothing
            assert again.begun == one.begun + 1
            assert again.evidence == pytest.approx(before, rel=1e-9)
            assert len(again.gamblers) <= MAX_GAMBLERS
        one.add(d, ALPHA)


def test_promotes_and_rolls_back_by_one_rule():
    rng = np.random.default_rng(9)
    contest = Contest(served="live", alpha=ALPHA)
    for live, batch in zip(shown(2000, 0.4, rng), shown(2000, 0.7, rng), strict=True):
        contest.add({"live": live, "v": batch, "w": 0})
    decision = contest.decide(QUICK, ["v", "w"], [])
    assert (decision.kind, decision.version, decision.instead_of) == ("promote", "v", "live")
    assert 0.0 < decision.low < decision.difference < decision.high
    contest.set_served("v")
    assert contest.decide(QUICK, ["w"], ["live"]) is None
    for live, batch in zip(shown(2000, 0.7, rng), shown(2000, 0.4, rng), strict=True):
        contest.add({"live": live, "v": batch})
    assert contest.decide(QUICK, [], []) is None  # nobody may
    back = contest.decide(QUICK, ["w"], ["live"])
    assert (back.kind, back.version) == ("roll back", "live")


def test_few_instances_decide_nothing():
    contest = Contest(served="live", alpha=ALPHA)
    for _ in range(QUICK.min_events - 1):
        contest.add({"live": 0, "v": 1})
    assert contest.comparisons["v"].evidence > QUICK.needed
    assert contest.decide(QUICK, ["v"], []) is None
    contest.add({"live": 0, "v": 1})
    assert contest.decide(QUICK, ["v"], []) is not None


def test_goes_on_from_what_was_kept_as_if_it_had_never_stopped():
    rng = np.random.default_rng(10)
    whole, kept = Contest(served="live", alpha=ALPHA), Contest(served="live", alpha=ALPHA)
    for i, (live, batch) in enumerate(zip(shown(1500, 0.5, rng), shown(1500, 0.6, rng), strict=True)):
        for contest in (whole, kept):
            contest.add({"live": live, "v": batch})
        if i % 400 == 0:
            kept = msgspec.json.decode(msgspec.json.encode(kept), type=Contest)
    assert kept == whole
