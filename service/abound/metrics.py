"""Prometheus metrics and logging of the service.

The hot routes count in plain integers (:class:`RequestMeter`, :class:`DurationCounter`), which are cheap enough for
code that runs many thousand times a second. Once a second, and on each request for ``/metrics``, the counts are added
to the Prometheus objects. With several processes on one port, prometheus-client keeps its values in files
(``PROMETHEUS_MULTIPROC_DIR``) and any process answers for all.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import structlog
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

# Id of the request that the current task answers; every log line that it causes carries it
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)

# Id of the request's trace, if requests are logged or traced; log lines carry it, too
TRACE_ID: ContextVar[str | None] = ContextVar("trace_id", default=None)


class JobStatistics(NamedTuple):
    """Statistics of jobs, as read from the store."""

    counts: dict[str, int]  # by state
    ended: dict[tuple[str, str], tuple[int, float]]  # number and total seconds, by method and final state
    workers: dict[str, int]  # by kind


class BatchHistogram(Histogram):
    def add(self, counts: Sequence[int], total: float) -> None:
        """Add ``counts[i]`` observations to bucket i; ``total`` is the sum of all their values."""
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)


class RequestMeter:
    __slots__ = ("_drained", "_statuses", "_timer", "route")

    def __init__(self, route: str) -> None:
        self.route = route
        self._statuses: dict[int, int] = {}
        self._timer = DurationCounter()
        self._drained = [0] * (len(BOUNDS) + 1)

    def observe(self, status: int, seconds: float | None) -> None:
        """Count an answered request; ``seconds`` is None for a stream, whose duration the client determines."""
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if seconds is not None:
            self._timer.observe(seconds)

    def drain(self) -> tuple[dict[int, int], list[int], float]:
        """Return and reset the requests by status, the durations by bucket, and their sum in seconds."""
        statuses, self._statuses = self._statuses, {}
        counts, total = self._timer.drain()
        self._drained = [n + more for n, more in zip(self._drained, counts, strict=True)]
        return statuses, counts, total

    def durations(self) -> list[int]:
        """The durations of all requests since the start of the process, by bucket."""
        return [n + more for n, more in zip(self._drained, self._timer.counts, strict=True)]


class LiveModelsCollector(Collector):
    """Collects the metrics of a registry without the samples of deleted models."""

    def __init__(self, every: CollectorRegistry, models: Collection[str]) -> None:
        self._every = every
        self._known = {"", *models}

    def collect(self) -> Iterator[Metric]:
        for metric in self._every.collect():
            metric.samples = [sample for sample in metric.samples if sample.labels.get("model", "") in self._known]
            if metric.samples:
                yield metric


class ModelGauge(NamedTuple):
    name: str
    documentation: str
    over_processes: Callable[[Iterable[float]], float] = max  # makes one value of those of all processes


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

Rows = dict[str, list[float]]  # by model, a number for each of ``GAUGES``

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Rows).decode


class ModelFigures:
    """A number for each model and gauge, over all processes of a service.

    prometheus-client takes about 25 us for each sample, most of a second for a thousand models. So the figures of all
    models are plain lists, and their text is written here. With several processes each one writes its figures to a
    file in ``folder``, beside those of prometheus-client, and any process reads all of them. The supervisor deletes
    the file of a process that has ended.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rows: Rows = {}

    def set(self, figures: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the figures of all models; a missing one is 0."""
        self._rows = {model: [float(own.get(name, 0)) for name in GAUGES] for model, own in figures.items()}
        if self._folder is not None:
            file = self._folder / _file_of(os.getpid())
            unfinished = file.with_suffix(".new")
            unfinished.write_bytes(_encode(self._rows))
            unfinished.replace(file)

    @property
    def models(self) -> KeysView[str]:
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
            own = self._folder / _file_of(os.getpid())
            for file in sorted(self._folder.glob(_file_of("*"))):
                if file == own:
                    continue
                with suppress(FileNotFoundError):  # its process has just ended
                    every.append(_decode(file.read_bytes()))
        return every


def _file_of(pid: int | str) -> str:
    """The name begins as those of the gauges of the process do."""
    return f"gauge_livemodels_{pid}.json"


class Telemetry:
    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._several = bool(os.environ.get(MULTIPROCESS_VARIABLE))
        self._registry = CollectorRegistry()
        if not self._several:
            ProcessCollector(registry=self._registry)
            PlatformCollector(registry=self._registry)
        self._meters: dict[str, RequestMeter] = {}
        registry = self._registry
        self._requests = Counter("abound_requests", "Requests answered.", ("route", "status"), registry=registry)
        self._seconds = BatchHistogram(
            "abound_request_duration_seconds",
            "Seconds from the head of a request to the end of its response.",
            ("route",),
            buckets=BOUNDS,
            registry=registry,
        )
        Gauge(
            "abound_build_info",
            "1, with the version of the product and the host.",
            ("version", "host"),
            multiprocess_mode="livemax",
            registry=registry,
        ).labels(metadata.version("abound"), socket.gethostname()).set(1)
        self._appends = BatchHistogram(
            "abound_append_duration_seconds",
            "Seconds from sending a group of events to the store's confirmation that they are durable.",
            buckets=BOUNDS,
            registry=registry,
        )
        self._rankings = BatchHistogram(
            "abound_rank_duration_seconds",
            "Seconds of one batch of rankings by versions.",
            buckets=BOUNDS,
            registry=registry,
        )
        self._refused = Counter(
            "abound_refused", "Requests and lines answered with a problem, by reason.", ("reason",), registry=registry
        )
        self._classified = Counter(
            "abound_classified_instances", "Instances classified.", ("model",), registry=registry
        )
        self._unchecked = Counter(
            "abound_rates_unchecked", "Instances passed while the store could not count them.", registry=registry
        )
        self._connected = Gauge(
            "abound_log_connected",
            "1 while every process is connected to the log.",
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._figures = ModelFigures(Path(os.environ[MULTIPROCESS_VARIABLE]) if self._several else None)
        self._jobs = self._of_jobs("abound_jobs", "Jobs by state.", ("state",))
        self._jobs_ended = self._of_jobs("abound_jobs_ended", "Jobs that have ended so far.", ("method", "state"))
        self._jobs_seconds = self._of_jobs(
            "abound_jobs_ended_seconds", "Total run time of ended jobs.", ("method", "state")
        )
        self._jobs_workers = self._of_jobs("abound_jobs_workers", "Live workers, by kind of job.", ("kind",))

    def _of_jobs(self, name: str, documentation: str, labels: tuple[str, ...]) -> Gauge:
        # Every process reads the same figures from the store; the newest value is the best.
        return Gauge(name, documentation, labels, multiprocess_mode="livemostrecent", registry=self._registry)

    def meter(self, route: str) -> RequestMeter:
        return self._meters.setdefault(route, RequestMeter(route))

    def flush(self) -> None:
        for route, meter in self._meters.items():
            statuses, counts, total = meter.drain()
            if not statuses:
                continue
            for status, count in statuses.items():
                self._requests.labels(route, str(status)).inc(count)
            self._seconds.labels(route).add(counts, total)

    def count_refused(self, by_reason: Mapping[str, int]) -> None:
        for reason, n in by_reason.items():
            self._refused.labels(reason).inc(n)

    def count_unchecked(self, n: int) -> None:
        """Count instances that passed although the store could not count them for the rate limit."""
        self._unchecked.inc(n)

    def count_classified(self, model: str, n: int) -> None:
        """With ``n`` 0 the model has a sample before its first request."""
        if n or model not in self._figures.models:
            self._classified.labels(model).inc(n)

    def add_appends(self, counts: Sequence[int], total: float) -> None:
        if any(counts):
            self._appends.add(counts, total)

    def add_rankings(self, counts: Sequence[int], total: float) -> None:
        if any(counts):
            self._rankings.add(counts, total)

    def set_connected(self, connected: bool) -> None:
        self._connected.set(connected)

    def set_models(self, figures: dict[str, dict[str, float]]) -> None:
        """Set the figures by model (``GAUGES``). Drop all other models."""
        if not self._several:  # values in the files of several processes cannot be removed
            for model in self._figures.models - figures.keys():
                self._classified.remove(model)
        self._figures.set(figures)

    def set_jobs(self, figures: JobStatistics) -> None:
        for state, n in figures.counts.items():
            self._jobs.labels(state).set(n)
        for (method, state), (n, seconds) in figures.ended.items():
            self._jobs_ended.labels(method, state).set(n)
            self._jobs_seconds.labels(method, state).set(seconds)
        for kind, n_workers in figures.workers.items():
            self._jobs_workers.labels(kind).set(n_workers)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format, over all processes if there are several."""
        registry = self._registry
        if self._several:
            every = CollectorRegistry()
            MultiProcessCollector(every)  # type: ignore[no-untyped-call]
            registry = CollectorRegistry(auto_describe=False)
            registry.register(LiveModelsCollector(every, self._figures.models))
        return generate_latest(registry) + self._figures.exposition()

    content_type = CONTENT_TYPE_LATEST


def configure_logging(level: str, form: Literal["text", "json"]) -> None:
    """Send the log lines of the product and of its libraries to standard error, in one format."""
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_request_id,
        escape_controls,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer()
    if form == "text":
        # Tracebacks without local variables, which hold keys, instances and labels.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        before.pop()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _uvicorn_loggers():
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def add_request_id(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids of the current request and its trace to a log line."""
    request_id = REQUEST_ID.get()
    if request_id is not None:
        line.setdefault("request_id", request_id)
        trace_id = TRACE_ID.get()
        if trace_id is not None:
            line.setdefault("trace_id", trace_id)
    return line


def escape_controls(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters (``\\n``, ``\\x1b``), so that text from clients cannot forge log lines."""
    for name, value in line.items():
        if isinstance(value, str) and not value.isprintable() and name != "exception":
            line[name] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return line


def _uvicorn_loggers() -> Iterator[str]:
    yield from ("uvicorn", "uvicorn.error", "uvicorn.access")


# Upper bounds of the duration buckets, in seconds.
BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class DurationCounter:
    __slots__ = ("_total", "counts")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def drain(self) -> tuple[list[int], float]:
        """Return and reset the counts by bucket and the sum in seconds."""
        taken = self.counts, self._total
        self.counts, self._total = [0] * (len(BOUNDS) + 1), 0.0
        return taken
