"""Counting how long things took, in plain integers: what is done many thousand times a second can afford it."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of durations, seconds."""


class Timer:
    """Durations by class, and their sum."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def note(self, seconds: float) -> None:
        """One thing was done."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def take(self) -> tuple[list[int], float]:
        """Durations by class, and seconds in all, since it was last asked."""
        taken = self._counts, self._total
        self._counts, self._total = [0] * (len(BOUNDS) + 1), 0.0
        return taken
