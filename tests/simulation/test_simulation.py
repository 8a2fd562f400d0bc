"""Histories by seed. More of them: ``python -m tests.simulation --seeds 0..200000``."""

import gc
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.simulation.history import Outcome, run
from tests.simulation.replacing import KINDS

SEEDS = 2000
QUICK = 50
PART = 25  # in one test, which has five minutes on a busy machine

LEAST = {"answers": 200, "ended unfinished": 5, "events discarded": 20, **dict.fromkeys(KINDS, 0)}
LEAST |= {"models in rows": 0, "labels registered": 40, "labels rejected": 40}
"""What forty histories have more of."""


@cache
def outcome(seed: int) -> Outcome:
    return run(seed)


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=pytest.mark.long if first >= QUICK else ()) for first in range(0, SEEDS, PART)]
)
def test_every_promise_is_kept(first: int) -> None:
    broken = {seed: found for seed in range(first, first + PART) if (found := outcome(seed).broken)}
    gc.collect()
    assert broken == {}, "python -m tests.simulation --seeds SEED --trace shows one"


def test_the_same_seed_is_the_same_history() -> None:
    for seed in range(5):
        one, other = run(seed, trace=True), run(seed, trace=True)
        assert one.trace == other.trace
        assert one == other
        assert len(one.trace) > 50


def test_the_same_seed_is_the_same_history_in_another_process() -> None:
    """Nothing hangs on the order in which a set of strings or of tasks is gone through."""
    program = "from tests.simulation.history import run; print([run(seed).checksum for seed in range(3)])"
    environment = os.environ | {"PYTHONHASHSEED": "1"}  # here it is another one, random unless told
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-2] == str([outcome(seed).checksum for seed in range(3)])


def test_histories_are_eventful() -> None:
    """What is tried is worth it: events are learned, and stores lose some."""
    outcomes = [outcome(seed) for seed in range(40)]
    for what, least in LEAST.items():
        assert sum(one.counts.get(what, 0) for one in outcomes) > least, what
    for what in ("commands lost", "trims", "activations"):
        assert sum(one.counts[what] > 0 for one in outcomes) > 5, what
    assert sum(sum(one.counts[kind] for kind in KINDS) > 1 for one in outcomes) > 5
    assert len({one.checksum for one in outcomes}) == 40
