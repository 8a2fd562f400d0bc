"""What the service tells about itself: measures for Prometheus, and log lines.

The hot routes count in plain integers (:class:`Meter`); once a second, and whenever ``/metrics`` is asked, these are
added to the Prometheus objects. With several processes on one port, prometheus-client keeps its values in files
(``PROMETHEUS_MULTIPROC_DIR``) and any process answers for all.

Counting how long things took, in plain integers: what is done many thousand times a second can afford it.
"""

from __future__ import annotations

import logging
import os
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

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

if TYPE_CHECKING:
    from abound.service.jobs.submission import Figures

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that the present task answers; every log line that it causes carries it."""

GaugeMode = Literal["livemax", "livemin", "livesum", "liveall"]


class Durations(Histogram):
    """A histogram that takes many observations at once."""

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add ``counts[i]`` observations to class i, whose values sum to ``total``."""
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)


class Meter:
    """Counts the requests of one route in plain integers."""

    __slots__ = ("_statuses", "_timer", "route")

    def __init__(self, route: str) -> None:
        self.route = route
        self._statuses: dict[int, int] = {}
        self._timer = Timer()

    def note(self, status: int, seconds: float | None) -> None:
        """One request was answered; without ``seconds`` one that took as long as its client sent lines."""
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if seconds is not None:
            self._timer.note(seconds)

    def take(self) -> tuple[dict[int, int], list[int], float]:
        """Requests by status, by class of duration, and seconds in all, since it was last asked."""
        statuses, self._statuses = self._statuses, {}
        return statuses, *self._timer.take()


class Living(Collector):
    """What a registry has, without the samples of models that are gone."""

    def __init__(self, every: CollectorRegistry, models: set[str]) -> None:
        self._every = every
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """The metrics, where a sample is left."""
        for metric in self._every.collect():
            metric.samples = [
                sample for sample in metric.samples if sample.labels.get("model", "") in ("", *self._models)
            ]
            if metric.samples:
                yield metric


