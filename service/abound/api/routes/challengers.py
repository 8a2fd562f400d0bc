"""``/models/{model}/challengers``: versions that are scored on live traffic and promoted when they are better."""

from __future__ import annotations

from fastapi import APIRouter, Response

from abound.api.decoding import convert
from abound.api.dependencies import ActorDep, ArtifactsDep, JsonObject, ModelName, PartsDep, VersionId
from abound.api.openapi import json_body, problems
from abound.api.schemas.challengers import ChallengersAnswer, ChallengerShape, ContestShape, EnterRequest
from abound.replica.replica import Replica
from abound.security.audit import audited
from abound.settings import Settings
from abound.store.key_names import ModelKeys
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound.versions.card import refuse_other_reading
from abound.versions.promotion import challengers, standings
from abound_core.errors import Corrupted, UnknownVersion
from abound_core.promotion_rule import GateParams

router = APIRouter(tags=["versions"])


@router.get(
    "/models/{model}/challengers", summary="The challengers and their scores", responses=problems(404, 422, 503)
)
async def get_challengers(model: ModelName, parts: PartsDep) -> ChallengersAnswer:
    """Return the challengers and their scores.

    Every challenger ranks each instance before the model learns it; challengers answer no requests.
    """
    return await _answer(parts.replica, parts.settings, parts.replica.model(model).keys)


@router.post(
    "/models/{model}/challengers",
    status_code=201,
    summary="Enter a version as a challenger",
    responses=problems(400, 404, 409, 413, 415, 422, 503),
    openapi_extra=json_body("EnterRequest"),
)
async def enter(
    model: ModelName, given: JsonObject, parts: PartsDep, place: ArtifactsDep, actor: ActorDep
) -> ChallengersAnswer:
    """Score a version from now on, and activate it once it proves better than the served one.

    A model has at most four challengers at a time.
    """
    request = convert(given, EnterRequest)
    replica = parts.replica
    known = replica.model(model)
    keys = known.keys
    async with audited(replica.store, actor, "challenger.enter", model=model, version=request.version):
        refuse_other_reading(await versions.card_of(place, keys, request.version), known.live.config)
        await version_retention.enter_challenger(replica.store, place, keys, request.version, request.reason)
    return await _answer(replica, parts.settings, keys)


@router.delete(
    "/models/{model}/challengers/{version}",
    status_code=204,
    summary="Withdraw a challenger",
    responses=problems(404, 422, 503),
)
async def withdraw(model: ModelName, version: VersionId, parts: PartsDep, actor: ActorDep) -> Response:
    """Stop scoring a version. It stays a version, and active if it is."""
    replica = parts.replica
    keys = replica.model(model).keys
    async with audited(replica.store, actor, "challenger.withdraw", model=model, version=version):
        if not await challengers.withdraw(replica.store, keys, version):
            raise UnknownVersion(f"version {version} of {model} is no challenger")
    return Response(status_code=204)


async def _answer(replica: Replica, settings: Settings, keys: ModelKeys) -> ChallengersAnswer:
    entered = await challengers.list_challengers(replica.store, keys)
    return ChallengersAnswer(
        challengers=[ChallengerShape.of(one) for one in entered],
        contest=contest_of(await _standing(replica, keys), settings),
    )


async def _standing(replica: Replica, keys: ModelKeys) -> standings.Standings | None:
    try:
        return await standings.read(replica.store, keys)
    except Corrupted:
        return None  # written by another release; the worker starts the contest again


def contest_of(found: standings.Standings | None, settings: Settings) -> ContestShape | None:
    if found is None or not (found.contest.scores or found.trouble):
        return None
    return ContestShape.model_validate(standings.to_public(found, settings.group(GateParams)))
