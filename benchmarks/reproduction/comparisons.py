"""All tables and plots, and the order in which their experiments run."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.reproduction import embeddings, indexes, large, neighbors, plots
from benchmarks.reproduction.experiment import Experiment

TABLES = (*indexes.TABLES, *neighbors.TABLES, *embeddings.TABLES, *large.TABLES)
PLOTS = plots.PLOTS

QUICK_SECONDS = 4.0
"""Longest duration of an experiment that ``--quick`` runs, in seconds."""


def select_experiments(names: Iterable[str], *, quick: bool) -> list[Experiment]:
    """Return the experiments with these ids, or of the tables and plots with these names; all if no name is
    given.

    Each experiment is returned once: cheap ones first, and those on the same data together.

    Raises
    ------
    KeyError
        There is no such table, plot or experiment; the argument of the error is the name.
    """
    sources = {table.name: [row.experiment for row in table.rows] for table in TABLES}
    sources |= {plot.name: plot.experiments for plot in PLOTS}
    everything = {experiment.id: experiment for found in sources.values() for experiment in found}
    chosen = dict(everything)
    given = list(names)
    if given:
        chosen = {}
        for name in given:
            if name not in sources and name not in everything:
                raise KeyError(name)
            found = sources.get(name) or [everything[name]]
            chosen |= {experiment.id: experiment for experiment in found}
    kept = [experiment for experiment in chosen.values() if not quick or experiment.seconds <= QUICK_SECONDS]
    return sorted(kept, key=_order)


def _order(experiment: Experiment) -> tuple[int, str, bool, float]:
    bucket = sum(experiment.seconds > bound for bound in (QUICK_SECONDS, 30, 120, 600))
    return bucket, experiment.data, bool(experiment.params.get("boolean")), experiment.seconds
