"""The running accuracy of a stream: over all instances and over a window of the newest."""

from __future__ import annotations

from collections import deque

from abound_core.rank_sums import RankSums

WINDOW = 10_000  # instances
Score = dict[str, float | int | None]


class RunningAccuracy:
    """Accuracy over a sequence of ranks, each that of the best true label of an instance."""

    def __init__(self, window: int = WINDOW) -> None:
        self._all = RankSums()
        self._newest: deque[int] = deque(maxlen=window)

    def add(self, rank: int | None) -> None:
        """Count one instance. A rank of None or 0 means that its true labels were not retrieved."""
        self._all.add(rank or 0)
        self._newest.append(rank or 0)

    def all(self) -> Score:
        """Return ``n``, ``R@1``, ``R@5`` and ``MRR`` over all instances; the last three are None if ``n`` is 0."""
        return self._all.measures()

    def window(self) -> Score:
        sums = RankSums()
        for rank in self._newest:
            sums.add(rank)
        return sums.measures()


def format_score(score: Score) -> str:
    """Format a score for people: ``R@1 0.312  R@5 0.520  MRR 0.401``."""
    if not score["n"]:
        return "no accuracy yet"
    return "  ".join(f"{name} {score[name]:.3f}" for name in ("R@1", "R@5", "MRR"))
