"""How a method says how far it is, and how it is stopped."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""``progress(stage, fraction)``: what is being done, and how much of it is done, 0 to 1. It is called every second or
two at least and may raise ``abound.core.errors.Cancelled``, which a method lets through."""


def quietly(stage: str, fraction: float) -> None:
    """A progress that nobody looks at."""


def part(progress: Progress, first: float, last: float) -> Progress:
    """Progress of a part: its 0 to 1 is ``first`` to ``last`` of the whole."""
    return lambda stage, fraction: progress(stage, first + (last - first) * fraction)


def rising(progress: Progress) -> Progress:
    """Progress that never goes back, whatever its parts say."""
    most = 0.0

    def told(stage: str, fraction: float) -> None:
        nonlocal most
        most = max(most, fraction)
        progress(stage, most)

    return told
