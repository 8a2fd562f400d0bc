"""The application, and the one place where the parts of the service are assembled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from time import perf_counter
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from abound.api import problems
from abound.api.classify import Classify
from abound.api.compression import compressing, plain_body
from abound.api.dependencies import Parts, check_query
from abound.api.hot_route import DEFAULT_MODEL, HotRoute, RouteHandler
from abound.api.learn import ConfigChanges, Learn
from abound.api.openapi import document
from abound.api.protocol import FastAnswer
from abound.api.request_body import BodyBudget, Disconnected, Message, Receive, Scope, Send, request_id_of
from abound.api.routes import (
    activation,
    challengers,
    events,
    health,
    jobs,
    label_changes,
    labels,
    models,
    page,
    snapshots,
    transfer,
    uncertain,
)
from abound.api.routes import datasets as dataset_routes
from abound.api.routes import keys as key_routes
from abound.api.routes import versions as version_routes
from abound.api.times import READ_WAIT_SECONDS
from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.file_cache import cache_in
from abound.artifacts.times import PATIENCE_SECONDS
from abound.jobs.submission import JobSubmission
from abound.log.stream import LogParams
from abound.metrics import REQUEST_ID, TRACE_ID, Telemetry
from abound.processes.encoder_files import use_encoders
from abound.processes.remote_encoder import RemoteEncoder
from abound.processes.tracing import Tracing, given_trace_id, trace_id_of
from abound.replica.loaded_versions import ServingParams
from abound.replica.memory_budget import MemoryBudget
from abound.replica.model_directory import ARRIVAL_SECONDS
from abound.replica.predictions import RememberParams
from abound.replica.rankers import Rankers
from abound.replica.replica import Replica, ReplicaParams
from abound.security.guard import Guard, log_request
from abound.security.key_ring import KeyRing
from abound.security.rate_limits import RateLimiter, RateParams
from abound.settings import Settings, is_loopback
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store, StoreParams
from abound.tasks import cancel_and_wait, forever
from abound.versions.retention import VersionParams
from abound_core.errors import Forbidden, NotReady, StoreUnavailable, Unauthorized
from abound_core.limits import Limits

DESCRIPTION = """\
Applications send instances to `/classify` and label feedback to `/learn`. An index in memory is updated with every
event and answers in microseconds. Errors are problem documents (RFC 9457).
"""

FLUSH_SECONDS = 1.0
JOBS_SECONDS = 5.0
READING = ("GET", "HEAD", "OPTIONS")

Report = Callable[[str, float], None]


def create_app(settings: Settings, report: Report | None = None) -> Application:
    """Return the application. Its lifespan starts the replica, waits until it has caught up, and stops it."""
    return Application(settings, report or _ignore_progress)


class Application(FastAPI):
    """FastAPI with a bypass for the hot routes and features common to all answers.

    Every request has an id, and its answer carries it. ``HEAD`` is answered wherever ``GET`` is, ``OPTIONS`` on
    every path.
    """

    def __init__(self, settings: Settings, report: Report) -> None:
        tracing = Tracing() if settings.tracing else None
        telemetry = Telemetry()
        held = BodyBudget()
        changing = ConfigChanges()
        store = Store(settings.store_url(), settings.group(StoreParams))
        bounds = ReplicaParams(
            durability=settings.durability,
            max_models=settings.max_models,
            default_update=settings.default_update,
            limits=settings.group(Limits),
            log=settings.group(LogParams),
            snapshots=settings.group(SnapshotParams),
            serving=settings.group(ServingParams),
        )
        use_encoders(settings.encoders_dir)
        remote = RemoteEncoder(settings)
        place = settings.artifacts_location()
        cache = cache_in(settings.data_dir, settings.group(VersionParams).cache_bytes)
        artifacts = ArtifactStore(place, cache, PATIENCE_SECONDS) if place is not None else None
        replica = Replica(store, bounds, artifacts, tracing, telemetry.meter("/classify").durations)
        remember = settings.group(RememberParams)
        is_exposed = not is_loopback(settings.host)
        ring = KeyRing(store, locked=is_exposed and not settings.insecure)
        guard = Guard(ring, any_host=is_exposed or settings.insecure, origins=settings.web_origins)
        rates = RateLimiter(store, settings.group(RateParams))
        budget = MemoryBudget.for_machine(settings.max_memory, settings.processes)
        submission = JobSubmission(settings, store, artifacts)
        rankers = Rankers(replica.loaded_versions, bounds.serving)

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            await replica.start(report)
            report("reading the keys", 0.0)
            await ring.start(store.params.start_seconds)
            tasks = [
                asyncio.create_task(forever(partial(health.update_metrics, self.state.parts), FLUSH_SECONDS)),
                asyncio.create_task(forever(partial(_update_job_metrics, self.state.parts), JOBS_SECONDS)),
                asyncio.create_task(ring.run()),
            ]
            try:
                yield
            finally:
                await cancel_and_wait(*tasks)
                rankers.close()
                await remote.close()
                await replica.stop()
                if tracing is not None:
                    tracing.close()

        super().__init__(
            title="Abound",
            version=metadata.version("abound"),
            summary="Suggest labels, learn from every correction.",
            description=DESCRIPTION,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=lifespan,
        )
        learning = Learn(replica, settings, remember, changing, budget, rates, remote)
        self.state.parts = Parts(
            settings, replica, telemetry, held, changing, ring, rates, budget, submission, rankers, learning, remote
        )
        self.state.draining = False
        self.state.stopping = False
        problems.install(self)
        self.add_exception_handler(Disconnected, _answer_disconnected)
        self._request_metrics = telemetry
        self._guard = guard
        self._logs_access = settings.access_log
        self._is_observed = settings.access_log or settings.tracing
        self._tracing = tracing
        self._entry: ASGIApp = self._dispatch
        if settings.web_origins:
            self._entry = CORSMiddleware(
                self._dispatch,
                allow_origins=settings.web_origins,
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after", "location"],
            )
        works: dict[str, RouteHandler] = {
            "classify": Classify(replica, settings, remember, rates, rankers, remote, tracing),
            "learn": learning,
        }
        self._hot = {
            f"/{name}": HotRoute(work, name, telemetry.meter(f"/{name}"), settings, held, guard, replica.models)
            for name, work in works.items()
        }
        self._classify_default = partial(self._hot["/classify"].answer_immediately, DEFAULT_MODEL)
        for name, route in self._hot.items():
            for path in (name, f"/models/{{model}}{name}"):
                self.router.routes.append(Route(path, route, methods=["POST"], include_in_schema=False))
        for routes in (
            models,
            label_changes,  # its paths come before those that any label matches
            labels,
            transfer,
            snapshots,
            version_routes,
            dataset_routes,
            activation,
            challengers,
            jobs,
            key_routes,
            uncertain,
            events,
        ):
            self.include_router(routes.router, dependencies=[Depends(check_query)])
        for routes in (health, page):
            self.include_router(routes.router)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_observed and scope["type"] == "http":
            await self._answer_observed(scope, receive, send)
        else:
            await self._entry(scope, receive, send)

    async def _answer_observed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with its trace id in the log lines, and as a span if requests are traced."""
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        if self._tracing is None:
            TRACE_ID.set(given_trace_id(headers))
            await self._entry(scope, receive, send)
            return
        with self._tracing.request(method, path, headers) as span:
            TRACE_ID.set(trace_id_of(span))

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._entry(scope, receive, send_and_note)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        headers = dict(scope["headers"])
        receive = plain_body(receive, headers)
        if scope["method"] != "HEAD":
            send = compressing(send, headers)
        try:
            if scope["method"] != "POST":
                await self._answer(scope, receive, send)
            elif (route := self._hot.get(scope["path"])) is not None:
                await route.handle(DEFAULT_MODEL, scope, receive, send)
            elif (target := self._target(scope["path"])) is not None:
                await target[0].handle(target[1], scope, receive, send)
            else:
                await self._answer(scope, receive, send)
        except asyncio.CancelledError:
            # The service is stopping and can send nothing more to this client: the server closes the connection.
            return

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = document(self)
        return self.openapi_schema

    def unready_reason(self) -> str | None:
        """Return why ``/readyz`` answers 503, or None."""
        return health.unready_reason(self, self.state.parts.replica.status())

    def fast_path(self, url: bytes) -> FastAnswer | None:
        if url == b"/classify":
            return self._classify_default
        if url.startswith(b"/models/") and url.endswith(b"/classify") and url.isascii():
            target = self._target(url.decode("ascii"))
            if target is not None:
                return partial(target[0].answer_immediately, target[1])
        return None

    def _target(self, path: str) -> tuple[HotRoute, str] | None:
        """Return the hot route and the model that a path under ``/models`` names."""
        parts = path.split("/")
        if len(parts) == 4 and parts[1] == "models" and parts[2]:
            route = self._hot.get(f"/{parts[3]}")
            return None if route is None else (route, parts[2])
        return None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer through FastAPI's routes."""
        started = perf_counter()
        headers = dict(scope["headers"])
        request_id = request_id_of(headers)
        scope["request_id"] = request_id
        REQUEST_ID.set(request_id)
        header = (b"x-request-id", request_id.encode("ascii"))
        method = scope["method"]
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), header]}
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        inner = scope
        try:
            self._guard.admit_any(headers, scope)
            steps = [*scope["path"].split("/"), ""]
            if steps[1] == "models":
                await self._catch_up(steps[2], reads=method in READING)
            if method == "OPTIONS" and (allow := problems.allowed_methods(self, scope)):
                start = {"type": "http.response.start", "status": 204, "headers": [(b"allow", allow.encode())]}
                await send_with_id(start)
                await send_with_id({"type": "http.response.body", "body": b""})
                return
            inner = {**scope, "method": "GET"} if method == "HEAD" else scope
            await super().__call__(inner, receive, send_with_id)
        except (Unauthorized, Forbidden, NotReady, StoreUnavailable) as error:
            problem = problems.problem_of(error, request_id)
            await problems.ProblemResponse(problem)(inner, receive, send_with_id)
        except asyncio.CancelledError:
            if status:
                raise
            problem = problems.problem_of(problems.stopping_error(), request_id)
            await problems.ProblemResponse(problem)(inner, receive, send_with_id)
        finally:
            seconds = perf_counter() - started
            route = getattr(inner.get("route"), "path", "other")
            self._request_metrics.meter(route).observe(status or 500, seconds)
            if self._logs_access:
                log_request(scope, status or 500, seconds)

    async def _catch_up(self, model: str, *, reads: bool) -> None:
        """Wait until this replica has applied what others acknowledged.

        A request that only reads a known model waits for a second; it and a list of models are then answered from
        memory.
        """
        replica = self.state.parts.replica
        is_known = model in replica.models.names()
        try:
            await replica.catch_up(model, READ_WAIT_SECONDS if reads and is_known else ARRIVAL_SECONDS)
        except (NotReady, StoreUnavailable):
            if not reads or (model and not is_known):
                raise


async def _update_job_metrics(parts: Parts) -> None:
    parts.telemetry.set_jobs(await parts.submission.statistics())


async def _answer_disconnected(request: Request, error: Exception) -> Response:
    """Answer a client that has disconnected; the response is not sent."""
    return Response(status_code=400)


def _ignore_progress(stage: str, progress: float) -> None:
    """Ignore the progress of the start."""
