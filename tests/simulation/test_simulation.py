"""Histories by seed. More of them: ``python -m tests.simulation --seeds 0..200000``."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.simulation.history import Outcome, run
from tests.simulation.replacing import KINDS

SEEDS = 2000
QUICK = 100
PART = 25  # in one test, which has five minutes on a busy machine


@cache
def outcome(seed: int) -> Outcome:
    return run(seed)


@pytest.mark.parametrize(
    "first",
    [
        *range(0, QUICK, PART),
        *(pytest.param(first, marks=pytest.mark.long) for first in range(QUICK, SEEDS, PART)),
    ],
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
    command = [sys.executable, "-c", program]
    printed = {
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True
        ).stdout.split("\n")[-2]
        for salt in ("1", "2")
    }
    assert len(printed) == 1
    assert len(set(printed.pop().split(","))) == 3


def test_histories_are_eventful() -> None:
    """What is tried is worth it: events are learned, and stores lose some."""
    outcomes = [outcome(seed) for seed in range(40)]
    assert sum(one.n_learned for one in outcomes) > 200
    assert sum(one.n_lost > 0 for one in outcomes) > 5
    assert sum(one.n_trimmed > 0 for one in outcomes) > 5
    for kind in KINDS:
        assert sum(one.n_replaced[kind] for one in outcomes) > 0
    assert sum(sum(one.n_replaced.values()) > 1 for one in outcomes) > 5
    assert sum(one.n_opened for one in outcomes) > 5
    assert sum(one.n_discarded for one in outcomes) > 20
    assert sum(one.n_activated > 0 for one in outcomes) > 5
    assert sum(one.n_in_rows for one in outcomes) > 0
    assert sum(one.n_named for one in outcomes) > 40
    assert sum(one.n_rejected for one in outcomes) > 40
    assert len({one.checksum for one in outcomes}) == 40
