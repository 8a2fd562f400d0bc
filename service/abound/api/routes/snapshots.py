"""``/models/{model}/snapshots``: saved states from which a replica starts."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from abound.api.dependencies import ActorDep, ModelName, ReplicaDep
from abound.api.openapi import problems
from abound.api.schemas.shape import Shape
from abound.security.audit import audited
from abound.state.state_image import StateManifest

router = APIRouter(tags=["snapshots"])


class SnapshotShape(Shape, record=StateManifest, fields="id offset digest bytes created"):
    """A snapshot of a model."""

    bytes: int
    created: float = Field(description="Seconds since 1970, of the store's clock.")


class SnapshotsAnswer(Shape):
    """Snapshots, newest first."""

    snapshots: list[SnapshotShape]


@router.get("/models/{model}/snapshots", summary="Snapshots of a model", responses=problems(404, 422, 503))
async def list_snapshots(model: ModelName, replica: ReplicaDep) -> SnapshotsAnswer:
    """List the snapshots, newest first, without damaged ones."""
    return SnapshotsAnswer(snapshots=[_shape(manifest) for manifest in await replica.snapshots(model)])


@router.post(
    "/models/{model}/snapshots",
    status_code=201,
    summary="Create a snapshot",
    responses=problems(404, 422, 503),
)
async def make_snapshot(model: ModelName, replica: ReplicaDep, actor: ActorDep) -> SnapshotShape:
    """Let the worker write a snapshot of the current offset or a later one, and wait until it is stored."""
    replica.model(model)
    async with audited(replica.store, actor, "snapshot.make", model=model) as details:
        manifest = await replica.request_snapshot(model)
        details["snapshot"] = manifest.id
    return _shape(manifest)


def _shape(manifest: StateManifest) -> SnapshotShape:
    return SnapshotShape.of(manifest, bytes=manifest.size, created=manifest.created / 1000)
