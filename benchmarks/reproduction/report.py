"""``benchmarks/notes/reproduction.md``: writes the tables from the stored figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

from benchmarks.reproduction.data_sets import SETS
from benchmarks.reproduction.experiment import Bound, Experiment, Plot, ResultTable, Row
from benchmarks.reproduction.results import ResultsFile
from benchmarks.reproduction.run import Figures
from benchmarks.sets import NAMES

NOT_RUN = "not run"

HEAD = """# Reproduction

This page compares the methods with the papers that describe them. It is written by
`python -m benchmarks.reproduction` from `{folder}/figures.json`, which has more figures than this
page. An interrupted run can be continued.

| column | meaning |
|---|---|
| paper | the figure in the paper |
| rivals | the other methods in the paper |
| others | other implementations on the same data |
| here | Abound, in per cent except HR and measures with another unit; of several seeds the mean (minimum to maximum) |
| expected | the range that was set before the run, and whether it was reached |
| fit | processor seconds to fit |
| rank | processor milliseconds to rank one instance |
| MB | size of the arrays of the model |

Parts of the papers that are not built or not repeated:

- Madani et al. (2009): the two worked cases of section 4.3.1, `p_ind` 0 (6.3.7; R@1 below 58 on
  RCV1), class prototypes (6.4.3) and the indegrees of classes (6.4.4).
- Mineiro and Karampatziakis (2015): the spectrum of the label covariance (4.3.2) and the
  second-order decoder.
