"""``/keys`` and ``/audit``: API keys and the audit log, for keys with scope ``admin`` for all models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from abound.api.decoding import convert
from abound.api.dependencies import ActorDep, JsonObject, PartsDep, ReplicaDep
from abound.api.openapi import json_body, problems
from abound.api.schemas.shape import Shape
from abound.security import key_store as keys
from abound.security.audit import Act, audited, newest_acts
from abound.security.key import MAX_DESCRIPTION, MAX_LIFETIME_SECONDS, MAX_MODELS, Key, KeyTerms
from abound_core.errors import Conflict
from abound_core.limits import MODEL_NAME

router = APIRouter(tags=["keys"])

KeyId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="Public id of the key.", examples=["0123456789ab"])]

DEFAULT_GRACE = 3600.0


# The rules that the key terms' check enforces, for the OpenAPI document.
ModelName = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": MODEL_NAME})]
PRINTABLE = {"pattern": r"^[^\x00-\x1f\x7f]*$", "description": "Printable characters."}
RATE = {
    "pattern": r"^\s*[0-9]+\s*(/|[Pp][Ee][Rr])\s*[0-9]*\s*[A-Za-z]+",
    "description": "1 to 1,000,000,000 instances per period, from a second to a day.",
}


class NewKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A key to be created. ``seconds``: its lifetime; ``admin`` includes the other scopes."""

    scopes: Annotated[list[Literal["classify", "learn", "admin"]], msgspec.Meta(min_length=1)]
    models: Annotated[list[ModelName], msgspec.Meta(min_length=1, max_length=MAX_MODELS)] | None = None
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION, extra_json_schema=PRINTABLE)] = ""
    seconds: Annotated[float, msgspec.Meta(ge=1, le=MAX_LIFETIME_SECONDS)] | None = None
    rate: Annotated[str, msgspec.Meta(examples=["1000/second"], extra_json_schema=RATE)] | None = None
    source_rate: Annotated[str, msgspec.Meta(examples=["100/minute"], extra_json_schema=RATE)] | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The end of the old key: ``grace`` seconds from now."""

    grace: Annotated[float, msgspec.Meta(ge=0, le=MAX_LIFETIME_SECONDS)] = DEFAULT_GRACE


class KeyShape(
    Shape,
    record=Key,
    fields="id scopes models description state created expires revoked used rate source_rate replaces",
):
    """A key without its secret. Times are seconds since 1970, of the store's clock."""

    state: Literal["valid", "expired", "revoked"]
    used: float | None = Field(description="Time of last use, accurate to some seconds; null: never.")


class MadeKeyShape(KeyShape):
    """A new key: the secret in ``key`` is shown only this once."""

    key: str


class KeysAnswer(Shape):
    """All keys, including revoked ones, oldest first."""

    keys: list[KeyShape]


class ActShape(Shape, record=Act):
    """One administrative act."""

    outcome: Literal["done", "refused", "unknown"]


class AuditAnswer(Shape):
    """Acts, newest first."""

    acts: list[ActShape]


def _body(kind: type[msgspec.Struct], example: dict[str, Any], required: bool) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([kind])
    return json_body(schemas[kind.__name__], required, example=example)


@router.get("/keys", summary="All keys", responses=problems(503))
async def list_keys(replica: ReplicaDep) -> KeysAnswer:
    """List the keys without their secrets, which the service does not store."""
    listed = await keys.all_keys(replica.store)
    return KeysAnswer(keys=[KeyShape.of(one.key, state=one.state, used=one.used) for one in listed])


@router.post(
    "/keys",
    status_code=201,
    summary="Create a key",
    responses=problems(400, 409, 413, 415, 422, 503),
    openapi_extra=_body(NewKey, {"scopes": ["classify"], "models": ["default"], "description": "shop"}, True),
)
async def create_key(body: JsonObject, parts: PartsDep, actor: ActorDep, response: Response) -> MadeKeyShape:
    """Create a key. Only this answer shows the secret. All replicas know the key within about a second.

    Returns 503 when the store has replicas and none has confirmed: the key exists, but a failover could delete it,
    and its secret is not shown. Repeat the request.
    """
    if not parts.ring.required:
        raise Conflict("there is no key yet; create the first one on the machine of the store: abound keys create")
    new = convert(body, NewKey)
    terms = KeyTerms(new.scopes, new.models, new.description, new.seconds, new.rate, new.source_rate)
    store = parts.replica.store
    async with audited(store, actor, "key.create", scopes=new.scopes, models=new.models) as details:
        made = await keys.create(store, terms)
        details["key"] = made.key.id
    await keys.check_copied(store, made.key, f"the key {made.key.id} is created")
    response.headers["cache-control"] = "no-store"
    return MadeKeyShape.of(made.key, state="valid", used=None, key=made.secret)


@router.post(
    "/keys/{key_id}/rotate",
    status_code=201,
    summary="Replace a key",
    responses=problems(400, 404, 409, 413, 415, 422, 503),
    openapi_extra=_body(Rotation, {"grace": DEFAULT_GRACE}, False),
)
async def rotate_key(
    key_id: KeyId, body: JsonObject, replica: ReplicaDep, actor: ActorDep, response: Response
) -> MadeKeyShape:
    """Create a new key with the same permissions; the old one ends after the grace period.

    Returns 503 when the store has replicas and none has confirmed: the key is rotated, but a failover could undo
    that, and the new secret is not shown. Repeat the request.
    """
    grace = convert(body, Rotation).grace
    async with audited(replica.store, actor, "key.rotate", key=key_id, grace=grace) as details:
        made = await keys.rotate(replica.store, key_id, grace)
        details["by"] = made.key.id
    await keys.check_copied(replica.store, made.key, f"the key {key_id} is rotated")
    response.headers["cache-control"] = "no-store"
    return MadeKeyShape.of(made.key, state="valid", used=None, key=made.secret)


@router.delete("/keys/{key_id}", status_code=204, summary="Revoke a key", responses=problems(404, 422, 503))
async def revoke_key(key_id: KeyId, replica: ReplicaDep, actor: ActorDep) -> Response:
    """Revoke a key permanently. Replicas refuse it within about a second.

    Returns 503 when the store has replicas and none has confirmed: the key is revoked, but a failover could
    undo that. Repeat the request.
    """
    async with audited(replica.store, actor, "key.revoke", key=key_id):
        revoked = await keys.revoke(replica.store, key_id)
    await keys.check_copied(replica.store, revoked, f"the key {key_id} is revoked")
    return Response(status_code=204)


@router.get("/audit", summary="The audit log", responses=problems(422, 503))
async def list_acts(
    replica: ReplicaDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of acts.")] = 100,
    before: Annotated[
        str | None, Query(pattern="^[0-9]{1,15}-[0-9]{1,15}$", description="Only acts older than this id.")
    ] = None,
) -> AuditAnswer:
    """List administrative acts, newest first."""
    found = await newest_acts(replica.store, limit, before)
    return AuditAnswer(acts=[ActShape.of(one) for one in found])
