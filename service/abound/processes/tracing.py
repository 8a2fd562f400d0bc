"""OpenTelemetry: spans of requests (``request``, ``rank``, ``append``, ``apply``), and the trace ids of log lines.

Off unless ``ABOUND_TRACING`` is set; nothing of OpenTelemetry is imported then. A request continues the trace that its
header ``traceparent`` names (W3C Trace Context). The exporter, the sampler and the name of the service are set by
OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from abound_core.errors import CannotStart

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

FLUSH_SECONDS = 5.0  # longest time that the last spans may take to be sent, on stopping

_traceparent = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?").fullmatch


def given_trace_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the trace id in the ``traceparent`` of a request, or None."""
    match = next((_traceparent(value.strip()) for name, value in headers if name == b"traceparent"), None)
    return None if match is None else match[1].decode("ascii")


class Tracing:
    """Makes the spans of one process. With ``provider`` None they go to an OTLP endpoint over HTTP.

    Raises CannotStart if the libraries are not installed.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            self._provider = _exporting_provider() if provider is None else provider
        except ImportError as error:
            raise CannotStart(
                f"ABOUND_TRACING needs the extra otel ({error}): pip install 'abound[otel]', "
                "or build the image with EXTRAS=otel"
            ) from None
        self._context = context
        self._kinds = trace.SpanKind
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = self._provider.get_tracer("abound")

    def request(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> AbstractContextManager[Span]:
        """Return a context that is the span of a request, in the trace of its caller."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name[:5] == b"trace"}
        parent = self._propagator.extract(carrier, context=self._context.Context())
        attributes = {"http.request.method": method, "url.path": path}
        return self._tracer.start_as_current_span("request", parent, kind=self._kinds.SERVER, attributes=attributes)

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Span]:
        return self._tracer.start_as_current_span(name, attributes=attributes)

    def append(self) -> AppendSpans:
        return AppendSpans(self)

    def begin(self, name: str, parent: Any) -> Span:
        return self._tracer.start_span(name, parent)

    def current(self) -> Any:
        return self._context.get_current()

    def close(self) -> None:
        """Send the last spans, for at most ``FLUSH_SECONDS``."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_SECONDS)


class AppendSpans:
    """The spans of one request to append: ``append`` until it is durable in the log, then ``apply``."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._parent = tracing.current()
        self._open = tracing.begin("append", self._parent)

    def appended(self) -> None:
        self._open.end()
        self._open = self._tracing.begin("apply", self._parent)

    def end(self, _: object = None) -> None:
        self._open.end()


def trace_id_of(span: Span) -> str:
    return f"{span.get_span_context().trace_id:032x}"


def _exporting_provider() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    os.environ.setdefault("OTEL_SERVICE_NAME", "abound")
    provider = TracerProvider(resource=Resource.create())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
