"""Requests as spans of OpenTelemetry, and trace ids in the log lines."""

import asyncio
import sys
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from abound import AsyncClient, Client
from abound.api import app
from abound.processes import tracing
from abound_core.errors import CannotStart
from tests.client.mock_service import Script, client
from tests.support.job_worker import until
from tests.support.served import Served, served

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
TEXT = {"text": "wheat prices rise", "labels": ["grain"]}

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def traced() -> Iterator[Served]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "Tracing", partial(tracing.Tracing, provider))
        with served(tracing=True) as running:
            yield running


def finished(requests: int = 1) -> list[ReadableSpan]:
    """The finished spans, once these requests are among them: the span of a request ends after its answer is sent."""
    until(lambda: [one.name for one in EXPORTER.get_finished_spans()].count("request") >= requests)
    return list(EXPORTER.get_finished_spans())


def spans_after(answer: httpx.Response) -> list[ReadableSpan]:
    """The spans of the last request, in the order of their beginnings; the exporter is empty again."""
    assert answer.status_code in (200, 503), answer.text
    found = sorted(finished(), key=lambda one: one.start_time or 0)
    EXPORTER.clear()
    return found


def test_a_lesson_is_appended_and_applied_within_its_request(traced: Served) -> None:
    EXPORTER.clear()
    found = spans_after(traced.http.post("/learn", json=TEXT, headers=TRACEPARENT))
    assert [one.name for one in found] == ["request", "append", "apply"]
    request, append, apply = found
    assert {one.context.trace_id for one in found} == {int(TRACE, 16)}
    assert request.parent is not None
    assert request.parent.span_id == int(CALLER, 16)
    assert {one.parent.span_id for one in (append, apply) if one.parent} == {request.context.span_id}
    about = {"http.request.method": "POST", "url.path": "/learn", "http.response.status_code": 200}
    assert dict(request.attributes or {}) == about
    assert append.end_time <= apply.start_time <= apply.end_time <= request.end_time  # type: ignore[operator]


@pytest.mark.parametrize("body", [{"text": "wheat"}, {"instances": [{"text": "wheat"}] * 3}])
def test_an_instance_or_a_batch_is_ranked_within_its_request(traced: Served, body: dict[str, object]) -> None:
    EXPORTER.clear()
    request, rank = spans_after(traced.http.post("/classify", json=body, headers=TRACEPARENT))
    assert (request.name, rank.name) == ("request", "rank")
    assert dict(rank.attributes or {}) == {"abound.instances": len(body.get("instances", [1]))}  # type: ignore[arg-type]
    assert rank.context.trace_id == int(TRACE, 16)


async def test_the_clients_pass_the_trace_on(traced: Served) -> None:
    tracer = TracerProvider().get_tracer("application")
    EXPORTER.clear()
    with tracer.start_as_current_span("page") as span:
        with Client(traced.url) as made:
            await asyncio.to_thread(made.model().classify, "wheat")
        async with AsyncClient(traced.url) as made:
            await made.classify("default", {"text": "wheat"})
    found = [one for one in finished(2) if one.name == "request"]
    assert [one.parent and one.parent.span_id for one in found] == [span.get_span_context().span_id] * 2


def test_a_client_outside_of_a_trace_sends_none() -> None:
    script = Script(200)
    client(script).models()
    assert "traceparent" not in script.requests[0].headers


def test_a_service_without_the_libraries_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(CannotStart, match=r"pip install 'abound\[otel\]'"):
        tracing.Tracing()
