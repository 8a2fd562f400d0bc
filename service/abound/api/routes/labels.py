"""``/models/{model}/labels``: the labels that a model knows, their details, and the features that vote for each.

A registration is a learn event whose records have details (``abound_core.instances.record``): the log, replicas,
history, forget and refit treat it like any other. The vector of such a record is that of the label's name and
description.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from abound.api.decoding import MAX_DETAILS_WORK, ByteBudget, Warnings, decode_batch, vector_of
from abound.api.dependencies import GrantDep, ModelName, PartsDep, ReplicaDep, RequestBound
from abound.api.label_search import FIELD, find_labels, fold
from abound.api.openapi import JSON, json_body, problems
from abound.api.request_body import media_of, read_body
from abound.api.routes.label_changes import change_record
from abound.api.schemas.labels import (
    NO_DETAILS,
    LabelDetails,
    LabelRegistration,
    details_from,
    register_decoder,
    registration_decoder,
)
from abound.api.schemas.learn_classify import Instance, encoder
from abound.api.schemas.shape import Shape
from abound.log.append_group import LearnDraft
from abound.tasks import TimeSlice
from abound_core.errors import InvalidInstance, UnknownLabel
from abound_core.instances.codes_kernels import PREFIX
from abound_core.instances.record import EMPTY_VECTOR, add_details, pack_labels
from abound_core.limits import MAX_DETAILS_BYTES
from abound_core.model.label_changes import LabelChange
from abound_core.model.label_details import with_other_number, words_of
from abound_core.model.label_features import weights_to
from abound_core.model.label_tree import MAX_PATH
from abound_core.model.live_model import LiveModel

MAX_LABELS_LISTED = 10_000
MAX_SORTED = 20_000
MAX_FEATURES_LISTED = 1000

MAX_NESTING = 32  # levels of lists and objects in the metadata of a label
PIECE_BYTES = 65_536

SLICE = 4096  # features that are read before other tasks get a turn
searches = RequestBound(4, "searches for features of labels", retry_after=1.0)
SearchRoom = Annotated[None, Depends(searches, scope="function")]
Limit = Annotated[int, Query(ge=1, le=MAX_FEATURES_LISTED, description="Maximum number of features.")]

router = APIRouter(tags=["models"])


EXAMPLE = {"labels": [{"label": "grain", "name": "Grain", "description": "wheat, corn and rye"}]}


class DetailsShape(Shape, record=LabelDetails):
    """The details with which a label was registered; null where nothing was given."""


RECENT = (
    "Share of the newest 100 times a label was learned that it had been ranked first; null if it is not among the "
    "newest 10,000 labels that were learned."
)


class LabelsAnswer(Shape):
    """Labels, in the order that was asked for."""

    labels: list[str]
    learned: list[int] = Field(description="How often each label was learned.")
    total: int = Field(description="Number of labels that begin with `prefix` and contain `contains`.")
    recent: list[float | None] = Field(description=RECENT)
    details: dict[str, DetailsShape] = Field(description="Details of those of these labels that have some.")
    retired: list[str] = Field([], description="Those of these labels that are retired; absent: none.")


class RegisterAnswer(Shape):
    """The offset of the last registration in the log."""

    offset: str
    applied: bool = Field(description="Whether this replica has applied it.")
    durability: str = Field(description="`log`, `fsync` or `replica`.")


class PointingShape(Shape):
    """A feature that votes for a label."""

    feature: str
    weight: float = Field(description="Contribution to the score if it is the only feature, with the value 1.")


class LabelAnswer(Shape):
    """A label and the features that vote for it."""

    label: str
    learned: int = Field(description="How often the label was learned.")
    features: list[PointingShape] = Field(description="Features by descending weight.")
    total: int = Field(description="Number of features that vote for the label.")
    details: DetailsShape
    recent: float | None = Field(description=RECENT)
    n_recent: int = Field(description="Number of times that `recent` covers.")
    confused_with: dict[str, int] = Field(
        description="Wrong labels that were ranked first in these times, with how often; at most 10, most often first."
    )
    aliases: list[str] = Field(description="Its other names.")
    retired: bool = Field(description="Whether it is never suggested, and not learned.")


@router.get(
    "/models/{model}/labels",
    summary="The labels of a model",
    response_model=LabelsAnswer,
    responses=problems(404, 422, 503),
)
async def get_labels(
    model: ModelName,
    replica: ReplicaDep,
    prefix: Annotated[str, Query(max_length=512, description="Only labels that begin with this.")] = "",
    contains: Annotated[str, Query(max_length=512, description="Only labels that contain this.")] = "",
    sort: Annotated[
        Literal["first", "count", "name", "R@1"],
        Query(description="First seen first; most learned first; by name; or lowest newest `R@1` first."),
    ] = "first",
    limit: Annotated[int, Query(ge=1, le=MAX_LABELS_LISTED, description="Maximum number of labels.")] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31, description="Number of labels to skip.")] = 0,
) -> Response:
    """List labels. `prefix` and `contains` look at labels and at their names, without regard to case and accents."""
    live, end = replica.model(model).live, offset + limit
    if sort == "name" and end > MAX_SORTED:
        raise InvalidInstance(f"offset: the first {MAX_SORTED} labels are listed by name", "offset")
    ids = live.changes.labels(live.labels.n_ids)
    total = len(ids)
    if sort == "name" or prefix or contains:
        found: list[int] = []
        named: list[tuple[str, int]] = []
        async for rows in find_labels(live, *([FIELD + fold(prefix)] if prefix else []), fold(contains)):
            found += [class_id for class_id, _ in rows]
            if sort == "name":
                named += [(row.rpartition(FIELD)[2] or row.split(FIELD)[1], class_id) for class_id, row in rows]
                named = named if len(named) < 2 * end + SLICE else nsmallest(end, named)
        ids = np.array([class_id for _, class_id in sorted(named)] if sort == "name" else found, np.int64)
        total = len(found)
    if sort == "count":
        ids = ids[np.argsort(-live.label_counts[ids], kind="stable")]
    elif sort == "R@1":
        ids = ids[np.argsort(live.prequential.of_labels(live.labels.n_ids)[1][ids], kind="stable")]
    return StreamingResponse(_answer(live, ids[offset:end].tolist(), total), media_type=JSON)


@router.put(
    "/models/{model}/labels",
    summary="Register labels with names",
    responses={
        202: {"model": RegisterAnswer, "description": "Durable, but not applied yet."},
        **problems(400, 404, 409, 413, 415, 422, 429, 503, 504, 507),
    },
    openapi_extra=json_body("RegisterRequest", example=EXAMPLE),
)
async def put_labels(
    model: ModelName, request: Request, parts: PartsDep, grant: GrantDep, response: Response
) -> RegisterAnswer:
    """Register labels with their names, descriptions and other details. The details replace earlier ones.

    A name, a description and aliases are learned once, as an instance of the label: `/classify` can then suggest a
    label before it has instances. The same name is not learned again. A new name is learned beside the old one.
    Registrations do not count in the statistics. The job `forget` with their `source` removes them.
    """
    headers = dict(request.scope["headers"])
    media_of(headers, (JSON.encode(),))
    body = await read_body(request.receive, headers, parts.settings.max_body_bytes, parts.held)
    most = parts.settings.max_batch
    asked = await decode_batch(register_decoder, body, "labels", registration_decoder, most, max_work=MAX_DETAILS_WORK)
    if len(asked.labels) > most:
        raise InvalidInstance(f"labels: a request has at most {most}, not {len(asked.labels)}", "labels")
    known = parts.replica.models.trusted(model)
    await parts.rates.admit(grant, len(asked.labels), asked.source, learns=True)
    config, pace = known.live.config, TimeSlice()
    parents: dict[str, str | None] = {}
    room = ByteBudget(parts.replica.params.log.request_bytes)
    records: list[bytes] = []
    names: list[Instance] = []
    aliases: list[LabelChange] = []
    with parts.learning.track_new_classes(known) as new:
        for at, one in enumerate(asked.labels):
            try:
                [label, *above] = known.live.vectorizer.labels((one.label, one.parent))
                if label in parents:
                    raise InvalidInstance("label comes twice", "label")
                parents[label] = above[0] if above else None
                text, record = _record(known.live, label, parents[label], one)
                records.append(record)
                names.append(Instance(text=text if asked.learn and text else None))
                aliases += [LabelChange("alias", label, to) for to in known.live.vectorizer.labels(one.aliases)]
                new.check([label, *above])
            except InvalidInstance as error:
                raise error.inside(f"labels[{at}]") from None
            if pace.due():
                await pace.pause()
        await _check_parents(known.live, parents)
        await parts.remote.encode(known.live.config.analyzer, names)
        for at, name in enumerate(names):
            if name.text is not None:
                vector = await vector_of(known.live, name, Warnings())
                records[at] = vector + records[at][len(EMPTY_VECTOR) :]
            room.reserve(len(records[at]))
            if pace.due():
                await pace.pause()
        if aliases:
            records.append(change_record(aliases, grant))
        draft = LearnDraft(b"".join(records), len(records), source=asked.source)
        [done] = await parts.learning.append(known, config, [draft], asked.wait)
    if not done.applied:
        response.status_code = 202
    last = done.offset._replace(position=done.offset.position + done.n - 1)
    return RegisterAnswer(offset=str(last), applied=done.applied, durability=done.durability)


async def _check_parents(live: LiveModel, given: dict[str, str | None]) -> None:
    """Raise InvalidInstance if parents of a request close a cycle. Applying drops one that does so in the meantime."""
    pace = TimeSlice()
    for at, label in enumerate(given):
        path, above = [label], given[label]
        while above is not None and above not in path and len(path) <= MAX_PATH:
            path.append(above)
            class_id = live.tree.parent(live.find(above))
            above = given[above] if above in given else live.label(class_id) if class_id >= 0 else None
        if above is not None:
            named = " > ".join([above, *reversed(path)])
            what = "closes a cycle" if above in path else f"has more than {MAX_PATH} labels above it"
            raise InvalidInstance(f"labels[{at}]: parent {what}: {named[:500]}", f"labels[{at}].parent")
        if pace.due():
            await pace.pause()


def _record(live: LiveModel, label: str, parent: str | None, registration: LabelRegistration) -> tuple[str, bytes]:
    """Return the text of a label's names and description, and the record without a vector that registers it."""
    for field, names in (("parent", [parent] if parent else []), ("aliases", registration.aliases)):
        try:
            for one in names:
                pack_labels([one], live.limits)
        except InvalidInstance as error:
            raise InvalidInstance(f"{field}: {error}", field) from None
    if _is_nested(registration.metadata):
        raise InvalidInstance(f"metadata has at most {MAX_NESTING} levels of lists and objects", "metadata")
    labels = pack_labels([label], live.limits)
    found = LabelDetails(registration.name, registration.description, parent, registration.metadata)
    details = encoder.encode(found) if found != NO_DETAILS else b""
    if len(details) > MAX_DETAILS_BYTES:
        raise InvalidInstance(
            f"the details of a label have at most {MAX_DETAILS_BYTES} bytes as JSON, not {len(details)}",
            "description" if registration.metadata is None else "metadata",
        )
    name, analyzer = registration.name or words_of(label), live.config.analyzer
    if live.config.normalize and analyzer.kind == "word" and analyzer.stem is None and analyzer.embed is None:
        name = with_other_number(name)
    text = "\n".join(part for part in (name, registration.description, *registration.aliases) if part)
    return text, add_details(EMPTY_VECTOR + labels, details)


