"""``/models/{model}/contenders``: versions that are scored on live traffic, and take over when they are better."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from abound.core.comparison.sequential_test import GateParams
from abound.core.errors import ArtifactsUnavailable, Damaged, UnknownVersion
from abound.service.api.dependencies import ActorDep, ModelName, PartsDep
from abound.service.api.openapi import problems
from abound.service.api.schemas.contenders import ContendersAnswer, ContestShape, EnteredShape, EnterRequest
from abound.service.replica.replica import Replica
from abound.service.security.audit import act
from abound.service.settings import Settings
from abound.service.store.keys import ModelKeys
from abound.service.versions import repository as versions
from abound.service.versions import retention as version_retention
from abound.service.versions.card import refuse_read_otherwise
from abound.service.versions.promotion import candidates as contenders
from abound.service.versions.promotion import standings

router = APIRouter(tags=["versions"])

VersionId = Annotated[str, Path(alias="version", pattern=r"^[0-9a-z]{8,32}$", description="Id of the version.")]


@router.get("/models/{model}/contenders", summary="Who contends, and how it stands", responses=problems(404, 422, 503))
async def get_contenders(model: ModelName, parts: PartsDep) -> ContendersAnswer:
    """Every instance is ranked by each of them before it is learned; nobody is answered by a contender."""
    return await _answer(parts.replica, parts.settings, parts.replica.model(model).keys)


@router.post(
    "/models/{model}/contenders",
    status_code=201,
    summary="Let a version contend",
    responses=problems(400, 404, 409, 413, 415, 422, 503),
)
async def enter(model: ModelName, request: EnterRequest, parts: PartsDep, actor: ActorDep) -> ContendersAnswer:
    """It is scored from now on, and activated when it proves better than what is served. At most four at a time."""
    replica = parts.replica
    known = replica.model(model)
    keys = known.keys
    async with act(replica.store, actor, "contender.enter", model=model, version=request.version):
        if replica.artifacts is None:
            raise ArtifactsUnavailable("there is no artifact store: set ABOUND_ARTIFACTS_URL")
        await replica.artifacts.join(replica.store)
        refuse_read_otherwise(await versions.card_of(replica.artifacts, keys, request.version), known.live.config)
        await version_retention.contend(replica.store, replica.artifacts, keys, request.version, request.reason)
    return await _answer(replica, parts.settings, keys)


@router.delete(
    "/models/{model}/contenders/{version}",
    status_code=204,
    summary="Let a version contend no more",
    responses=problems(404, 422, 503),
)
async def leave(model: ModelName, version: VersionId, parts: PartsDep, actor: ActorDep) -> Response:
    """It stays a version, and active if it is."""
    replica = parts.replica
    keys = replica.model(model).keys
    async with act(replica.store, actor, "contender.leave", model=model, version=version):
        if not await contenders.leave(replica.store, keys, version):
            raise UnknownVersion(f"no version {version} of {model} contends")
    return Response(status_code=204)


async def _answer(replica: Replica, settings: Settings, keys: ModelKeys) -> ContendersAnswer:
    entered = await contenders.entered(replica.store, keys)
    return ContendersAnswer(
        contenders=[EnteredShape(**msgspec.structs.asdict(one)) for one in entered],
        contest=contest_of(await _standing(replica, keys), settings),
    )


async def _standing(replica: Replica, keys: ModelKeys) -> standings.Standing | None:
    try:
        return await standings.read(replica.store, keys)
    except Damaged:
        return None  # of another release; who follows the contest begins anew


def contest_of(found: standings.Standing | None, settings: Settings) -> ContestShape | None:
    """How a contest stands, for people; None while nobody is compared, nor should be and cannot."""
    if found is None or not (found.contest.scores or found.trouble):
        return None
    return ContestShape.model_validate(standings.told(found, settings.group(GateParams)))
