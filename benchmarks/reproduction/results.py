"""The results file: figures of all experiments, stored beside the page and rewritten after each experiment."""

from __future__ import annotations

import json
import os
from pathlib import Path

from abound_core.errors import Malformed
from benchmarks.reproduction.experiment import Experiment
from benchmarks.reproduction.run import Figures

NAME = "figures.json"


class ResultsFile:
    """Figures by the id of their experiment.

    Parameters
    ----------
    folder : Path
        Folder of the file; created when the first figures are stored.

    Raises
    ------
    Malformed
        The file exists and cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._all = self._read()

    def _read(self) -> dict[str, Figures]:
        if not self._path.exists():
            return {}
        try:
            return {figures["id"]: figures for figures in json.loads(self._path.read_text("utf-8"))}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Malformed(f"{self._path} cannot be read: {error}") from error

    def figures_of(self, experiment: Experiment) -> Figures | None:
        """Return the figures of an experiment, or the reason why it was refused; None if it did not run."""
        return self._all.get(experiment.id)

    def is_done(self, experiment: Experiment, memory: int | None) -> bool:
        """Return whether a run would add nothing. An experiment that was refused with less memory runs again."""
        figures = self.figures_of(experiment)
        if figures is None:
            return False
        had = figures.get("memory")
        return "refused" not in figures or had is None or (memory is not None and memory <= had)

    def store(self, figures: Figures) -> None:
        """Store figures together with those that another run has written meanwhile. The file is replaced as a whole."""
        self._all = self._read()
        self._all[figures["id"]] = {name: _rounded(value) for name, value in figures.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(self._all[name], ensure_ascii=False) for name in sorted(self._all))
        part = self._path.with_suffix(".part")
        part.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        os.replace(part, self._path)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