def _is_nested(value: Any, levels: int = MAX_NESTING) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    return not levels or any(_is_nested(x, levels - 1) for x in (value.values() if isinstance(value, dict) else value))


@router.get(
    "/models/{model}/labels/{label:path}",
    summary="A label, and the features that vote for it",
    responses=problems(404, 422, 503),
)
async def get_label(
    model: ModelName,
    label: Annotated[str, Path(max_length=512, description="The label; `/` may stand in it.", examples=["grain"])],
    replica: ReplicaDep,
    room: SearchRoom,
    limit: Limit = 100,
) -> LabelAnswer:
    """Return a label and its heaviest features in the index, without what the model has learned from vectors.

    The service scans all connections of the index, in slices; do not call this for every request.
    """
    return await _label_of(replica.model(model).live, model, label, limit)


@router.get(
    "/models/{model}/label",
    summary="A label by any name, and the features that vote for it",
    responses=problems(404, 422, 503),
)
async def get_label_by_name(
    model: ModelName,
    name: Annotated[str, Query(max_length=512, description="The label.", examples=["grain"])],
    replica: ReplicaDep,
    room: SearchRoom,
    limit: Limit = 100,
) -> LabelAnswer:
    """Do the same as `/labels/{label}`, also for the labels `.` and `..`, which cannot be part of a path."""
    return await _label_of(replica.model(model).live, model, name, limit)


