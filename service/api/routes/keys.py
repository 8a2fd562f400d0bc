"""``/keys`` and ``/audit``: who may do what, and who did what. For the scope ``admin``, not limited to models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from abound.core.errors import Conflict
from abound.core.limits import MODEL_NAME
from abound.service.api.dependencies import ActorDep, JsonObject, PartsDep, ReplicaDep
from abound.service.api.openapi import JSON, problems
from abound.service.api.problems import unreadable
from abound.service.api.schemas.hot import Shape
from abound.service.security import key_store as keys
from abound.service.security.audit import act, acts
from abound.service.security.key import LONGEST, MOST_DESCRIPTION, MOST_MODELS, Key, Terms

router = APIRouter(tags=["keys"])

KeyId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="Public id of the key.", examples=["0123456789ab"])]

DEFAULT_GRACE = 3600.0


# What ``Terms.check`` asks for, said in the document.
ModelName = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": MODEL_NAME})]
PRINTABLE = {"pattern": r"^[^\x00-\x1f\x7f]*$", "description": "Printable characters."}
RATE = {
    "pattern": r"^\s*[0-9]+\s*(/|[Pp][Ee][Rr])\s*[0-9]*\s*[A-Za-z]+",
    "description": "1 to 1,000,000,000 instances in a second to a day.",
}


class NewKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a new key is to be. ``seconds``: how long it lives; ``admin`` includes the other scopes."""

    scopes: Annotated[list[Literal["classify", "learn", "admin"]], msgspec.Meta(min_length=1)]
    models: Annotated[list[ModelName], msgspec.Meta(min_length=1, max_length=MOST_MODELS)] | None = None
    description: Annotated[str, msgspec.Meta(max_length=MOST_DESCRIPTION, extra_json_schema=PRINTABLE)] = ""
    seconds: Annotated[float, msgspec.Meta(ge=1, le=LONGEST)] | None = None
    rate: Annotated[str, msgspec.Meta(examples=["1000/second"], extra_json_schema=RATE)] | None = None
    source_rate: Annotated[str, msgspec.Meta(examples=["100/minute"], extra_json_schema=RATE)] | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How the old key ends: ``grace`` seconds from now."""

    grace: Annotated[float, msgspec.Meta(ge=0, le=LONGEST)] = DEFAULT_GRACE


class KeyShape(Shape):
    """A key, without its secret. Times are seconds since 1970, of the store's clock."""

    id: str
    scopes: list[str]
    models: list[str] | None = Field(description="The models that it is for; null: all.")
    description: str
    state: Literal["valid", "expired", "revoked"]
    created: float
    expires: float | None
    revoked: float | None
    used: float | None = Field(description="When it was used last, to some seconds; null: never.")
    rate: str | None = Field(description="Instances that it may send.")
    source_rate: str | None = Field(description="Instances to learn that it may send with one source.")
    replaces: str | None = Field(description="The key that it was rotated from.")


class MadeKeyShape(KeyShape):
    """A key that was just made: ``key`` is shown this once."""

    key: str


class KeysAnswer(Shape):
    """All keys, oldest first, revoked ones too."""

    keys: list[KeyShape]


class ActShape(Shape):
    """One administrative act."""

    id: str
    at: float = Field(description="Seconds since 1970, of the store's clock.")
    action: str
    key: str | None = Field(description="Id of the key that was shown; null: none, or the command line.")
    address: str
    forwarded: str | None = Field(description="What the request said of addresses before; not checked.")
    request_id: str | None
    details: dict[str, Any]
    outcome: Literal["done", "refused", "unknown"]
    reason: str | None


class AuditAnswer(Shape):
    """Acts, newest first."""

    acts: list[ActShape]


def _body(kind: type[msgspec.Struct], example: dict[str, Any], required: bool) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([kind])
    content = {JSON: {"schema": schemas[kind.__name__], "example": example}}
    return {"requestBody": {"required": required, "content": content}}


@router.get("/keys", summary="All keys", responses=problems(503))
async def list_keys(replica: ReplicaDep) -> KeysAnswer:
    """Without their secrets, which nobody has but who was given them."""
    listed = await keys.listed(replica.store)
    return KeysAnswer(keys=[KeyShape(**shape_of(one.key, one.state, one.used)) for one in listed])


@router.post(
    "/keys",
    status_code=201,
    summary="Make a key",
    responses=problems(400, 409, 413, 415, 422, 503),
    openapi_extra=_body(NewKey, {"scopes": ["classify"], "models": ["default"], "description": "shop"}, True),
)
async def create_key(body: JsonObject, parts: PartsDep, actor: ActorDep, response: Response) -> MadeKeyShape:
    """The answer is the only place where the secret is ever shown. All replicas know the key within about a second."""
    if not parts.ring.required:
        raise Conflict("no key is asked for yet; the first one is made where the store is: abound keys create")
    new = _converted(body, NewKey)
    terms = Terms(new.scopes, new.models, new.description, new.seconds, new.rate, new.source_rate)
    store = parts.replica.store
    async with act(store, actor, "key.create", scopes=new.scopes, models=new.models) as details:
        made = await keys.create(store, terms)
        details["key"] = made.key.id
    response.headers["cache-control"] = "no-store"
    return MadeKeyShape(**shape_of(made.key, "valid", None), key=made.secret)


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
    """A new key that may do the same; the old one ends when its grace is over."""
    grace = _converted(body, Rotation).grace
    async with act(replica.store, actor, "key.rotate", key=key_id, grace=grace) as details:
        made = await keys.rotate(replica.store, key_id, grace)
        details["by"] = made.key.id
    response.headers["cache-control"] = "no-store"
    return MadeKeyShape(**shape_of(made.key, "valid", None), key=made.secret)


@router.delete("/keys/{key_id}", status_code=204, summary="Revoke a key", responses=problems(404, 422, 503))
async def revoke_key(key_id: KeyId, replica: ReplicaDep, actor: ActorDep) -> Response:
    """For good. It opens nothing any more within about a second.

    503 where the store has copies and none of them has confirmed it: it is revoked, and a failover could lose that.
    """
    async with act(replica.store, actor, "key.revoke", key=key_id) as details:
        revoked = await keys.revoke(replica.store, key_id)
        details["copied"] = revoked.copied
    revoked.check()
    return Response(status_code=204)


@router.get("/audit", summary="What was done", responses=problems(422, 503))
async def list_acts(
    replica: ReplicaDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 100,
    before: Annotated[
        str | None, Query(pattern="^[0-9]{1,15}-[0-9]{1,15}$", description="Only acts older than this id.")
    ] = None,
) -> AuditAnswer:
    """Administrative acts, newest first."""
    found = await acts(replica.store, limit, before)
    return AuditAnswer(acts=[ActShape(**msgspec.structs.asdict(one)) for one in found])


def shape_of(key: Key, state: str, used: float | None) -> dict[str, Any]:
    """What may be told of a key."""
    plain = msgspec.structs.asdict(key) | {"state": state, "used": used}
    del plain["digest"]
    return plain


def _converted(body: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise unreadable(error) from None
