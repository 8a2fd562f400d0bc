"""Drift marks: what is kept and told of the changes of a model's score. ``drift.py`` finds them."""

from __future__ import annotations

import msgspec

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
