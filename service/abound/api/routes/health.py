"""``/livez``, ``/readyz``, ``/metrics`` and ``/docs``: health, metrics and documentation of the process."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from pydantic import Field

from abound.api.dependencies import Parts, PartsDep
from abound.api.openapi import problems
from abound.api.problems import UnknownPath, take_problem_counts
from abound.api.schemas.shape import Shape
from abound.replica.health import ReplicaStatus
from abound_core.errors import NotReady

router = APIRouter(tags=["health"])

ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
"""Files of the page at ``/docs``. This service serves them, so the page works without internet access."""


class LiveAnswer(Shape):
    """The process runs."""

    status: Literal["alive"]


class DurabilityAnswer(Shape):
    """The durability that the store offers for events in its log."""

    appendfsync: str | None = Field(description="`always`, `everysec` or `no`; null when the store does not report it.")
    levels: list[str] = Field(description="The durability levels that the store can confirm.")
    warning: str | None = Field(description="What can be lost and how to prevent it; null when nothing can be lost.")


class ReadyAnswer(Shape):
    """The replica is ready."""

    status: Literal["ready"]
    version: str = Field(description="Version of Abound.")
    log: Literal["connected", "cut off"]
    lag: int | None = Field(description="Entries behind the log, as far as the replica knows.")
    since: float | None = Field(default=None, description="Seconds since the log was cut off.")
    durability: DurabilityAnswer | None = Field(default=None, description="As last reported by the store.")
    history: str = Field(description="`kept`, or why there is no history, or why the log is not trimmed.")
    keys: bool = Field(description="Whether requests need a key.")


def unready_reason(app: FastAPI, status: ReplicaStatus) -> str | None:
    """Return why this replica should get no requests, or None."""
    if app.state.draining:
        return "draining: this replica is about to stop"
    if not status.ready:
        return status.reason or "starting"
    bound = app.state.parts.settings.max_staleness
    if bound is not None and status.since is not None and status.since > bound:
        return f"cut off from the log for {status.since:.1f} s, more than max_staleness ({bound:g} s)"
    return None


@router.get("/livez", summary="Liveness")
async def livez() -> LiveAnswer:
    """Answer without checking any dependency."""
    return LiveAnswer(status="alive")


@router.get("/readyz", summary="Readiness", responses=problems(503), response_model_exclude_unset=True)
async def readyz(request: Request, parts: PartsDep) -> ReadyAnswer:
    """Answer 200 once the replica has caught up with the log.

    A replica that is cut off from the store stays ready, and `log` and `since` say so.
    """
    status = parts.replica.status()
    reason = unready_reason(request.app, status)
    if reason is not None:
        raise NotReady(reason, lag=status.lag)
    history, keys = status.history or "kept", parts.ring.required
    answer = ReadyAnswer(
        status="ready", version=request.app.version, log=status.log, lag=status.lag, history=history, keys=keys
    )
    if status.since is not None:
        answer.since = round(status.since, 3)
    if status.durability is not None:
        appendfsync, levels, warning = status.durability
        answer.durability = DurabilityAnswer(appendfsync=appendfsync, levels=list(levels), warning=warning)
    return answer


async def update_metrics(parts: Parts) -> None:
    parts.telemetry.flush()
    parts.telemetry.count_refused(take_problem_counts())
    parts.telemetry.count_unchecked(parts.rates.take_unchecked_count())
    parts.telemetry.add_rankings(*parts.rankers.timer.drain())
    await parts.replica.update_metrics(parts.telemetry)
    parts.budget.update_sizes(parts.replica.models.all())


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(parts: PartsDep) -> Response:
    """Return the metrics of all processes of this service on this host."""
    await update_metrics(parts)
    text = await asyncio.to_thread(parts.telemetry.exposition)
    return Response(text, media_type=parts.telemetry.content_type)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """Return the OpenAPI document. Making it takes a while, and imports all methods of jobs."""
    return JSONResponse(await asyncio.to_thread(request.app.openapi))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Show the OpenAPI document as a page."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title=f"{request.app.title}: the HTTP interface",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )


@router.get("/docs/{asset}", include_in_schema=False)
async def docs_asset(asset: str) -> FileResponse:
    """Return a file of Swagger UI."""
    if asset not in ASSETS:
        raise UnknownPath(f"nothing is served under /docs/{asset[:100]}")
    path = files("fastapi_offline").joinpath("static", asset)
    return FileResponse(str(path), media_type=ASSETS[asset], headers={"cache-control": "max-age=3600"})
