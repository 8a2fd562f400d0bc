"""Kills of a fleet under load, as `python -m benchmarks.faults` does them."""

import sys
from pathlib import Path

import pytest

from benchmarks import balancer
from benchmarks.faults.__main__ import figures
from benchmarks.faults.run import run


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.skipif(balancer.program() is None, reason="nginx is not installed")
@pytest.mark.timeout(1200)
@pytest.mark.long
@pytest.mark.parametrize("vectors", [False, True], ids=["words", "vectors"])
def test_what_was_acknowledged_outlives_kills_of_a_fleet(tmp_path: Path, vectors: bool) -> None:
    kills = 10
    said: list[str] = []
    outcome = run(tmp_path, 20, kills, 1, lambda outcome, number, kills, what: said.append(what), vectors=vectors)
    assert outcome.good, figures(outcome)
    assert outcome.kills.total() == len(said) == kills
    assert len(outcome.book.acknowledged) > 50 * kills
    assert outcome.findings.learned >= len(outcome.book.acknowledged) - outcome.findings.excused
    assert outcome.findings.in_history > 0  # the log was trimmed on the way
    assert outcome.book.counts["asked to have read its writes"] > 2 * kills
    assert outcome.book.counts["classify failed"] == 0, outcome.book.counts
