"""All tables and plots, and in which order their experiments run."""

from __future__ import annotations

from collections.abc import Iterable

from abound.service.evaluation.reproduction import embeddings, indexes, large, neighbors, plots
from abound.service.evaluation.reproduction.experiment import Experiment

TABLES = (*indexes.TABLES, *neighbors.TABLES, *embeddings.TABLES, *large.TABLES)
PLOTS = plots.PLOTS

QUICK = 4.0
"""Seconds that an experiment of ``--quick`` takes at most."""


def wanted(names: Iterable[str], *, quick: bool) -> list[Experiment]:
    """The experiments of tables and plots with these names, or with these ids; all where no name is given.

    Each once: cheap ones first, and those on the same data together.

    Raises
    ------
    KeyError
        There is no such table, plot or experiment; its argument is the name.
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
    kept = [experiment for experiment in chosen.values() if not quick or experiment.seconds <= QUICK]
    return sorted(kept, key=_order)


def _order(experiment: Experiment) -> tuple[int, str, bool, float]:
    bucket = sum(experiment.seconds > bound for bound in (QUICK, 30, 120, 600))
    return bucket, experiment.data, bool(experiment.params.get("boolean")), experiment.seconds
