"""Drawing of the plots with matplotlib, as SVG: the same figures give the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from abound_core.errors import CannotStart
from benchmarks.reproduction.experiment import Plot, PlotLine
from benchmarks.reproduction.results import ResultsFile

SIZE = (6.4, 4.0)

FEW = 5
"""Up to this many lines, the legend is inside the plot."""

MARKERS = "os^vD*P"
"""Markers of points; with the ten colours there are 70 different ones."""


def load_pyplot() -> Any:
    """Return matplotlib's pyplot, set up without a screen.

    Raises
    ------
    CannotStart
        matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise CannotStart("the plots need matplotlib: pip install 'abound[bench]'") from error
    matplotlib.use("svg")
    # By default the ids and the date of an SVG differ each time.
    matplotlib.rcParams |= {"svg.hashsalt": "abound", "svg.fonttype": "none", "font.size": 9}
    from matplotlib import pyplot

    return pyplot


def draw(plots: tuple[Plot, ...], kept: ResultsFile, folder: Path) -> list[str]:
    """Draw all plots that have figures into ``folder``. Return the names of the drawn plots."""
    pyplot = load_pyplot()
    drawn = []
    for plot in plots:
        found = [(line, _points(line, plot.y, kept)) for line in plot.lines]
        known = [(line, points) for line, points in found if points[0]]
        if not known:
            continue
        lines = [(line.label, *points) for line, points in known]
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        if plot.bars:
            _bars(axes, lines)
        elif all(len(xs) == 1 for _, xs, _ in lines):
            _named_points(axes, lines)
        else:
            for line, (xs, ys) in known:
                same = {"color": axes.lines[-1].get_color(), "linestyle": "--"} if line.dashed and axes.lines else {}
                axes.plot(xs, ys, label=line.label, marker=".", linewidth=1, **same)
        if plot.log:
            axes.set_xscale("log")
        axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
        axes.grid(alpha=0.3)
        beside = len(lines) > FEW or all(len(xs) == 1 for _, xs, _ in lines)
        axes.legend(fontsize=7, **({"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {}))
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{plot.name}.svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
        drawn.append(plot.name)
    return drawn


def _points(line: PlotLine, measure: str, kept: ResultsFile) -> tuple[list[Any], list[float]]:
    """Return x and y of a line, as far as there are figures."""
    xs: list[Any] = []
    ys: list[float] = []
    for x, experiment in line.points:
        figures = kept.figures_of(experiment)
        if figures is None or "refused" in figures:
            continue
        if line.curve:
            across, up = figures["curve"][str(x)], figures["curve"][line.curve]
            xs, ys = [*xs, *across], [*ys, *up]
            continue
        known = figures["measures"] | figures.get("cost", {})
        shown = measure if measure in known else x  # bars of several measures have the measure as their x
        if shown in known and (not isinstance(x, str) or not x.startswith("cost ") or x[5:] in known):
            xs.append(max(known[x[5:]], 1e-3) if isinstance(x, str) and x.startswith("cost ") else x)
            ys.append(known[shown])
    return xs, ys


def _named_points(axes: Any, lines: list[tuple[str, list[Any], list[float]]]) -> None:
    """Draw a marker for each point, with a legend at the side, best first: labels at the points would overlap."""
    for number, (label, xs, ys) in enumerate(sorted(lines, key=lambda line: -line[2][0])):
        axes.plot(xs, ys, MARKERS[number % len(MARKERS)], color=f"C{number % 10}", label=label, linestyle="none")


def _bars(axes: Any, lines: list[tuple[str, list[Any], list[float]]]) -> None:
    groups = list(dict.fromkeys(x for _, xs, _ in lines for x in xs))
    width = 0.8 / len(lines)
    for number, (label, xs, ys) in enumerate(lines):
        places = [groups.index(x) + (number - (len(lines) - 1) / 2) * width for x in xs]
        axes.bar(places, ys, width, label=label)
    axes.set_xticks(range(len(groups)), groups)
    lowest = min(y for _, _, ys in lines for y in ys)
    axes.set_ylim(bottom=max(0.0, lowest - 5))
