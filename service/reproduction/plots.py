"""The pictures, by matplotlib, as SVG: the same figures give the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.errors import CannotStart
from service.reproduction.experiment import Line, Plot
from service.reproduction.kept import Kept

SIZE = (6.4, 4.0)


def drawing() -> Any:
    """matplotlib's pyplot, without a screen.

    Raises
    ------
    CannotStart
        It is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise CannotStart("the plots need matplotlib: pip install 'abound[bench]'") from error
    matplotlib.use("svg")
    # Ids and the date of an SVG would be others each time.
    matplotlib.rcParams |= {"svg.hashsalt": "abound", "svg.fonttype": "none", "font.size": 9}
    from matplotlib import pyplot

    return pyplot


def draw(plots: tuple[Plot, ...], kept: Kept, folder: Path) -> list[str]:
    """Draw what has figures, into ``folder``; the names of the plots that lie there now."""
    pyplot = drawing()
    drawn = []
    for plot in plots:
        lines = [(line.label, *points) for line in plot.lines if (points := _points(line, plot.y, kept))[0]]
        if not lines:
            continue
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        if plot.bars:
            _bars(axes, lines)
        elif all(len(xs) == 1 for _, xs, _ in lines):
            _named_points(axes, lines)
        else:
            for label, xs, ys in lines:
                axes.plot(xs, ys, label=label, marker=".", linewidth=1)
        if plot.log:
            axes.set_xscale("log")
        axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=7)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{plot.name}.svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
        drawn.append(plot.name)
    return drawn


def _points(line: Line, measure: str, kept: Kept) -> tuple[list[Any], list[float]]:
    """x and y of a line, as far as there are figures."""
    xs: list[Any] = []
    ys: list[float] = []
    for x, experiment in line.points:
        figures = kept.of(experiment)
        if figures is None or "refused" in figures:
            continue
        if line.curve:
            across, up = figures["curve"][str(x)], figures["curve"][line.curve]
            xs, ys = [*xs, *across], [*ys, *up]
            continue
        known = figures["measures"] | figures.get("cost", {})
        if measure in known and (not isinstance(x, str) or not x.startswith("cost ") or x[5:] in known):
            xs.append(max(known[x[5:]], 1e-3) if isinstance(x, str) and x.startswith("cost ") else x)
            ys.append(known[measure])
    return xs, ys


def _named_points(axes: Any, lines: list[tuple[str, list[Any], list[float]]]) -> None:
    """A name beside each point: there are more of them than colours."""
    for label, xs, ys in lines:
        axes.plot(xs, ys, marker="o", markersize=4, color="C0")
        axes.annotate(label, (xs[0], ys[0]), (4, 3), textcoords="offset points", fontsize=7)
    axes.margins(x=0.15)


def _bars(axes: Any, lines: list[tuple[str, list[Any], list[float]]]) -> None:
    groups = list(dict.fromkeys(x for _, xs, _ in lines for x in xs))
    width = 0.8 / len(lines)
    for number, (label, xs, ys) in enumerate(lines):
        places = [groups.index(x) + (number - (len(lines) - 1) / 2) * width for x in xs]
        axes.bar(places, ys, width, label=label)
    axes.set_xticks(range(len(groups)), groups)
    lowest = min(y for _, _, ys in lines for y in ys)
    axes.set_ylim(bottom=max(0.0, lowest - 5))
