"""Dependencies of the routes: the replica of the process, a checked model name, a bounded JSON body."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import Depends, Path, Request
from fastapi.dependencies.models import Dependant

from abound.api.decoding import MAX_DETAILS_WORK, decode_batch
from abound.api.learn import ConfigChanges, Learn
from abound.api.request_body import JSON, BodyBudget, media_of, read_body
from abound.artifacts.artifact_store import ArtifactStore
from abound.jobs.submission import JobSubmission
from abound.metrics import Telemetry
from abound.processes.remote_encoder import RemoteEncoder
from abound.replica.memory_budget import MemoryBudget
from abound.replica.rankers import Rankers
from abound.replica.replica import Replica
from abound.security.audit import Actor
from abound.security.guard import actor_of
from abound.security.key_ring import Grant, KeyRing
from abound.security.rate_limits import RateLimiter
from abound.settings import Settings
from abound_core.errors import ArtifactsUnavailable, InvalidInstance, Overloaded, did_you_mean
from abound_core.limits import MODEL_NAME


class Parts(NamedTuple):
    """The parts of the application, stored in ``app.state.parts``."""

    settings: Settings
    replica: Replica
    telemetry: Telemetry
    held: BodyBudget
    changing: ConfigChanges
    ring: KeyRing
    rates: RateLimiter
    budget: MemoryBudget
    submission: JobSubmission
    rankers: Rankers
    learning: Learn
    remote: RemoteEncoder


async def parts(request: Request) -> Parts:
    found: Parts = request.app.state.parts
    return found


async def replica(found: Annotated[Parts, Depends(parts)]) -> Replica:
    return found.replica


async def artifacts(replica: Annotated[Replica, Depends(replica)]) -> ArtifactStore:
    """Return the artifact store, joined."""
    found = replica.artifacts
    if found is None:
        raise ArtifactsUnavailable("there is no artifact store: set ABOUND_ARTIFACTS_URL")
    if not found.id:
        await found.join(replica.store)
    return found


async def actor(request: Request) -> Actor:
    return actor_of(request.scope)


async def grant(request: Request) -> Grant | None:
    """Return the grant of the request's key; None where no key is required."""
    found: Grant | None = request.scope.get("grant")
    return found


class RequestBound:
    """A dependency that bounds how many requests of one kind a process serves at the same time."""

    def __init__(self, most: int, kind: str, retry_after: float) -> None:
        self.most = most
        self.count = 0  # requests in progress
        self._kind = kind
        self._retry_after = retry_after

    async def __call__(self) -> AsyncIterator[None]:
        if self.count >= self.most:
            raise Overloaded(f"this replica has {self.most} {self._kind} already", retry_after=self._retry_after)
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


async def json_object(request: Request, found: Annotated[Parts, Depends(parts)]) -> dict[str, Any]:
    """Return the body as a JSON object, empty when there is no body."""
    headers = dict(request.scope["headers"])
    media_of(headers, (JSON,))
    body = await read_body(request.receive, headers, found.settings.max_body_bytes, found.held)
    return await decode_batch(_object, body, max_work=MAX_DETAILS_WORK) if body else {}


_object = msgspec.json.Decoder(dict[str, Any])

PartsDep = Annotated[Parts, Depends(parts)]
ReplicaDep = Annotated[Replica, Depends(replica)]
ArtifactsDep = Annotated[ArtifactStore, Depends(artifacts)]
ActorDep = Annotated[Actor, Depends(actor)]
GrantDep = Annotated[Grant | None, Depends(grant)]
ModelName = Annotated[str, Path(pattern=MODEL_NAME, description="Name of the model.", examples=["default"])]
VersionId = Annotated[str, Path(alias="version", pattern=r"^[0-9a-z]{8,32}$", description="Id of the version.")]
JsonObject = Annotated[dict[str, Any], Depends(json_object)]


async def check_query(request: Request) -> None:
    """Raise InvalidInstance if the request has a query parameter that its route does not have."""
    if not request.query_params:
        return
    known = _query_of(request.scope["route"].dependant)
    for name in request.query_params:
        if name not in known:
            shown = name[:64]
            raise InvalidInstance(f"{shown} is not a parameter of this request{did_you_mean(name, known)}", shown)


def _query_of(dependant: Dependant) -> set[str]:
    fields = [
        (field.alias, getattr(field.field_info.annotation, "model_fields", None)) for field in dependant.query_params
    ]
    own = {name for alias, inner in fields for name in (inner or (alias,))}  # a model has parameters as its fields
    return own.union(*map(_query_of, dependant.dependencies))
