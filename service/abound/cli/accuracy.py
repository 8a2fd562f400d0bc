"""The running accuracy of a stream: over all instances and over a window of the newest."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

WINDOW = 10_000  # instances
Score = dict[str, float | int | None]


class RunningAccuracy:
    """Accuracy over a sequence of ranks, each that of the best true label of an instance.

    R_k is the fraction of ranks of at most k. MRR is the mean of 1/rank; an instance whose true labels were not
    retrieved counts as 0 (Madani, Connor and Greiner, JMLR 2009, section 3.3).
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._all: Counter[int] = Counter()
        self._window: Counter[int] = Counter()
        self._newest: deque[int] = deque()
        self._length = window

    def add(self, rank: int | None) -> None:
        """Count one instance. A rank of None means that its true labels were not retrieved."""
        place = rank or 0
        self._all[place] += 1
        self._window[place] += 1
        self._newest.append(place)
        if len(self._newest) > self._length:
            self._window[self._newest.popleft()] -= 1

    def all(self) -> Score:
        """Return ``n``, ``R@1``, ``R@5`` and ``MRR`` over all instances; the last three are None if ``n`` is 0."""
        return _score(self._all)

    def window(self) -> Score:
        return _score(self._window)


def rank_in(labels: Iterable[str], true: Iterable[str]) -> int | None:
    """Return the rank, from 1, of the first of ``labels`` in ``true``. None if there is none."""
    wanted = set(true)
    return next((rank for rank, label in enumerate(labels, start=1) if label in wanted), None)


def format_score(score: Score) -> str:
    """Format a score for people: ``R@1 0.312  R@5 0.520  MRR 0.401``."""
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
