"""``/models/{model}/export`` and ``/import``: a whole model as one file."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from abound.api.dependencies import ActorDep, ModelName, PartsDep
from abound.api.openapi import problems
from abound.api.request_body import Disconnected, check_length, too_large
from abound.api.routes.models import model_answer
from abound.api.schemas.models import ModelAnswer
from abound.replace.transfer import export_model, import_model
from abound.replica.model_directory import check_name
from abound.security.audit import audited
from abound.state.model_file import MEDIA_TYPE

router = APIRouter(tags=["models"])

FILE = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/models/{model}/export",
    summary="Export a model to a file",
    response_class=StreamingResponse,
    responses={200: {"description": "The file.", "content": FILE}, **problems(404, 422, 503)},
)
async def export(model: ModelName, parts: PartsDep, actor: ActorDep) -> StreamingResponse:
    """Return everything the model has learned, at its current offset or shortly after.

    An imported copy has the same digest.
    """
    replica = parts.replica
    replica.model(model)
    async with audited(replica.store, actor, "model.export", model=model) as details:
        exported = await export_model(replica, model)
        details["offset"] = exported.manifest.offset
    headers = {
        "content-length": str(exported.size),
        "content-disposition": f'attachment; filename="{model}.abound"',
    }
    return StreamingResponse(exported.pieces, media_type=MEDIA_TYPE, headers=headers)


@router.put(
    "/models/{model}/import",
    status_code=201,
    summary="Import a model from a file",
    responses=problems(400, 409, 413, 415, 422, 503, 504, 507),
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def import_(model: ModelName, request: Request, parts: PartsDep, actor: ActorDep) -> ModelAnswer:
    """Create a model from a file in all replicas. An existing model of the name must not have learned anything.

    Nothing changes until the whole file has arrived. A model that needs more memory than is left is refused (507).
    """
    check_name(model)
    replica, limit = parts.replica, parts.settings.max_import_bytes
    headers = dict(request.scope["headers"])
    check_length(headers, limit)
    async with audited(replica.store, actor, "model.import", model=model) as details:
        replaced_at = await import_model(
            replica, model, pieces_of(request, limit), limit, parts.settings.prepare_seconds, parts.budget
        )
        details["offset"] = str(replaced_at)
    return await model_answer(replica.model(model))


async def pieces_of(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; raise TooLarge as soon as it exceeds ``limit`` bytes."""
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        more = message.get("more_body", False)
        yield piece


async def client_left(request: Request) -> None:
    """Wait until the client has closed the connection; then raise Disconnected. Call it after the whole body."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise Disconnected
