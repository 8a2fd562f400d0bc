"""``/datasets``: files that jobs can learn from in the place of history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from abound.core.errors import InvalidInstance, Malformed
from abound.service.api.asgi import check_coding, check_length
from abound.service.api.dependencies import ActorDep, PartsDep
from abound.service.api.openapi import problems
from abound.service.api.routes.transfer import pieces_of
from abound.service.api.routes.versions import ArtifactsDep
from abound.service.api.schemas.hot import Shape
from abound.service.datasets.files import STANDARD_INPUT, format_of
from abound.service.datasets.repository import NAME, DatasetCard, DatasetParams, Datasets
from abound.service.security.audit import act

router = APIRouter(tags=["datasets"])

DatasetName = Annotated[str, Path(alias="dataset", pattern=f"^{NAME}$", description="Name of the data set.")]
MEDIA = {
    b"application/x-ndjson": ".jsonl",
    b"application/jsonl": ".jsonl",
    b"application/json": ".jsonl",
    b"text/x-svmlight": ".svm",
    b"text/plain": ".txt",
}
"""Formats by media type, where nothing else tells."""

FILE = {
    media: {"schema": {"type": "string", "format": "binary"}}
    for media in ("application/octet-stream", *(media.decode() for media in MEDIA))
}


class DatasetAnswer(Shape):
    """A data set."""

    name: str
    upload: str = Field(description="Which of all files that came under the name.")
    format: str
    compression: str
    bytes: int = Field(ge=0, description="As it came.")
    instances: int = Field(ge=0)
    labelled: int = Field(ge=0, description="Instances with a label.")
    features: int = Field(ge=0, description="Different ones.")
    classes: int = Field(ge=0)
    nnz: int = Field(ge=0, description="Active features of all instances together.")
    assertions: int = Field(ge=0, description="Labels of all instances together.")
    pairs: int | None = Field(
        ge=0,
        description="Pairs of instances that share a label, once a label. null: checked before these were counted.",
    )
    label_pairs: int | None = Field(ge=0, description="Pairs of labels that come together, once an instance.")
    feature_labels: int | None = Field(ge=0, description="Pairs of a feature and a label, once an instance.")
    created: float = Field(description="Seconds since 1970.")

    @classmethod
    def of(cls, card: DatasetCard) -> DatasetAnswer:
        """As it is told."""
        return cls(**{name: getattr(card, name) for name in cls.model_fields})


class DatasetsAnswer(Shape):
    """Data sets, by name."""

    datasets: list[DatasetAnswer]


def datasets(request: Request, parts: PartsDep) -> Datasets:
    """The data sets of this service."""
    found: Datasets | None = getattr(request.app.state, "datasets", None)
    if found is None:
        found = request.app.state.datasets = Datasets(parts.replica.store, parts.settings.group(DatasetParams))
    return found


DatasetsDep = Annotated[Datasets, Depends(datasets)]


@router.get("/datasets", summary="All data sets", responses=problems(503))
async def list_datasets(known: DatasetsDep) -> DatasetsAnswer:
    """By name."""
    return DatasetsAnswer(datasets=[DatasetAnswer.of(card) for card in await known.all()])


@router.put(
    "/datasets/{dataset}",
    summary="Upload a data set",
    responses={201: {"model": DatasetAnswer, "description": "New."}, **problems(400, 409, 413, 415, 422, 503)},
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def put_dataset(
    dataset: DatasetName,
    request: Request,
    parts: PartsDep,
    known: DatasetsDep,
    place: ArtifactsDep,
    actor: ActorDep,
    response: Response,
    filename: Annotated[
        str | None,
        Query(
            max_length=256,
            description="Whose end tells the format: `train.jsonl`, `train.txt.gz`, `train.svm.zst`.",
            json_schema_extra={"pattern": r"\.(txt|svm|jsonl)(\.(gz|zst))?$"},
        ),
    ] = None,
) -> DatasetAnswer:
    """In the text of the Extreme Classification repository, svmlight, or JSON lines; plain, gzip or zstandard.

    The format is told by `filename`, else by the end of the name, else by the media type. One that is there already is
    replaced, as a whole; a line that is wrong is named by its number, and nothing is changed.
    """
    headers = dict(request.scope["headers"])
    check_coding(headers)
    params = parts.settings.group(DatasetParams)
    check_length(headers, params.max_bytes)
    named = _named(dataset, filename, headers.get(b"content-type", b""))
    async with act(parts.replica.store, actor, "dataset.put", dataset=dataset) as details:
        pieces = pieces_of(request, params.max_bytes)
        card, is_new = await known.put(place, dataset, named, pieces, parts.settings.child_environment())
        details["bytes"] = card.bytes
    if is_new:
        response.status_code = 201
        response.headers["location"] = f"/datasets/{dataset}"
    return DatasetAnswer.of(card)


@router.get("/datasets/{dataset}", summary="A data set", responses=problems(404, 422, 503))
async def get_dataset(dataset: DatasetName, known: DatasetsDep) -> DatasetAnswer:
    """What is in it."""
    return DatasetAnswer.of(await known.get(dataset))


@router.delete("/datasets/{dataset}", status_code=204, summary="Delete a data set", responses=problems(404, 422, 503))
async def delete_dataset(
    dataset: DatasetName, parts: PartsDep, known: DatasetsDep, place: ArtifactsDep, actor: ActorDep
) -> Response:
    """Versions that were fitted on it stay."""
    async with act(parts.replica.store, actor, "dataset.delete", dataset=dataset):
        await known.delete(place, dataset)
    return Response(status_code=204)


def _named(name: str, filename: str | None, media: bytes) -> str:
    """A file's name whose end tells the format; InvalidInstance (field ``filename``) when nothing does."""
    plain = media.partition(b";")[0].strip().lower()
    for one in (filename, name, f"x{MEDIA[plain]}" if plain in MEDIA else None):
        if one is None or one == STANDARD_INPUT:
            continue
        try:
            format_of(one)
        except Malformed:
            if one is filename:
                break
            continue
        return one
    raise InvalidInstance("filename must end in .txt, .svm or .jsonl, then .gz, .zst or nothing", "filename")
