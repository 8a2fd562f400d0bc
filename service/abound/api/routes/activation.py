"""``POST /models/{model}/activate``: choose the version that answers requests without ``version``."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter

from abound.api.decoding import convert
from abound.api.dependencies import ActorDep, JsonObject, ModelName, PartsDep
from abound.api.openapi import json_body, problems
from abound.api.schemas.versions import ActivatedAnswer, ActivateRequest
from abound.api.times import APPLY_SECONDS
from abound.security.audit import audited
from abound.versions.activation import ActivationContext, activate, read_active
from abound.versions.card import refuse_other_reading
from abound_core.errors import NotReady
from abound_core.model.active_version import LIVE

router = APIRouter(tags=["versions"])

EXAMPLES = {"index": {"summary": "Back to index", "value": {"version": LIVE, "reason": "rollback"}}}


@router.post(
    "/models/{model}/activate",
    summary="Activate a version",
    responses=problems(400, 404, 409, 413, 415, 422, 500, 503, 504, 507),
    openapi_extra=json_body("ActivateRequest", examples=EXAMPLES),
)
async def activate_version(model: ModelName, given: JsonObject, parts: PartsDep, actor: ActorDep) -> ActivatedAnswer:
    """Load the version in all replicas and switch all of them at one offset. The answer waits for that.

    Activate the former version to roll back.
    """
    request = convert(given, ActivateRequest)
    replica = parts.replica
    known = replica.model(model)
    async with audited(replica.store, actor, "version.activate", model=model, version=request.version) as details:
        if request.version != LIVE:
            refuse_other_reading((await replica.loaded_versions.get(known, request.version)).card, known.live.config)
        place = ActivationContext(replica.store, replica.artifacts, known.keys, parts.settings.prepare_seconds)
        at = await activate(place, request.version, request.reason)
        details |= {"offset": str(at), "reason": request.reason}
        with contextlib.suppress(NotReady):  # the version is active even if this replica lags
            await replica.wait_for(model, at, APPLY_SECONDS)
        former = (await read_active(replica.store, known.keys)).former
    return ActivatedAnswer(version=request.version, offset=str(at), former=former)
