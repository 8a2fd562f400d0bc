"""Drift marks: where it was noticed, by ADWIN, that the prequential score of a model had changed.

ADWIN (Bifet and Gavalda, Learning from time-changing data with adaptive windowing, SDM 2007; river's) keeps a window
that grows as long as nothing changes, and drops its older part when the means of the two parts differ by more than
chance would have it. It is fed the means of ``BLOCK`` instances. It takes the older part away piece by piece, so a
change is found several times over: what comes within ``TOGETHER`` instances, the same way, is one mark. A model that
only begins to learn is marked as well: its score rises.

What is kept is what the detector was fed, so one that is made anew from it goes on as if it had never stopped.

Drift marks: what is kept and told of the changes of a model's score. ``service/versions/promotion/drift.py`` finds
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from river.drift import ADWIN

BLOCK = 8
"""Instances of one mean."""

LONGEST = 2048
"""Means that are kept; then the older half is let go of."""

DELTA = 0.002
"""Chance of a mark, at each look, where nothing has changed."""

LEAST = 10
"""Means of each part that is compared."""

LOOK = 4
"""Means between two looks."""

TOGETHER = 2000


class Detector:
    """Finds the marks of one model; ``drift`` is all that has to be kept of it."""

    def __init__(self, drift: Drift) -> None:
        self.drift = drift
        self._windows = {name: _window(one.fed) for name, one in drift.measures.items()}

    def note(self, rank: int, offset: str, learned: int) -> None:
        """Take the rank of the best true label of the next instance, 0 where none was ranked."""
        for name, value in (("R@1", float(rank == 1)), ("MRR", 1.0 / rank if rank else 0.0)):
            one = self.drift.measures[name]
            one.n += 1
            one.total += value
            if one.n == BLOCK:
                mean, one.n, one.total = round(one.total / BLOCK, 6), 0, 0.0
                self._feed(name, one, mean, offset, learned)

    def _feed(self, name: str, one: Detecting, mean: float, offset: str, learned: int) -> None:
        window = self._windows[name]
        one.fed.append(mean)
        window.update(mean)  # type: ignore[no-untyped-call]
        if window.drift_detected:
            width = max(1, int(window.width))
            older, newer = one.fed[:-width] or one.fed[:1], one.fed[-width:]
            before, after = round(sum(older) / len(older), 4), round(sum(newer) / len(newer), 4)
            mark = Mark(offset=offset, learned=learned, measure=name, before=before, after=after)
            self.drift.marks = _with(self.drift.marks, mark)
            one.fed = newer
        elif len(one.fed) >= LONGEST:
            one.fed = one.fed[-LONGEST // 2 :]
        else:
            return
        self._windows[name] = _window(one.fed)


def _with(marks: list[Mark], mark: Mark) -> list[Mark]:
    """Marks and one more, which may be the last one of its measure again."""
    place, last = next(
        ((i, one) for i, one in reversed(list(enumerate(marks))) if one.measure == mark.measure), (0, None)
    )
    if (
        last is not None
        and mark.learned - last.learned < TOGETHER
        and (mark.after > mark.before) == (last.after > last.before)
    ):
        again = msgspec.structs.replace(last, after=mark.after)
        return [*marks[:place], again, *marks[place + 1 :]]
    return [*marks, mark][-MARKS:]


def _window(fed: list[float]) -> ADWIN:
    from river.drift import ADWIN  # with it comes scikit-learn, which a replica does not need

    window = ADWIN(  # type: ignore[no-untyped-call]
        delta=DELTA, clock=LOOK, min_window_length=LEAST, grace_period=2 * LEAST
    )
    for mean in fed:
        window.update(mean)  # type: ignore[no-untyped-call]
    return window


MARKS = 50
"""Newest marks that are kept."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A change.

    Attributes
    ----------
    offset : str
        Where it was first found; it began before.
    learned : int
        Instances that the model had learned then.
    measure : str
        ``R@1`` or ``MRR``.
    before, after : float
        Its means in the older and the newer part of the window.
    """

    offset: str
    learned: int
    measure: str
    before: float
    after: float


class Detecting(msgspec.Struct):
    """What is kept of the detector of one measure."""

    n: int = 0
    total: float = 0.0
    fed: list[float] = msgspec.field(default_factory=list)


class Drift(msgspec.Struct):
    """The marks of a model and what finds them. Plain values."""

    marks: list[Mark] = msgspec.field(default_factory=list)
    measures: dict[str, Detecting] = msgspec.field(default_factory=lambda: {"R@1": Detecting(), "MRR": Detecting()})
