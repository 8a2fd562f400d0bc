"""``POST /models/{model}/activate``: which version answers whoever names none."""

from __future__ import annotations

import contextlib

import msgspec
from fastapi import APIRouter

from abound.core.errors import NotReady
from abound.core.model.active_version import LIVE
from abound.service.api.dependencies import ActorDep, JsonObject, ModelName, PartsDep
from abound.service.api.openapi import JSON, REF, problems
from abound.service.api.problems import unreadable
from abound.service.api.schemas.versions import ActivatedAnswer, ActivateRequest
from abound.service.security.audit import act
from abound.service.versions.activation import Place, activate, active
from abound.service.versions.card import refuse_read_otherwise

router = APIRouter(tags=["versions"])

BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {"$ref": REF.format(name="ActivateRequest")},
                "examples": {"index": {"summary": "The index again", "value": {"version": LIVE, "reason": "rollback"}}},
            }
        },
    }
}


@router.post(
    "/models/{model}/activate",
    summary="Let a version answer",
    responses=problems(400, 404, 409, 413, 415, 422, 500, 503, 504, 507),
    openapi_extra=BODY,
)
async def activate_version(model: ModelName, given: JsonObject, parts: PartsDep, actor: ActorDep) -> ActivatedAnswer:
    """All replicas load it and switch at one offset, which takes as long as they need; the way back is the same."""
    try:
        request = msgspec.convert(given, ActivateRequest)
    except msgspec.ValidationError as error:
        raise unreadable(error) from None
    replica = parts.replica
    known = replica.model(model)
    async with act(replica.store, actor, "version.activate", model=model, version=request.version) as details:
        if request.version != LIVE:
            refuse_read_otherwise((await replica.shelf.get(known, request.version)).card, known.live.config)
        place = Place(replica.store, replica.artifacts, known.keys, parts.settings.prepare_seconds)
        at = await activate(place, request.version, request.reason)
        details |= {"offset": str(at), "reason": request.reason}
        with contextlib.suppress(NotReady):  # it is active all the same
            await replica.wait_for(model, at, parts.settings.wait_seconds)
        former = (await active(replica.store, known.keys)).former
    return ActivatedAnswer(version=request.version, offset=str(at), former=former)
