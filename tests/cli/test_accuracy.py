"""The running accuracy against the plain definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound.cli.accuracy import RunningAccuracy


def plain(ranks: list[int | None]) -> dict[str, object]:
    n = len(ranks)
    if n == 0:
        return {"n": 0, "R@1": None, "R@5": None, "MRR": None}
    found = [rank for rank in ranks if rank]
    return {
        "n": n,
        "R@1": sum(rank <= 1 for rank in found) / n,
        "R@5": sum(rank <= 5 for rank in found) / n,
        "MRR": pytest.approx(sum(1 / rank for rank in found) / n),
    }


@given(st.lists(st.none() | st.integers(0, 9), max_size=30), st.integers(1, 10))
def test_all_and_the_newest(ranks: list[int | None], window: int) -> None:
    tally = RunningAccuracy(window)
    for rank in ranks:
        tally.add(rank)
    assert tally.all() == plain(ranks)
    assert tally.window() == plain(ranks[-window:])
