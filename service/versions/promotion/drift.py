"""Drift marks: offsets at which ADWIN detected a change of a model's prequential score.

ADWIN (Bifet and Gavalda, Learning from time-changing data with adaptive windowing, SDM 2007; river's
implementation) keeps a window that grows while nothing changes. It drops the older part when the means of the
two parts differ by more than chance explains. It receives the means of ``BLOCK_SIZE`` instances.

ADWIN drops the older part piece by piece and therefore detects one change several times. Detections of the same
direction within ``MERGE_WITHIN`` instances become one mark. After a restore fewer instances are learned than at
the last mark, so a new mark begins. A new model is marked as well, since its score rises.

The persisted state holds the values that the detector received, so a detector rebuilt from it continues as if
it had never stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from river.drift import ADWIN

BLOCK_SIZE = 8
"""Instances per mean."""

LONGEST = 2048
"""Number of means at which the older half is dropped."""

DELTA = 0.002
"""Probability of a false mark at each check (ADWIN's delta)."""

LEAST = 10
"""Fewest means in each of the two parts that are compared."""

CHECK_EVERY = 4
"""Number of new means after which the detector checks again."""

MERGE_WITHIN = 2000


class Detector:
    """Detects the drift marks of one model. ``drift`` is its whole persistent state."""

    def __init__(self, drift: Drift) -> None:
        self.drift = drift
        self._windows = {name: _window(one.fed) for name, one in drift.measures.items()}

    def note(self, rank: int, offset: str, learned: int) -> None:
        """Add the rank of the best true label of the next instance; 0 if none was ranked."""
        for name, value in (("R@1", float(rank == 1)), ("MRR", 1.0 / rank if rank else 0.0)):
            one = self.drift.measures[name]
            one.n += 1
            one.total += value
            if one.n == BLOCK_SIZE:
                mean, one.n, one.total = round(one.total / BLOCK_SIZE, 6), 0, 0.0
                self._feed(name, one, mean, offset, learned)

    def _feed(self, name: str, one: DetectorState, mean: float, offset: str, learned: int) -> None:
        window = self._windows[name]
        one.fed.append(mean)
        window.update(mean)  # type: ignore[no-untyped-call]
        if window.drift_detected:
            width = max(1, int(window.width))
            older, newer = one.fed[:-width] or one.fed[:1], one.fed[-width:]
            before, after = round(sum(older) / len(older), 4), round(sum(newer) / len(newer), 4)
            mark = DriftMark(offset=offset, learned=learned, measure=name, before=before, after=after)
            self.drift.marks = _with(self.drift.marks, mark)
            one.fed = newer
        elif len(one.fed) >= LONGEST:
            one.fed = one.fed[-LONGEST // 2 :]
        else:
            return
        self._windows[name] = _window(one.fed)


def _with(marks: list[DriftMark], mark: DriftMark) -> list[DriftMark]:
    """Return the marks with one more, which may be merged into the last mark of the same measure."""
    place, last = next(
        ((i, one) for i, one in reversed(list(enumerate(marks))) if one.measure == mark.measure), (0, None)
    )
    if (
        last is not None
        and 0 <= mark.learned - last.learned < MERGE_WITHIN
        and (mark.after > mark.before) == (last.after > last.before)
    ):
        again = msgspec.structs.replace(last, after=mark.after)
        return [*marks[:place], again, *marks[place + 1 :]]
    return [*marks, mark][-MARKS:]


def _window(fed: list[float]) -> ADWIN:
    from river.drift import ADWIN  # with it comes scikit-learn, which a replica does not need

    window = ADWIN(  # type: ignore[no-untyped-call]
        delta=DELTA, clock=CHECK_EVERY, min_window_length=LEAST, grace_period=2 * LEAST
    )
    for mean in fed:
        window.update(mean)  # type: ignore[no-untyped-call]
    return window


MARKS = 50
"""Number of newest marks that are kept."""


class DriftMark(msgspec.Struct, frozen=True, kw_only=True):
    """Detected change of one measure, ``R@1`` or ``MRR``: its means in the older and the newer part of the window."""

    offset: Annotated[str, Meta(description="Offset at which the change was detected; it began before.")]
    learned: Annotated[int, Meta(description="Instances learned up to this offset.")]
    measure: str
    before: float
    after: float


class DetectorState(msgspec.Struct):
    """Persisted state of the detector of one measure."""

    n: int = 0
    total: float = 0.0
    fed: list[float] = msgspec.field(default_factory=list)


class Drift(msgspec.Struct):
    """Drift marks of a model and the state of their detectors."""

    marks: list[DriftMark] = msgspec.field(default_factory=list)
    measures: dict[str, DetectorState] = msgspec.field(
        default_factory=lambda: {"R@1": DetectorState(), "MRR": DetectorState()}
    )
