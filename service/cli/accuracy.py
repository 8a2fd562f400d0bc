"""The running accuracy of a stream: over all of it and over its newest part."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

WINDOW = 10_000
"""Length of the newest part, in instances."""

Score = dict[str, float | int | None]


class Tally:
    """Ranks of the best true label, one after the other.

    R_k is the share of ranks of at most k, MRR the mean of 1/rank, where a label that was not retrieved has no rank
    and counts as 0 (Madani, Connor and Greiner, JMLR 2009, section 3.3).
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._all: Counter[int] = Counter()
        self._window: Counter[int] = Counter()
        self._newest: deque[int] = deque()
        self._length = window

    def add(self, rank: int | None) -> None:
        """Count one instance; None: its true labels were not retrieved."""
        place = rank or 0
        self._all[place] += 1
        self._window[place] += 1
        self._newest.append(place)
        if len(self._newest) > self._length:
            self._window[self._newest.popleft()] -= 1

    def all(self) -> Score:
        """``n``, ``R@1``, ``R@5`` and ``MRR`` over everything; the three are None before the first instance."""
        return _score(self._all)

    def window(self) -> Score:
        """The same over the newest part."""
        return _score(self._window)


def rank_in(labels: Iterable[str], true: Iterable[str]) -> int | None:
    """The rank, from 1, of the first of ``labels`` that is true; None when none is."""
    wanted = set(true)
    return next((rank for rank, label in enumerate(labels, start=1) if label in wanted), None)


def shown(score: Score) -> str:
    """One line for people: ``R@1 0.312  R@5 0.520  MRR 0.401``."""
    if not score["n"]:
        return "no accuracy yet"
    return "  ".join(f"{name} {score[name]:.3f}" for name in ("R@1", "R@5", "MRR"))


def _score(ranks: Counter[int]) -> Score:
    n = ranks.total()
    if n == 0:
        return {"n": 0, "R@1": None, "R@5": None, "MRR": None}
    found = [(rank, count) for rank, count in ranks.items() if rank > 0]
    return {
        "n": n,
        "R@1": ranks[1] / n,
        "R@5": sum(count for rank, count in found if rank <= 5) / n,
        "MRR": sum(count / rank for rank, count in found) / n,
    }