- Wadbude et al. (2017): the joint method with dot products in place of cosines, and P@2 and P@4.
"""

COLUMNS = {"paper": "paper", "rival": "rivals", "before": "others"}
"""Columns that a table may lack, by the attribute of a row."""

WIDTH = 100

DIGITS = {"edges": 0, "HR": 3, "MRR": 3, "peak GB": 2}
"""Decimals of these measures; others have 1, and P, R and error have 2."""


def page(
    tables: Sequence[ResultTable], plots: Sequence[Plot], kept: ResultsFile, folder: str, drawn: Iterable[str]
) -> str:
    """Return the page as Markdown. ``drawn`` holds the names of the plots that exist in ``folder``."""
    experiments = [row.experiment for table in tables for row in table.rows]
    experiments += [experiment for plot in plots for experiment in plot.experiments]
    ids = {experiment.id: experiment for experiment in experiments}
    found = [figures for experiment in ids.values() if (figures := kept.figures_of(experiment)) is not None]
    parts = [HEAD.format(folder=folder), _summary(tables, kept, len(ids), found)]
    parts += [_table(table, kept) for table in tables]
    parts.append("## Plots\n")
    pictures = set(drawn)
    parts += [_plot(plot, kept, folder, plot.name in pictures) for plot in plots]
    return "\n".join(parts)


def _summary(tables: Sequence[ResultTable], kept: ResultsFile, n: int, found: Sequence[Figures]) -> str:
    lines = [f"{len(found)} of {n} experiments ran."]
    missed, above = [], []
    n_bounds = 0
    for table in tables:
        for row in table.rows:
            for bound, value in _values(row, kept):
                n_bounds += 1
                line = _wrapped(f"- {table.title}, {row.label}: expected {bound}, here {value:.2f}", "  ")
                if not bound.holds(value):
                    missed.append(line)
                elif bound.exceeds(value):
                    above.append(line)
    lines.append(f"{n_bounds - len(missed)} of {n_bounds} expected figures were reached.")
    for what, name in (("with", "Versions"), ("on", "Dates")):
        values = sorted({figures[what] for figures in found})
        if values:
            lines.append(f"{name}: {'; '.join(values)}.")
    listed = [
        part
        for title, found in (("Missed:", missed), ("Better than expected:", above))
        if found
        for part in ("", title, "", *found)
    ]
    return "\n".join([_wrapped(" ".join(lines)), *listed, ""])


def _table(table: ResultTable, kept: ResultsFile) -> str:
    columns = [name for name in COLUMNS if any(getattr(row, name) for row in table.rows)]
    names = [COLUMNS[name] for name in columns]
    head = ["", *names, "here: " + ", ".join(table.measures), "expected", "fit", "rank", "MB", "seeds"]
    note = _wrapped(f"`python -m benchmarks.reproduction --only {table.name}`. {table.note}")
    lines = [f"## {table.title}", "", note, ""]
    lines += [_cells(head), _cells(["---"] * len(head))]
    for row in table.rows:
        figures = kept.figures_of(row.experiment)
        left = [row.label, *(getattr(row, column) for column in columns)]
        lines.append(_cells([*left, *_here(row, figures, table.measures, _values(row, kept))]))
    commands = [f"- {row.label}: `{command(row.experiment)}`" for row in table.rows]
    return "\n".join([*lines, "", "<details><summary>Commands</summary>", "", *commands, "", "</details>", ""])


def _here(
    row: Row, figures: Figures | None, measures: Sequence[str], reached: Sequence[tuple[Bound, float]]
) -> list[str]:
    goals = "; ".join(map(str, row.bounds))
    if figures is None:
        return [NOT_RUN, goals, "", "", "", ""]
    if "refused" in figures:
        return [f"refused: {figures['refused']}", goals, "", "", "", ""]
    spread = figures.get("spread", {})
    shown = [_shown(name, figures["measures"].get(name), spread.get(name)) for name in measures]
    if reached:
        goals += ": yes" if all(bound.holds(value) for bound, value in reached) else ": **missed**"
    cost = figures.get("cost", {})
    costs = [f"{cost[name]:.{digits}f}" if name in cost else "" for name, digits in _COSTS]
    return [" / ".join(shown), goals, *costs, str(len(row.experiment.seeds))]


_COSTS = (("fit", 1), ("rank", 3), ("megabytes", 1))


def _values(row: Row, kept: ResultsFile) -> list[tuple[Bound, float]]:
    """Return each bound with the value that it bounds, if that is known."""
    own = _known(kept.figures_of(row.experiment))
    values = [
        (bound, bound.value(own, {} if bound.than is None else _known(kept.figures_of(bound.than))))
        for bound in row.bounds
    ]
    return [(bound, value) for bound, value in values if value is not None]


def _known(figures: Figures | None) -> dict[str, float]:
    found: dict[str, float] = {}
    return found if figures is None else found | figures.get("measures", {}) | figures.get("cost", {})


def _shown(name: str, value: float | None, spread: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    digits = DIGITS.get(name, 2 if name[1:2] == "@" or name == "error" else 1)
    text = f"{value:,.{digits}f}"
    if spread is None or digits == 0:
        return text
    return f"{text} ({spread[0]:,.{digits}f} to {spread[1]:,.{digits}f})"


def _plot(plot: Plot, kept: ResultsFile, folder: str, drawn: bool) -> str:
    ids = {experiment.id: experiment for experiment in plot.experiments}
    missing = sum(1 for experiment in ids.values() if kept.figures_of(experiment) is None)
    lines = [f"### {plot.title}", "", f"`python -m benchmarks.reproduction --only {plot.name}`."]
    if missing:
        lines[-1] += f" {missing} of its {len(ids)} experiments: {NOT_RUN}."
    if drawn:
        lines += ["", f"![{plot.title}]({folder}/{plot.name}.svg)"]
    return "\n".join([*lines, ""])


def command(experiment: Experiment) -> str:
    """Return the shell command that runs one experiment."""
    source = SETS.get(experiment.data)
    if source is None or not source.stored or experiment.each_pass or len(experiment.seeds) > 1:
        return f"python -m benchmarks.reproduction --only '{experiment.id}'"
    parts = [f"abound evaluate --train {experiment.data}/train.* --test {experiment.data}/test.*"]
    if NAMES.get(experiment.data) == "jsonl":
        parts.append("--ignore '*'")
    if not experiment.is_live:
        parts.append(f"--method {experiment.method}")
    elif experiment.params.get("passes", 1) != 1:
        parts.append(f"--passes {experiment.params['passes']}")
    parts += [f"--set {assignment}" for assignment in experiment.assignments]
    if experiment.hidden:
        parts.append(f"--hide-labels {experiment.hidden:g}")
    if experiment.depth != 100:
        parts.append(f"--depth {experiment.depth}")
    if experiment.seeds != (0,):
        parts.append(f"--seed {experiment.seeds[0]}")
    return " ".join(parts)


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cells(values: Iterable[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
