"""Progress reports of methods, which also serve to cancel them."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""``progress(stage, fraction)`` reports the present stage and the completed fraction, 0 to 1. A method calls it at
least every second or two. It may raise ``abound_core.errors.Cancelled``, which the method must not catch.
"""


def no_progress(stage: str, fraction: float) -> None:
    """Discard progress reports."""


def subrange(progress: Progress, first: float, last: float) -> Progress:
    """Return a progress callback for a part: its 0 to 1 is ``first`` to ``last`` of the whole."""
    return lambda stage, fraction: progress(stage, first + (last - first) * fraction)


def monotonic(progress: Progress) -> Progress:
    """Return a progress callback that never goes backwards, whatever its parts report."""
    most = 0.0

    def report(stage: str, fraction: float) -> None:
        nonlocal most
        most = max(most, fraction)
        progress(stage, most)

    return report
