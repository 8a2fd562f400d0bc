"""``/datasets``: uploaded files that jobs can learn from instead of history."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any, Self

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from msgspec.structs import replace
from pydantic import Field

from abound.api.dependencies import ActorDep, ArtifactsDep, PartsDep
from abound.api.openapi import problems
from abound.api.request_body import check_length
from abound.api.routes.transfer import client_left, pieces_of
from abound.api.schemas.shape import Shape
from abound.datasets.files import COLUMNAR, FORMATS, STANDARD_INPUT, SUFFIXES, format_of
from abound.datasets.repository import NAME, DatasetCard, DatasetParams, DatasetRepository
from abound.security.audit import audited
from abound_core.errors import InvalidInstance, Malformed
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.read_options import PUBLIC, Format, ReadOptions

router = APIRouter(tags=["datasets"])

DatasetName = Annotated[str, Path(alias="dataset", pattern=f"^{NAME}$", description="Name of the data set.")]
MEDIA = {
    b"application/x-ndjson": ".jsonl",
    b"application/jsonl": ".jsonl",
    b"application/json": ".jsonl",
    b"text/x-svmlight": ".svm",
    b"text/plain": ".txt",
    b"text/csv": ".csv",
    b"text/tab-separated-values": ".tsv",
    b"application/vnd.apache.parquet": ".parquet",
    b"application/vnd.apache.arrow.file": ".arrow",
    b"application/vnd.apache.arrow.stream": ".arrow",
}
"""Formats by media type, used when neither file name nor data set name has a known suffix."""

FILE = {
    media: {"schema": {"type": "string", "format": "binary"}}
    for media in ("application/octet-stream", *(media.decode() for media in MEDIA))
}


LINES = tuple(form for form in FORMATS if form not in COLUMNAR)


class DatasetAnswer(
    Shape,
    record=DatasetCard,
    fields="name upload format compression bytes instances labelled features classes nnz assertions created",
):
    """A data set."""

    upload: str = Field(description="Id of the upload; each file uploaded under the name has another.")
    options: dict[str, Any] = Field(description="The options that the file is read with, also those that were guessed.")

    @classmethod
    def of(cls, record: Any, **own: Any) -> Self:
        return super().of(record, options=msgspec.to_builtins(replace(record.options, is_resolved=False)), **own)


class UploadQuery(Shape, record=ReadOptions, fields=" ".join(PUBLIC), defaults=True):
    """The options of reading the file, and its name."""

    filename: str | None = Field(
        None,
        max_length=256,
        description="Its suffix gives the format: `train.jsonl`, `train.csv.gz`, `train.parquet`.",
        json_schema_extra={"pattern": rf"\.(({'|'.join(LINES)})(\.(gz|zst))?|{'|'.join(COLUMNAR)})$"},
    )


class DatasetsAnswer(Shape):
    """Data sets, by name."""

    datasets: list[DatasetAnswer]
    checking: dict[str, float] = Field(
        description="Names whose uploaded files are being checked, and the share of the bytes of each that was read. "
        "It begins a second after the upload."
    )


class RowShape(Shape, record=DatasetInstance, fields="text features labels"):
    """An instance of a data set."""

    features: dict[str, Any] | None


class RowsAnswer(Shape):
    """Instances, in the order of the file."""

    rows: list[RowShape]


async def datasets(request: Request, parts: PartsDep) -> DatasetRepository:
    found: DatasetRepository | None = getattr(request.app.state, "datasets", None)
    if found is None:
        found = request.app.state.datasets = DatasetRepository(parts.replica.store, parts.settings.group(DatasetParams))
    return found


DatasetsDep = Annotated[DatasetRepository, Depends(datasets)]


@router.get("/datasets", summary="All data sets", responses=problems(503))
async def list_datasets(known: DatasetsDep) -> DatasetsAnswer:
    """List the data sets by name."""
    return DatasetsAnswer(
        datasets=[DatasetAnswer.of(card) for card in await known.all()], checking=await known.checking()
    )


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
    given: Annotated[UploadQuery, Query()],
) -> DatasetAnswer:
    """Upload JSON lines, a table, svmlight, fastText, Vowpal Wabbit, or Extreme Classification text.

    Tables are CSV, TSV, Parquet and Arrow files. A column without a role is a feature; an unknown field of JSON lines
    is an error, unless other fields have roles. Files other than Parquet and Arrow may be compressed with gzip or
    zstandard. `format`, the suffix of `filename`, of the name, or the media type gives the format, in this order.
    Parameters that are left out are guessed; `options` of the answer has it. An existing data set is replaced as a
    whole. An error names the number of the invalid line and changes nothing.
    """
    headers = dict(request.scope["headers"])
    params = parts.settings.group(DatasetParams)
    check_length(headers, params.max_bytes)
    options = msgspec.convert(given.model_dump(exclude={"filename"}, exclude_none=True), ReadOptions)
    named = _named(dataset, given.filename, headers.get(b"content-type", b""), options.format)
    async with audited(parts.replica.store, actor, "dataset.put", dataset=dataset) as details:
        pieces = pieces_of(request, params.max_bytes)
        card, is_new = await known.put(
            place, dataset, named, pieces, parts.settings.child_environment(), partial(client_left, request), options
        )
        details["bytes"] = card.bytes
    if is_new:
        response.status_code = 201
        response.headers["location"] = f"/datasets/{dataset}"
    return DatasetAnswer.of(card)


@router.get("/datasets/{dataset}", summary="A data set", responses=problems(404, 422, 503))
async def get_dataset(dataset: DatasetName, known: DatasetsDep) -> DatasetAnswer:
    """Return the format and the size of a data set."""
    return DatasetAnswer.of(await known.get(dataset))


@router.get("/datasets/{dataset}/rows", summary="The first rows of a data set", responses=problems(404, 413, 422, 503))
async def get_rows(
    dataset: DatasetName,
    known: DatasetsDep,
    place: ArtifactsDep,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of rows.")] = 10,
) -> RowsAnswer:
    """Return the first instances, as the service reads them: fewer if they take more than a megabyte."""
    rows = await known.head(place, dataset, limit)
    return RowsAnswer(rows=[RowShape.of(one, features=one.features and json.loads(one.features)) for one in rows])


@router.delete("/datasets/{dataset}", status_code=204, summary="Delete a data set", responses=problems(404, 422, 503))
async def delete_dataset(
    dataset: DatasetName, parts: PartsDep, known: DatasetsDep, place: ArtifactsDep, actor: ActorDep
) -> Response:
    """Delete a data set. Versions that were fitted on it stay."""
    async with audited(parts.replica.store, actor, "dataset.delete", dataset=dataset):
        await known.delete(place, dataset)
    return Response(status_code=204)


def _named(name: str, filename: str | None, media: bytes, form: Format | None) -> str:
    """Return a file name whose suffix gives the format; raise InvalidInstance if there is none."""
    plain = media.partition(b";")[0].strip().lower()
    for one in (filename, name, f"x.{form}" if form else f"x{MEDIA[plain]}" if plain in MEDIA else None):
        if one is None or one == STANDARD_INPUT:
            continue
        try:
            format_of(one)
        except Malformed:
            if one is filename:
                break
            continue
        return one
    raise InvalidInstance(f"filename must end in {SUFFIXES}", "filename")
