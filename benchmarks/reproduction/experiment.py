"""Experiments, and the tables and plots made of them, as plain values.

The id of an experiment describes what it does. An experiment that appears in several tables and plots
therefore runs once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A method on a data set.

    Attributes
    ----------
    data : str
        A name in ``data_sets.SETS``.
    method : str
        A method of the registry, or ``fsu``, the update alone (``benchmarks/reproduction/proportions.py``).
    params : mapping
        As for ``abound evaluate --set``; for ff also ``passes``.
    seeds : tuple of int
        One run each. A seed determines the method's random numbers, and the split if that is random. Measures
        are the mean over the runs.
    hidden : float
        Share of the training labels that is hidden.
    each_pass : bool
        For ff: measure after each pass, on the training part too.
    depth : int
        Labels ranked.
    seconds : float
        Approximate duration of all runs; determines the order, and what ``--quick`` leaves out.
    """

    data: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    hidden: float = 0.0
    each_pass: bool = False
    depth: int = 100
    seconds: float = 1.0

    @property
    def id(self) -> str:
        """The id, equal for equal experiments."""
        parts = [self.data, self.method, *(f"{name}={_plain(value)}" for name, value in self.params.items())]
        if self.hidden:
            parts.append(f"hidden={self.hidden:g}")
        if self.each_pass:
            parts.append("each-pass")
        if self.depth != 100:
            parts.append(f"depth={self.depth}")
        if self.seeds != (0,):
            parts.append(f"seeds={','.join(map(str, self.seeds))}")
        return " ".join(parts)

    @property
    def is_live(self) -> bool:
        """Whether it runs on the live index; ``vote_min`` and the search are those of the method ``ff``."""
        return self.method == "ff" and not {"vote_min", "params"} & self.params.keys()

    @property
    def assignments(self) -> list[str]:
        """The parameters in the form of ``--set``."""
        live = {"passes"} if self.is_live else {}
        return [f"{name}={_plain(value)}" for name, value in self.params.items() if name not in live]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The range that a figure has to be in, from ``least`` to ``most``.

    Attributes
    ----------
    measure : str
        A measure, or a part of the cost.
    least, most : float
    than : Experiment or None
        Bound the difference to the figure of this experiment, or with ``ratio`` the quotient.
    named : str
        Name of the other experiment on the page.
    ratio : bool
    above : bool
        Whether a figure above ``most`` is acceptable: the page then lists it as better than expected.
    """

    measure: str
    least: float = float("-inf")
    most: float = float("inf")
    than: Experiment | None = None
    named: str = ""
    ratio: bool = False
    above: bool = False

    def value(self, own: Mapping[str, float], other: Mapping[str, float]) -> float | None:
        """Return the bounded value, from the figures of the experiment and of ``than``; None if they are not known."""
        if self.measure not in own or (self.than is not None and self.measure not in other):
            return None
        if self.than is None:
            return own[self.measure]
        if self.ratio:
            return own[self.measure] / other[self.measure] if other[self.measure] else None
        return own[self.measure] - other[self.measure]

    def holds(self, value: float) -> bool:
        """Return whether a figure is in the range, at the displayed precision, or acceptably above it."""
        return self.least - self._slack <= value and (self.above or not self.exceeds(value))

    def exceeds(self, value: float) -> bool:
        """Return whether a figure is above ``most``."""
        return value > self.most + self._slack

    @property
    def _slack(self) -> float:
        return 5e-4 if self.ratio or self.measure == "rank" else 5e-3

    def __str__(self) -> str:
        what = self.measure
        if self.than is not None:
            what += f" {'/' if self.ratio else '-'} that of {self.named}"
        if self.least == float("-inf"):
            return f"{what} <= {self.most:g}"
        if self.most == float("inf"):
            return f"{what} >= {self.least:g}"
        return f"{what} {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table.

    Attributes
    ----------
    label : str
    experiment : Experiment
    paper, rival, before : str
        The paper's figures; those of the methods it compares with; those of other implementations on the same
        data.
    bounds : tuple of Bound
        The expected range of the figures.
    """

    label: str
    experiment: Experiment
    paper: str = ""
    rival: str = ""
    before: str = ""
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """Rows with the same measures.

    Attributes
    ----------
    name : str
        For ``--only``.
    title, note : str
    measures : tuple of str
        Shown in the column "here".
    """

    name: str
    title: str
    note: str
    measures: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
    """A line of a plot.

    Attributes
    ----------
    label : str
    points : tuple of (x, Experiment)
        One experiment per point; ``x`` is a number, or the name of a measure.
    curve : str
        Name of the figures, if one experiment has figures for many ``x``.
    dashed : bool
        Whether the line is dashed, in the colour of the previous line.
    """

    label: str
    points: tuple[tuple[float | str, Experiment], ...]
    curve: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot.

    Attributes
    ----------
    name : str
        For ``--only``, and of the file.
    title : str
    x, y : str
        Names of the axes; ``y`` is a measure if lines have points of several experiments.
    lines : tuple of PlotLine
    log : bool
        Whether x is logarithmic.
    bars : bool
        Whether to draw bars side by side, in one group for each x, which is a word then.
    """

    name: str
    title: str
    x: str
    y: str
    lines: tuple[PlotLine, ...]
    log: bool = False
    bars: bool = False

    @property
    def experiments(self) -> list[Experiment]:
        """All experiments of the plot."""
        return [experiment for line in self.lines for _, experiment in line.points]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
