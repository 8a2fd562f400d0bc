"""Errors as RFC 9457 problem documents. Only this module maps errors to status codes.

An error of the product becomes the problem document of its class. The document's ``type`` is a URI reference
whose meaning never changes. The code around the application answers unexpected errors with 500 and logs them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from abound_core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    EncoderUnavailable,
    Forbidden,
    InvalidInstance,
    InvalidKey,
    Malformed,
    MemoryLimitExceeded,
    NoFeatures,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
    UnknownArtifact,
    UnknownDataset,
    UnknownEvent,
    UnknownJob,
    UnknownKey,
    UnknownLabel,
    UnknownModel,
    UnknownOffset,
    UnknownPrediction,
    UnknownSnapshot,
    UnknownVersion,
    did_you_mean,
)
from abound_core.limits import NAME_RULE

PROBLEM_JSON = b"application/problem+json"
CODINGS = (b"gzip", b"deflate", b"zstd")  # of request bodies


class UnsupportedMedia(AboundError):
    """The route does not read bodies of this media type, charset or content coding."""


class MethodNotAllowed(AboundError):
    def __init__(self, detail: str, allow: str) -> None:
        super().__init__(detail)
        self.allow = allow


class UnknownPath(AboundError):
    """No route or file has this path."""


class ProblemKind(NamedTuple):
    status: int
    slug: str
    title: str


KINDS: dict[type[AboundError], ProblemKind] = {
    Malformed: ProblemKind(400, "malformed", "The body cannot be read"),
    Unauthorized: ProblemKind(401, "unauthorized", "An API key is required"),
    InvalidKey: ProblemKind(401, "invalid-key", "The API key is not valid"),
    Forbidden: ProblemKind(403, "forbidden", "The API key does not allow this"),
    UnknownPath: ProblemKind(404, "unknown-path", "Nothing is served here"),
    UnknownModel: ProblemKind(404, "unknown-model", "No such model"),
    UnknownVersion: ProblemKind(404, "unknown-version", "No such version"),
    UnknownLabel: ProblemKind(404, "unknown-label", "No such label"),
    UnknownPrediction: ProblemKind(404, "unknown-prediction", "No such prediction is remembered"),
    UnknownSnapshot: ProblemKind(404, "unknown-snapshot", "No such snapshot"),
    UnknownOffset: ProblemKind(422, "unknown-offset", "History does not reach back this far"),
    UnknownArtifact: ProblemKind(404, "unknown-artifact", "No such artifact"),
    UnknownEvent: ProblemKind(404, "unknown-event", "No such event"),
    UnknownJob: ProblemKind(404, "unknown-job", "No such job"),
    UnknownDataset: ProblemKind(404, "unknown-dataset", "No such data set"),
    UnknownKey: ProblemKind(404, "unknown-key", "No such key"),
    MethodNotAllowed: ProblemKind(405, "method-not-allowed", "Method not allowed"),
    Conflict: ProblemKind(409, "conflict", "Conflict with the current state"),
    TooLarge: ProblemKind(413, "too-large", "Too large"),
    UnsupportedMedia: ProblemKind(415, "unsupported-media-type", "Unsupported media type"),
    InvalidInstance: ProblemKind(422, "invalid-field", "A field breaks a rule"),
    NoFeatures: ProblemKind(422, "no-features", "No feature is active"),
    RateLimited: ProblemKind(429, "rate-limited", "Rate limit exceeded"),
    NotReady: ProblemKind(503, "not-ready", "This replica cannot answer now"),
    Overloaded: ProblemKind(503, "overloaded", "Service overloaded"),
    StoreUnavailable: ProblemKind(503, "store-unavailable", "The log cannot be reached"),
    ArtifactsUnavailable: ProblemKind(503, "artifacts-unavailable", "The artifact store cannot be used"),
    EncoderUnavailable: ProblemKind(503, "encoder-unavailable", "The encoder cannot be used"),
    OutcomeUnknown: ProblemKind(504, "outcome-unknown", "Outcome unknown"),
    MemoryLimitExceeded: ProblemKind(507, "no-room", "Memory limit exceeded"),
    Corrupted: ProblemKind(500, "damaged", "Stored data is corrupted"),
}

INTERNAL = ProblemKind(500, "internal", "Internal error")

_counts: Counter[str] = Counter()

UNKNOWN_IF_LEARNED = (
    "It may or may not have been learned; the same request with the same Idempotency-Key may be sent again."
)
UNKNOWN_IF_DONE = "It may or may not have been done; check the current state before you send it again."


class Problem(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A problem document (RFC 9457) with the fields that this service adds."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    field: str | None = None
    retry_after: float | None = None
    lag: int | None = None
    line: int | None = None
    scope: str | None = None
    model: str | None = None


def kind_of(error: AboundError) -> ProblemKind:
    for ancestor in type(error).__mro__:
        if ancestor in KINDS:
            return KINDS[ancestor]
    return INTERNAL


def problem_of(
    error: AboundError,
    request_id: str,
    line: int | None = None,
    unknown: str = UNKNOWN_IF_LEARNED,
    scope: Mapping[str, Any] | None = None,
) -> Problem:
    """Return the problem document for ``error``; ``line`` is the line of an NDJSON request that it answers.

    ``unknown`` explains an unknown outcome to the client. ``scope`` is that of the request. If its key is limited to
    some models, the document does not name other models.
    """
    kind = kind_of(error)
    _counts[kind.slug] += 1
    detail = str(error)
    grant = scope.get("grant") if scope else None
    if isinstance(error, UnknownModel) and grant is not None and not grant.is_for(None):
        detail = error.plain
    if isinstance(error, OutcomeUnknown):
        detail = f"{detail.removesuffix('.')}. {unknown}"
    return Problem(
        type=f"/problems/{kind.slug}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        request_id=request_id,
        field=getattr(error, "field", None) or None,
        retry_after=getattr(error, "retry_after", None),
        lag=getattr(error, "lag", None),
        line=line,
        scope=getattr(error, "scope", None),
        model=getattr(error, "model", None),
    )


def take_problem_counts() -> Counter[str]:
    """Return the number of problems answered by this process since the last call, by slug."""
    counts = _counts.copy()
    _counts.clear()
    return counts


def internal_problem(request_id: str) -> Problem:
    _counts[INTERNAL.slug] += 1
    return Problem(
        type=f"/problems/{INTERNAL.slug}",
        title=INTERNAL.title,
        status=INTERNAL.status,
        detail="Something went wrong in the service; its log has the error under this request id.",
        request_id=request_id,
    )


def stopping_error() -> NotReady:
    return NotReady("the service is stopping; nothing of the request was done, send it again")


def problem_headers(problem: Problem, allow: str | None = None) -> list[tuple[bytes, bytes]]:
    """Return the headers that belong to a problem."""
    headers = []
    if problem.status == 401:
        wrong = b', error="invalid_token"' if problem.type.endswith("/invalid-key") else b""
        headers.append((b"www-authenticate", b'Bearer realm="abound"' + wrong))
    elif problem.status == 403 and problem.scope is not None:
        challenge = f'Bearer realm="abound", error="insufficient_scope", scope="{problem.scope}"'
        headers.append((b"www-authenticate", challenge.encode()))
    elif problem.status == 415:
        headers.append((b"accept-encoding", b", ".join(CODINGS)))
    if problem.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(problem.retry_after))).encode()))
    if allow is not None:
        headers.append((b"allow", allow.encode()))
    return headers


def decoding_error(error: Exception, known: Iterable[str] = ()) -> AboundError:
    """Convert a JSON decoder's error: InvalidInstance (422) for a wrong field, Malformed (400) for invalid JSON.

    For an unknown field the error names the most similar one of ``known``.
    """
    if isinstance(error, msgspec.ValidationError):
        detail, _, path = str(error).partition(" - at `$")
        unknown = re.match(r"Object contains unknown field `(.*)`$", detail, re.DOTALL)
        missing = re.match(r"Object missing required field `(.*)`$", detail, re.DOTALL)
        field = path.removesuffix("`").removeprefix(".")
        if unknown or missing:
            name = (unknown or missing)[1]  # type: ignore[index]
            field = f"{field}.{name}" if field else name
            detail = f"is not a field of this request{did_you_mean(name, known)}" if unknown else "is missing"
            return InvalidInstance(f"{field} {detail}", field)
        return InvalidInstance(f"{field or 'the body'}: {detail[:1].lower()}{detail[1:]}", field)
    if isinstance(error, RecursionError):
        return Malformed("the JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return Malformed("the body is not valid UTF-8")
    return Malformed(f"the body is not JSON: {str(error).removeprefix('JSON is malformed: ')}")


class ProblemResponse(Response):
    media_type = PROBLEM_JSON.decode()

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None, allow: str | None = None) -> None:
        super().__init__(msgspec.json.encode(problem), problem.status, headers)
        self.raw_headers.extend(problem_headers(problem, allow))


def install(app: FastAPI) -> None:
    """Answer every error of the routes of ``app`` with a problem document."""

    def request_id(request: Request) -> str:
        return str(request.scope.get("request_id", "-"))

    async def of_the_product(request: Request, error: Exception) -> Response:
        assert isinstance(error, AboundError)
        return ProblemResponse(
            problem_of(error, request_id(request), unknown=UNKNOWN_IF_DONE, scope=request.scope),
            allow=getattr(error, "allow", None),
        )

    async def of_a_parameter(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return ProblemResponse(problem_of(_parameter_error(error.errors()), request_id(request)))

    async def of_routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        meant: AboundError = Malformed(str(error.detail))
        if error.status_code == 404:
            meant = UnknownPath(f"nothing is served under {request.url.path[:200]}")
        elif error.status_code == 405:
            allow = allowed_methods(app, request.scope)
            meant = MethodNotAllowed(f"{request.url.path[:200]} answers {allow}", allow)
        return await of_the_product(request, meant)

    async def of_ours(request: Request, error: Exception) -> Response:
        return ProblemResponse(internal_problem(request_id(request)), {"connection": "close"})

    app.add_exception_handler(AboundError, of_the_product)
    app.add_exception_handler(RequestValidationError, of_a_parameter)
    app.add_exception_handler(HTTPException, of_routing)
    app.add_exception_handler(500, of_ours)


def allowed_methods(app: FastAPI, scope: Mapping[str, Any]) -> str:
    """Return the methods of the path of ``scope``, for ``Allow``; empty when there is no such path.

    Where several routes have the path, those count that leave least of it to their parameters: `/labels/changes`, and
    not any label.
    """
    left: dict[str, int] = {}
    included = [getattr(route, "original_router", None) for route in app.routes]
    routes = [*app.routes, *(route for router in included if router is not None for route in router.routes)]
    for method in ("DELETE", "GET", "POST", "PUT"):
        matches = (route.matches({**scope, "method": method}) for route in routes)
        found = [inner["path_params"] for match, inner in matches if match is Match.FULL and "path_params" in inner]
        if found:
            left[method] = min(sum(map(len, one.values())) for one in found)
    methods = [method for method in left if left[method] == min(left.values())]
    return ", ".join(sorted([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])) if left else ""


def _parameter_error(errors: Any) -> AboundError:
    """Return the first error of a path or query parameter, with the parameter's name."""
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    if first["type"] == "string_pattern_mismatch" and field in ("model", "dataset"):
        return InvalidInstance(f"a {'model' if field == 'model' else 'data set'}'s name {NAME_RULE}", field)
    return InvalidInstance(f"{field}: {first['msg'][:1].lower()}{first['msg'][1:]}", field)
