"""The hot routes: POST of instances, as plain ASGI applications beside FastAPI.

A request for a hot route is recognised by its path before any middleware or routing runs. A request that arrives
through the router (in a test, or in a mounted application) takes the same code. :class:`HotRoute` does everything
that its handlers have in common: media types, limits, request ids, problem documents, metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, Protocol

from abound.api.compression import SMALL_BYTES, compress, takes_gzip
from abound.api.ndjson import AnswerLines, RequestLines
from abound.api.problems import PROBLEM_JSON, internal_problem, problem_headers, problem_of, stopping_error
from abound.api.request_body import (
    JSON,
    NDJSON,
    BodyBudget,
    Disconnected,
    Headers,
    Receive,
    Scope,
    Send,
    check_length,
    media_of,
    read_body,
    request_id_of,
    send_answer,
)
from abound.api.schemas.learn_classify import encoder
from abound.metrics import REQUEST_ID, RequestMeter
from abound.replica.model_directory import ModelDirectory
from abound.security.guard import Guard, log_request
from abound.security.key_ring import Grant
from abound.settings import Settings
from abound.state.replicated_model import ReplicatedModel
from abound.tasks import run_together
from abound_core.errors import AboundError, InvalidInstance, OutcomeUnknown

DEFAULT_MODEL = "default"
BOTH_MEDIA = (JSON, NDJSON)


class RouteHandler(Protocol):
    """The handler of a hot route, below HTTP."""

    def answer(
        self, model: ReplicatedModel, body: bytes, headers: Headers, grant: Grant | None
    ) -> bytes | Coroutine[Any, Any, tuple[int, bytes]]:
        """Return the JSON answer to a JSON body, one instance or a batch. If it has to wait, return a coroutine.

        The coroutine returns status and JSON.
        """

    async def answer_lines(
        self,
        model: ReplicatedModel,
        headers: Headers,
        request_id: str,
        lines: RequestLines,
        answers: AnswerLines,
        grant: Grant | None,
    ) -> None:
        """Put an answer for each line, in order; raise a refusal of the whole request before the first answer."""


class HotRoute:
    """An ASGI application for POST on ``/<name>`` and ``/models/{model}/<name>``; keys need ``scope`` to use it."""

    def __init__(
        self,
        work: RouteHandler,
        scope: str,
        meter: RequestMeter,
        settings: Settings,
        held: BodyBudget,
        guard: Guard,
        models: ModelDirectory,
    ) -> None:
        self._work = work
        self._models = models
        self._scope = scope
        self._meter = meter
        self._held = held
        self._guard = guard
        self._logs_access = settings.access_log
        self._is_observed = settings.access_log or settings.tracing
        self._has_cors = bool(settings.cors_origins)
        self._max_body = settings.max_body_bytes
        self._max_ndjson = settings.max_ndjson_bytes
        self._max_lines = settings.max_ndjson_lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.handle(scope["path_params"].get("model", DEFAULT_MODEL), scope, receive, send)

    def answer_immediately(self, model: str, headers: Headers, body: bytes) -> tuple[bytes, str, bool] | None:
        """Return the answer to a complete request for ``model``, the request's id, and whether it is compressed.

        Return None when ``handle`` has to answer it: the answer has to wait, must be logged or traced, or is a refusal,
        or the body is compressed, or the page of another origin asks.
        """
        started = perf_counter()
        try:
            if self._is_observed or len(body) > self._max_body or media_of(headers, BOTH_MEDIA) == NDJSON:
                return None
            if b"content-encoding" in headers or (self._has_cors and b"origin" in headers):
                return None
            grant = self._guard.grant_of(headers, self._scope, model)
            answer = self._work.answer(self._models.trusted(model), body, headers, grant)
        except AboundError:
            return None
        if not isinstance(answer, bytes):
            answer.close()
            return None
        if is_compressed := len(answer) > SMALL_BYTES and takes_gzip(headers):
            answer = compress(answer)
        self._meter.observe(200, perf_counter() - started)
        return answer, request_id_of(headers), is_compressed

    async def handle(self, model: str, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        headers: Headers = dict(scope["headers"])
        request_id: str = scope.get("request_id") or request_id_of(headers)
        REQUEST_ID.set(request_id)
        begun = streams = False
        status = 200
        try:
            grant = self._guard.admit(headers, self._scope, model, scope)
            if scope.get("query_string"):
                raise InvalidInstance("the URL has parameters; options such as k are fields of the body", "query")
            if media_of(headers, BOTH_MEDIA) == NDJSON:
                streams = True
                await self._stream(model, headers, request_id, scope, receive, send, grant)
                return
            body = await read_body(receive, headers, self._max_body, self._held)
            found = self._work.answer(await self._models.find(model), body, headers, grant)
            status, answer = (200, found) if isinstance(found, bytes) else await found
            begun = True
            await send_answer(send, status, JSON, answer, request_id)
        except AboundError as error:
            problem = problem_of(error, request_id, scope=scope)
            status = problem.status
            await send_answer(
                send, problem.status, PROBLEM_JSON, encoder.encode(problem), request_id, problem_headers(problem)
            )
        except Disconnected:
            status = 499
        except asyncio.CancelledError:
            # The service is stopping and the grace period is over; a begun answer ends with the connection.
            problem = problem_of(stopping_error(), request_id)
            status = problem.status
            if not (begun or scope.get("answer_begun")):
                await send_answer(
                    send, problem.status, PROBLEM_JSON, encoder.encode(problem), request_id, problem_headers(problem)
                )
        except Exception:
            # An unexpected error: answer 500 if no answer has begun, and raise it for the server to log.
            status = 500
            if not (begun or scope.get("answer_begun")):
                answer = encoder.encode(internal_problem(request_id))
                await send_answer(send, 500, PROBLEM_JSON, answer, request_id, [(b"connection", b"close")])
            raise
        finally:
            seconds = perf_counter() - started
            self._meter.observe(status, None if streams else seconds)
            if self._logs_access:
                log_request(scope, status, seconds)

    async def _stream(
        self,
        model: str,
        headers: Headers,
        request_id: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        grant: Grant | None,
    ) -> None:
        check_length(headers, self._max_ndjson)
        found = await self._models.find(model)
        lines = RequestLines(receive, self._held, self._max_ndjson, self._max_lines, self._max_body)
        answers = AnswerLines(send, request_id)
        reading = asyncio.create_task(lines.pump())

        async def work() -> None:
            await self._work.answer_lines(found, headers, request_id, lines, answers, grant)
            answers.end()

        try:
            await run_together(work(), answers.pump())
        except asyncio.CancelledError:
            if lines.may_be_logged and not answers.started:
                raise OutcomeUnknown("the service stopped before the lines were answered.") from None
            raise
        finally:
            scope["answer_begun"] = answers.started
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            lines.release()
