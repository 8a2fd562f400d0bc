"""``/livez``, ``/readyz``, ``/metrics``, ``/docs``: how the process does, and what it is."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from pydantic import Field

from abound.core.errors import NotReady
from abound.service.api.dependencies import PartsDep
from abound.service.api.openapi import problems
from abound.service.api.problems import UnknownPath
from abound.service.api.schemas.hot import Shape
from abound.service.replica.health import Status

router = APIRouter(tags=["health"])

ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
"""What the page at ``/docs`` loads, from this service: a machine without the internet shows it as well."""


class LiveAnswer(Shape):
    """The process runs."""

    status: Literal["alive"]


class DurabilityAnswer(Shape):
    """What the store promises of an event that it has in its log."""

    appendfsync: str | None = Field(description="`always`, `everysec` or `no`; null when it does not tell.")
    levels: list[str] = Field(description="The levels of durability that a request can ask for.")
    warning: str | None = Field(description="What may be lost, and what mends it; null when nothing may.")


class ReadyAnswer(Shape):
    """This replica answers."""

    status: Literal["ready"]
    log: Literal["connected", "cut off"]
    lag: int | None = Field(description="Entries behind the log, as far as is known.")
    since: float | None = Field(default=None, description="Seconds since the log was cut off.")
    durability: DurabilityAnswer | None = Field(default=None, description="As the store said last.")
    history: str = Field(description="`kept`, or why there is none, or why the log is not trimmed.")
    keys: bool = Field(description="Whether requests must show a key.")


def unready(app: FastAPI, status: Status) -> str | None:
    """Why this replica should get no requests; None: it should."""
    if app.state.draining:
        return "draining: this replica is about to stop"
    if not status.ready:
        return status.reason or "starting"
    bound = app.state.parts.settings.max_staleness
    if bound is not None and status.since is not None and status.since > bound:
        return f"cut off from the log for {status.since:.1f} s, over the bound of {bound:g} s"
    return None


@router.get("/livez", summary="The process runs")
async def livez() -> LiveAnswer:
    """Asks no dependency."""
    return LiveAnswer(status="alive")


@router.get("/readyz", summary="This replica answers", responses=problems(503), response_model_exclude_unset=True)
async def readyz(request: Request, parts: PartsDep) -> ReadyAnswer:
    """Ready since it caught up with the log; cut off from the store it stays ready, and says so."""
    status = parts.replica.status()
    reason = unready(request.app, status)
    if reason is not None:
        raise NotReady(reason, lag=status.lag)
    history, keys = status.history or "kept", parts.ring.required
    answer = ReadyAnswer(status="ready", log=status.log, lag=status.lag, history=history, keys=keys)
    if status.since is not None:
        answer.since = round(status.since, 3)
    if status.durability is not None:
        appendfsync, levels, warning = status.durability
        answer.durability = DurabilityAnswer(appendfsync=appendfsync, levels=list(levels), warning=warning)
    return answer


@router.get(
    "/metrics",
    summary="Measures for Prometheus",
    response_class=Response,
    responses={200: {"description": "Text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(parts: PartsDep) -> Response:
    """All processes of this service on this host together."""
    parts.observe()
    return Response(parts.telemetry.exposition(), media_type=parts.telemetry.content_type)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The OpenAPI document, for people."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title=f"{request.app.title}: the HTTP interface",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )


@router.get("/docs/{asset}", include_in_schema=False)
async def docs_asset(asset: str) -> FileResponse:
    """One file of Swagger UI."""
    if asset not in ASSETS:
        raise UnknownPath(f"nothing is served under /docs/{asset[:100]}")
    path = files("fastapi_offline").joinpath("static", asset)
    return FileResponse(str(path), media_type=ASSETS[asset], headers={"cache-control": "max-age=3600"})
