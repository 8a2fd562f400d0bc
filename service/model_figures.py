"""Figures by model for ``/metrics``: one number for each model and gauge, over all processes of a service.

prometheus-client takes about 50 us for each sample, more than a second for a thousand models. So the figures of all
models are plain lists, and their text is written here. With several processes each one writes its figures to a file
beside those of prometheus-client; any process reads all of them, and the supervisor deletes the file of a process
that has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, KeysView, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec


class ModelGauge(NamedTuple):
    """A gauge with a value for each model.

    Attributes
    ----------
    name, documentation : str
    over_processes : function
        Makes one value of those of all processes.
    """

    name: str
    documentation: str
    over_processes: Callable[[Iterable[float]], float] = max


GAUGES = {
    "learned": ModelGauge("abound_model_learned_instances", "Instances learned."),
    "features": ModelGauge("abound_model_features", "Features in the index."),
    "classes": ModelGauge("abound_model_classes", "Classes in the index."),
    "connections": ModelGauge("abound_model_connections", "Connections in the index."),
    "memory": ModelGauge("abound_model_memory_bytes", "Memory of the models in all processes.", sum),
    "lag": ModelGauge("abound_log_lag_entries", "Entries behind the log, of the slowest process."),
    "log_entries": ModelGauge("abound_log_entries", "Entries of the log in the store."),
    "log_bytes": ModelGauge("abound_log_bytes", "Size of the log in the store, as far as applied."),
    "log_max_bytes": ModelGauge("abound_log_max_bytes", "Size at which learning is refused.", min),
    "history_bytes": ModelGauge("abound_history_bytes", "Size of history."),
    "history_segments": ModelGauge("abound_history_segments", "Number of history segments."),
    "history_beginning": ModelGauge(
        "abound_history_beginning_timestamp_seconds", "First time in history; 0: the first event."
    ),
    "snapshot_age": ModelGauge("abound_snapshot_age_seconds", "Age of the newest snapshot; 0 without one."),
    "untrimmed": ModelGauge("abound_log_untrimmed", "1 while the worker cannot make a snapshot or trim the log."),
    "index_bytes": ModelGauge("abound_index_bytes", "Size of the state files for adoptions in the artifact store."),
    "challengers": ModelGauge("abound_challengers", "Challengers that are compared."),
    "promotions": ModelGauge("abound_gate_promotions", "Promotions of a version by the gate."),
    "rollbacks": ModelGauge("abound_gate_rollbacks", "Rollbacks by the gate."),
    "waiting_requests": ModelGauge("abound_append_waiting_requests", "Requests in the append queues.", sum),
    "waiting_bytes": ModelGauge("abound_append_waiting_bytes", "Bytes in the append queues.", sum),
    "activated": ModelGauge(
        "abound_model_activated_timestamp_seconds",
        "Time of the activation of the active version; 0: the index is active.",
    ),
    "loaded": ModelGauge("abound_model_loaded_versions", "Versions in memory of all processes.", sum),
}

Rows = dict[str, list[float]]
"""By model, a number for each of ``GAUGES``."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Rows).decode


def file_of(folder: Path, pid: int) -> Path:
    """Return the file with the figures of a process."""
    return folder / f"models_{pid}.json"


class ModelFigures:
    """The figures of the models of this process.

    Parameters
    ----------
    folder : Path or None
        Where all processes of the service write their figures; None: there is one process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rows: Rows = {}

    def set(self, figures: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the figures of all models; a missing one is 0."""
        self._rows = {model: [float(own.get(name, 0)) for name in GAUGES] for model, own in figures.items()}
        if self._folder is not None:
            file = file_of(self._folder, os.getpid())
            unfinished = file.with_suffix(".new")
            unfinished.write_bytes(_encode(self._rows))
            unfinished.replace(file)

    @property
    def models(self) -> KeysView[str]:
        """The models of this process."""
        return self._rows.keys()

    def exposition(self) -> bytes:
        """Return the figures of the models of this process, over all processes, in Prometheus' text format."""
        every = self._of_all_processes()
        lines = []
        for at, gauge in enumerate(GAUGES.values()):
            lines.append(f"# HELP {gauge.name} {gauge.documentation}\n# TYPE {gauge.name} gauge\n")
            name = gauge.name + '{model="'
            if len(every) == 1:
                lines += [f'{name}{model}"}} {row[at]!r}\n' for model, row in every[0].items()]
                continue
            for model in every[0]:
                value = gauge.over_processes([rows[model][at] for rows in every if model in rows])
                lines.append(f'{name}{model}"}} {value!r}\n')
        return "".join(lines).encode() if every[0] else b""

    def _of_all_processes(self) -> list[Rows]:
        """Return the figures of this process, and then those of the others."""
        every = [self._rows]
        if self._folder is not None:
            own = file_of(self._folder, os.getpid())
            for file in sorted(self._folder.glob("models_*.json")):
                if file == own:
                    continue
                with suppress(FileNotFoundError):  # its process has just ended
                    every.append(_decode(file.read_bytes()))
        return every
