"""``/models/{model}/versions``: fitted versions of a model: list, compare, copy and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from abound.api.dependencies import ActorDep, ArtifactsDep, ModelName, PartsDep, RequestBound, VersionId
from abound.api.openapi import problems
from abound.api.request_body import check_length
from abound.api.routes.transfer import pieces_of
from abound.api.schemas.versions import CardAnswer, Comparison, VersionsAnswer, card_answer
from abound.security.audit import audited
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound.versions.version_file import MEDIA_TYPE, export_version, import_version

MAX_COMPARED = 20

imports = RequestBound(4, "imports of versions", retry_after=10.0)
"""An import holds a thread of the artifact store until its file has arrived; the others are left to other requests."""

router = APIRouter(tags=["versions"])

FILE = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


@router.get("/models/{model}/versions", summary="All versions of a model", responses=problems(404, 422, 503))
async def list_versions(model: ModelName, parts: PartsDep, place: ArtifactsDep) -> VersionsAnswer:
    """List the versions, newest first, with their parameters and metrics."""
    replica = parts.replica.model(model)
    needed = await version_retention.needed_versions(parts.replica.store, replica.keys)
    cards = await versions.cards(place, replica.keys)
    return VersionsAnswer(versions=[card_answer(card, needed) for card in cards])


@router.get("/models/{model}/comparison", summary="Compare versions", responses=problems(404, 422, 503))
async def compare_versions(
    model: ModelName,
    parts: PartsDep,
    place: ArtifactsDep,
    ids: Annotated[
        list[str],
        Query(alias="id", min_length=1, max_length=MAX_COMPARED, description="Ids of the versions; repeat for each."),
    ],
) -> Comparison:
    """Compare versions: every metric, size and parameter that any of them has, as a list with a value for each."""
    keys = parts.replica.model(model).keys
    return Comparison.between([await versions.card_of(place, keys, name) for name in dict.fromkeys(ids)])


@router.get("/models/{model}/versions/{version}", summary="A version", responses=problems(404, 422, 503))
async def get_version(model: ModelName, version: VersionId, parts: PartsDep, place: ArtifactsDep) -> CardAnswer:
    """Return the card of a version."""
    keys = parts.replica.model(model).keys
    card = await versions.card_of(place, keys, version)
    return card_answer(card, await version_retention.needed_versions(parts.replica.store, keys))


@router.delete(
    "/models/{model}/versions/{version}",
    status_code=204,
    summary="Delete a version",
    responses=problems(404, 409, 422, 503),
)
async def delete_version(
    model: ModelName, version: VersionId, parts: PartsDep, place: ArtifactsDep, actor: ActorDep
) -> Response:
    """Delete a version. A version that is active, is a challenger, or is needed for a rollback is kept (409)."""
    store, keys = parts.replica.store, parts.replica.model(model).keys
    async with audited(store, actor, "version.delete", model=model, version=version):
        await version_retention.delete(store, place, keys, version)
    return Response(status_code=204)


@router.get(
    "/models/{model}/versions/{version}/export",
    summary="Export a version to a file",
    response_class=StreamingResponse,
    responses={200: {"description": "The file.", "content": FILE}, **problems(404, 422, 503)},
)
async def export(
    model: ModelName, version: VersionId, parts: PartsDep, place: ArtifactsDep, actor: ActorDep
) -> StreamingResponse:
    """Return everything needed to answer with the version, in this service or another one."""
    keys = parts.replica.model(model).keys
    async with audited(parts.replica.store, actor, "version.export", model=model, version=version):
        exported = await export_version(place, keys, version)
    headers = {
        "content-length": str(exported.size),
        "content-disposition": f'attachment; filename="{model}-{version}.abound-version"',
    }
    return StreamingResponse(exported.pieces, media_type=MEDIA_TYPE, headers=headers)


@router.post(
    "/models/{model}/versions",
    status_code=201,
    summary="Import a version from a file",
    responses=problems(400, 404, 409, 413, 415, 422, 503),
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def import_(
    model: ModelName,
    request: Request,
    parts: PartsDep,
    place: ArtifactsDep,
    actor: ActorDep,
    response: Response,
    room: Annotated[None, Depends(imports, scope="function")],
) -> CardAnswer:
    """Import a version under a new id. It answers once it is activated.

    The oldest versions that are not needed may be deleted to make space.
    """
    replica, limit = parts.replica, parts.settings.max_import_bytes
    known = replica.model(model)
    headers = dict(request.scope["headers"])
    check_length(headers, limit)
    async with audited(replica.store, actor, "version.import", model=model) as details:
        body: AsyncIterator[bytes] = pieces_of(request, limit)
        kept = parts.settings.group(version_retention.VersionParams)
        card = await import_version(
            replica.store, place, known.keys, body, limit, str(known.offset), kept, known.live.config
        )
        details["version"] = card.id
    response.headers["location"] = f"/models/{model}/versions/{card.id}"
    return card_answer(card, {})