async def _label_of(live: LiveModel, model: str, label: str, limit: int) -> LabelAnswer:
    [label] = live.vectorizer.labels([label])
    class_id = live.find(label)
    if class_id < 0:
        raise UnknownLabel(f"the model {model} has never learned the label {label[:100]!r}")
    features, total = await _voting_features(live, class_id, limit)
    n, r1 = live.prequential.of_labels(live.labels.n_ids)
    return LabelAnswer(
        label=live.label(class_id),
        learned=live.times_learned(class_id),
        features=features,
        total=total,
        details=DetailsShape.of(_details(live, class_id)),
        aliases=live.aliases(class_id),
        retired=live.changes.is_retired(class_id),
        recent=None if np.isnan(r1[class_id]) else float(r1[class_id]),
        n_recent=int(n[class_id]),
        confused_with={live.label(one): n for one, n in live.prequential.confusions(class_id, live.labels.n_ids)},
    )


def _details(live: LiveModel, class_id: int) -> LabelDetails:
    """Return the registered details of a label, with the parent that it has: one that closed a cycle was dropped."""
    details, parent = details_from(live.details.get(class_id)), live.tree.parent(class_id)
    return msgspec.structs.replace(details, parent=live.label(parent) if parent >= 0 else None)


async def _voting_features(live: LiveModel, class_id: int, limit: int) -> tuple[list[PointingShape], int]:
    """Return the heaviest features of a class and how many vote for it, without the codes of vectors."""
    best: list[tuple[float, str]] = []
    total = 0
    pace = TimeSlice()
    for first in range(0, live.index.n_features, SLICE):
        weights = weights_to(live.index, class_id, first, min(first + SLICE, live.index.n_features))
        voting = np.flatnonzero(weights)
        if live.dimension:
            voting = voting[[not live.features.key(first + at).startswith(PREFIX) for at in voting.tolist()]]
        total += len(voting)
        heaviest = voting[np.argsort(-weights[voting], kind="stable")[:limit]]
        found = [(float(weights[at]), live.features.key(first + at).decode()) for at in heaviest.tolist()]
        best = nlargest(limit, best + found, key=itemgetter(0))
        if pace.due():
            await pace.pause()
    return [PointingShape(feature=feature, weight=weight) for weight, feature in best], total


async def _answer(live: LiveModel, class_ids: Sequence[int], total: int) -> AsyncIterator[bytes]:
    """Yield the JSON of a ``LabelsAnswer`` in pieces: with their details, labels take up to 17 KB each."""
    labels, learned = [live.label(one) for one in class_ids], [live.times_learned(one) for one in class_ids]
    recent = live.prequential.of_labels(len(live.labels))[1][class_ids].tolist()
    parts = labels, learned, recent  # NaN is encoded as null
    piece = bytearray(b'{"labels":%b,"learned":%b,"recent":%b,' % tuple(map(encoder.encode, parts)))
    piece += b'"total":%d,"details":{' % total
    pace, separator = TimeSlice(), b""
    for class_id, label in zip(class_ids, labels, strict=True):
        if live.details.get(class_id):
            details = msgspec.structs.asdict(_details(live, class_id))
            piece += b"%b%b:%b" % (separator, encoder.encode(label), encoder.encode(details))
            separator = b","
        if len(piece) > PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
        if pace.due():
            await pace.pause()
    if retired := [live.label(one) for one in class_ids if live.changes.is_retired(one)]:
        yield bytes(piece) + b'},"retired":%b}' % encoder.encode(retired)
        return
    yield bytes(piece) + b"}}"
