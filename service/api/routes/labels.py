"""``/models/{model}/labels``: the labels that a model knows, and the features that vote for each."""

from __future__ import annotations

from heapq import nlargest
from operator import itemgetter
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from abound.core.errors import Overloaded, UnknownLabel
from abound.core.kernels.records.codes import PREFIX
from abound.core.model.label_features import weights_to
from abound.core.model.live_model import LiveModel
from abound.service.api.dependencies import ModelName, ReplicaDep
from abound.service.api.openapi import problems
from abound.service.api.schemas.shape import Shape
from abound.service.asyncio_tasks import TimeSlice

MAX_LABELS_LISTED = 10_000
MAX_FEATURES_LISTED = 1000

SLICE = 4096
"""Features that are read before other tasks get a turn."""

MAX_SEARCHES = 4
"""Most concurrent searches for features, per process."""

Limit = Annotated[int, Query(ge=1, le=MAX_FEATURES_LISTED, description="Maximum number of features.")]

router = APIRouter(tags=["models"])


class LabelsAnswer(Shape):
    """Labels, in the order in which they were first learned."""

    labels: list[str]
    learned: list[int] = Field(description="How often each label was learned.")
    total: int = Field(description="Number of labels that start with `prefix` and contain `contains`.")


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


@router.get("/models/{model}/labels", summary="The labels of a model", responses=problems(404, 422, 503))
async def get_labels(
    model: ModelName,
    replica: ReplicaDep,
    prefix: Annotated[str, Query(max_length=512, description="Only labels that start with this.")] = "",
    contains: Annotated[
        str, Query(max_length=512, description="Only labels that contain this; case-insensitive.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LABELS_LISTED, description="Maximum number of labels.")] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31, description="Number of labels to skip.")] = 0,
) -> LabelsAnswer:
    """List labels in the order in which they were first learned.

    With `prefix` or `contains` the service scans all labels, in slices.
    """
    live = replica.model(model).live
    if not (prefix or contains):
        n = len(live.labels)
        return _answer(live, list(range(min(offset, n), min(offset + limit, n))), n)
    begin, part = prefix.encode("utf-8", "surrogatepass"), contains.casefold()
    pace = TimeSlice()
    found = []
    total = 0
    for class_id in range(len(live.labels)):
        label = live.labels.key(class_id)
        if label.startswith(begin) and (not part or part in label.decode().casefold()):
            if offset <= total < offset + limit:
                found.append(class_id)
            total += 1
        if pace.due():
            await pace.pause()
    return _answer(live, found, total)


class LabelSearches:
    """Counts the searches for features in progress in this process."""

    count = 0

    @classmethod
    def check(cls) -> None:
        """Raise Overloaded when too many searches are in progress."""
        if cls.count >= MAX_SEARCHES:
            raise Overloaded(f"{MAX_SEARCHES} searches for features of labels are already running", retry_after=1.0)


@router.get(
    "/models/{model}/labels/{label:path}",
    summary="A label, and the features that vote for it",
    responses=problems(404, 422, 503),
)
async def get_label(
    model: ModelName,
    label: Annotated[str, Path(max_length=512, description="The label; `/` may stand in it.", examples=["grain"])],
    replica: ReplicaDep,
    room: Annotated[None, Depends(LabelSearches.check)],
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
    room: Annotated[None, Depends(LabelSearches.check)],
    limit: Limit = 100,
) -> LabelAnswer:
    """Do the same as `/labels/{label}`, also for the labels `.` and `..`, which cannot be part of a path."""
    return await _label_of(replica.model(model).live, model, name, limit)


async def _label_of(live: LiveModel, model: str, label: str, limit: int) -> LabelAnswer:
    class_id = live.labels.find(label.encode("utf-8", "surrogatepass"))
    if class_id < 0:
        raise UnknownLabel(f"the model {model} has never learned the label {label[:100]!r}")
    LabelSearches.count += 1
    try:
        features, total = await _voting_features(live, class_id, limit)
    finally:
        LabelSearches.count -= 1
    return LabelAnswer(label=label, learned=live.times_learned(class_id), features=features, total=total)


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


def _answer(live: LiveModel, class_ids: list[int], total: int) -> LabelsAnswer:
    return LabelsAnswer(
        labels=[live.label(class_id) for class_id in class_ids],
        learned=[live.times_learned(class_id) for class_id in class_ids],
        total=total,
    )