class Telemetry:
    """The measures of one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._several = bool(os.environ.get(MULTIPROCESS_VARIABLE))
        self._registry = CollectorRegistry()
        if not self._several:
            ProcessCollector(registry=self._registry)
            PlatformCollector(registry=self._registry)
        self._meters: dict[str, Meter] = {}
        registry = self._registry
        self._requests = Counter("abound_requests", "Requests answered.", ("route", "status"), registry=registry)
        self._seconds = Durations(
            "abound_request_duration_seconds",
            "From the head of a request to the end of its answer.",
            ("route",),
            buckets=BOUNDS,
            registry=registry,
        )
        self._learned = self._gauge("abound_model_learned_instances", "Instances learned.", "livemax")
        self._features = self._gauge("abound_model_features", "Features held.", "livemax")
        self._classes = self._gauge("abound_model_classes", "Classes held.", "livemax")
        self._connections = self._gauge("abound_model_connections", "Connections held.", "livemax")
        self._bytes = self._gauge("abound_model_memory_bytes", "Memory of the models, all processes.", "livesum")
        self._lag = self._gauge("abound_log_lag_entries", "Entries behind the log, the worst process.", "livemax")
        self._kept = {
            "log_entries": self._gauge("abound_log_entries", "Entries of the log in the store.", "livemax"),
            "log_bytes": self._gauge("abound_log_bytes", "Size of the log in the store, once applied.", "livemax"),
            "log_max_bytes": self._gauge("abound_log_max_bytes", "Size at which learning is refused.", "livemin"),
            "history_bytes": self._gauge("abound_history_bytes", "Size of history.", "livemax"),
            "history_segments": self._gauge("abound_history_segments", "Segments of history.", "livemax"),
            "history_beginning": self._gauge(
                "abound_history_beginning_timestamp_seconds", "Where history begins; 0: at the first event.", "livemax"
            ),
            "snapshot_age": self._gauge(
                "abound_snapshot_age_seconds", "Since the newest snapshot was made; 0 without one.", "livemax"
            ),
            "untrimmed": self._gauge(
                "abound_log_untrimmed", "1 while the worker cannot make a snapshot or trim the log.", "livemax"
            ),
            "index_bytes": self._gauge(
                "abound_index_bytes", "Size of indexes in the artifact store that were made to be adopted.", "livemax"
            ),
            "contenders": self._gauge("abound_contenders", "Versions and others that are compared.", "livemax"),
            "scored_share": self._gauge(
                "abound_contenders_scored_ratio", "Share of the instances that they are asked about.", "livemax"
            ),
            "promotions": self._gauge("abound_gate_promotions", "Times the gate let a version take over.", "livemax"),
            "rollbacks": self._gauge("abound_gate_rollbacks", "Times the gate took one back.", "livemax"),
            "drift_marks": self._gauge("abound_drift_marks", "Drift marks that are kept.", "livemax"),
            "blend_weight": self._gauge(
                "abound_blend_version_weight", "Of the version, in the blend that leads.", "livemax"
            ),
        }
        self._appends = Durations(
            "abound_append_duration_seconds",
            "From sending a group of events to the store's word that they are durable, by what was asked of it.",
            ("model", "lane"),
            buckets=BOUNDS,
            registry=registry,
        )
        self._waiting = {
            "waiting_requests": self._gauge(
                "abound_append_waiting_requests", "Requests that wait to be appended.", "livesum"
            ),
            "waiting_bytes": self._gauge("abound_append_waiting_bytes", "Bytes that wait to be appended.", "livesum"),
        }
        self._rankings = Durations(
            "abound_rank_duration_seconds",
            "Ranking by versions, what waited at a time: version, or blend where there was one among it.",
            ("kind",),
            buckets=BOUNDS,
            registry=registry,
        )
        self._serving = {
            "activated": self._gauge(
                "abound_model_activated_timestamp_seconds",
                "Since when a version is active; 0: the index is.",
                "livemax",
            ),
            "loaded": self._gauge("abound_model_loaded_versions", "Versions in memory, all processes.", "livesum"),
        }
        self._refused = Counter(
            "abound_refused", "Requests and lines answered with a problem, by its kind.", ("reason",), registry=registry
        )
        self._unchecked = Counter(
            "abound_rates_unchecked", "Instances let through while the store could not count them.", registry=registry
        )
        self._connected = Gauge(
            "abound_log_connected",
            "1 while every process is connected to the log.",
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._models: set[str] = set()
        self._jobs = self._of_jobs("abound_jobs", "Jobs by state.", ("state",))
        self._jobs_ended = self._of_jobs("abound_jobs_ended", "Jobs that ended, ever.", ("method", "state"))
        self._jobs_seconds = self._of_jobs(
            "abound_jobs_ended_seconds", "Seconds that they ran, in all.", ("method", "state")
        )
        self._jobs_workers = self._of_jobs("abound_jobs_workers", "Workers that are there, by kind of job.", ("kind",))

    def _gauge(self, name: str, documentation: str, mode: GaugeMode) -> Gauge:
        return Gauge(name, documentation, ("model",), multiprocess_mode=mode, registry=self._registry)

    def _of_jobs(self, name: str, documentation: str, labels: tuple[str, ...]) -> Gauge:
        # Every process sees the same in the store; the newest is the best.
        return Gauge(name, documentation, labels, multiprocess_mode="livemostrecent", registry=self._registry)

    def meter(self, route: str) -> Meter:
        """The meter of a route; the same one for the same route."""
        return self._meters.setdefault(route, Meter(route))

    def flush(self) -> None:
        """Add what the meters counted."""
        for route, meter in self._meters.items():
            statuses, counts, total = meter.take()
            if not statuses:
                continue
            for status, count in statuses.items():
                self._requests.labels(route, str(status)).inc(count)
            self._seconds.labels(route).add(counts, total)

    def count_refused(self, by_reason: Mapping[str, int]) -> None:
        """So many more problems were told."""
        for reason, n in by_reason.items():
            self._refused.labels(reason).inc(n)

    def count_unchecked(self, n: int) -> None:
        """``n`` more instances were let through without the store counting them."""
        self._unchecked.inc(n)

    def add_appends(self, model: str, lane: str, counts: Sequence[int], total: float) -> None:
        """Groups of events that were appended, by class of duration, and seconds in all."""
        if any(counts):
            self._appends.labels(model, lane).add(counts, total)

    def add_rankings(self, kind: str, counts: Sequence[int], total: float) -> None:
        """Rankings by versions, by class of duration, and seconds in all."""
        if any(counts):
            self._rankings.labels(kind).add(counts, total)

    def set_log(self, connected: bool) -> None:
        """Whether this process is connected to the log."""
        self._connected.set(connected)

    def set_models(self, figures: dict[str, dict[str, float]]) -> None:
        """Figures by model: learned, features, ..., and those of ``Kept.figures``. Other models are forgotten."""
        gauges = {
            "learned": self._learned,
            "features": self._features,
            "classes": self._classes,
            "connections": self._connections,
            "memory": self._bytes,
            "lag": self._lag,
            **self._kept,
            **self._waiting,
            **self._serving,
        }
        for model, values in figures.items():
            for name, gauge in gauges.items():
                gauge.labels(model).set(values.get(name, 0))
        for model in self._models - figures.keys():
            for gauge in gauges.values():
                if not self._several:  # what lies in files cannot be taken out of them
                    gauge.remove(model)
        self._models = set(figures)

    def set_jobs(self, figures: Figures) -> None:
        """Jobs, as the store has them."""
        for state, n in figures.counts.items():
            self._jobs.labels(state).set(n)
        for total in figures.totals:
            self._jobs_ended.labels(total.method, total.state).set(total.n)
            self._jobs_seconds.labels(total.method, total.state).set(total.seconds)
        for kind, workers in figures.workers.items():
            self._jobs_workers.labels(kind).set(len(workers))

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format; over all processes where there are several."""
        if not self._several:
            return generate_latest(self._registry)
        every = CollectorRegistry()
        MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        living = CollectorRegistry(auto_describe=False)
        living.register(Living(every, self._models))
        return generate_latest(living)

    content_type = CONTENT_TYPE_LATEST


def configure_logging(level: str, form: Literal["text", "json"]) -> None:
    """Send the log lines of the product and of its libraries to standard error, in one form."""
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
        # Without the locals, which hold keys, instances and labels
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
    """Name the request that a log line comes from, if one does."""
    request_id = REQUEST_ID.get()
    if request_id is not None:
        line.setdefault("request_id", request_id)
    return line


def escape_controls(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep what others sent from looking like lines of its own: control characters as ``\\n``, ``\\x1b``."""
    for name, value in line.items():
        if isinstance(value, str) and not value.isprintable() and name != "exception":
            line[name] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return line


def _uvicorn_loggers() -> Iterator[str]:
    yield from ("uvicorn", "uvicorn.error", "uvicorn.access")


BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of durations, seconds."""


class Timer:
    """Durations by class, and their sum."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def note(self, seconds: float) -> None:
        """One thing was done."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def take(self) -> tuple[list[int], float]:
        """Durations by class, and seconds in all, since it was last asked."""
        taken = self._counts, self._total
        self._counts, self._total = [0] * (len(BOUNDS) + 1), 0.0
        return taken
