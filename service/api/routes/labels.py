"""``/models/{model}/labels``: the labels that a model knows, and what speaks for one."""

from __future__ import annotations

from heapq import nlargest
from operator import itemgetter
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from abound.core.errors import Overloaded, UnknownLabel
from abound.core.model.label_features import weights_to
from abound.core.model.live_model import LiveModel
from abound.service.api.dependencies import ModelName, ReplicaDep
from abound.service.api.openapi import problems
from abound.service.api.schemas.hot import Shape
from abound.service.tasks import Pace

MAX_LABELS_LISTED = 10_000
MAX_FEATURES_LISTED = 1000

SLICE = 4096
"""Features that are looked at before others have their turn."""

MOST_SEARCHES = 4
"""Searches for features at once, a process."""

Limit = Annotated[int, Query(ge=1, le=MAX_FEATURES_LISTED, description="At most so many features.")]

router = APIRouter(tags=["models"])


class LabelsAnswer(Shape):
    """Labels in the order in which they were first seen."""

    labels: list[str]
    learned: list[int] = Field(description="How often each was learned.")
    total: int = Field(description="Labels that begin with `prefix` and have `contains` in them.")


class PointingShape(Shape):
    """A feature that votes for a label."""

    feature: str
    weight: float = Field(description="What it adds to the score alone and with the value 1.")


class LabelAnswer(Shape):
    """A label, and the features that vote for it."""

    label: str
    learned: int = Field(description="How often it was learned.")
    features: list[PointingShape] = Field(description="The heaviest first.")
    total: int = Field(description="Features that vote for it.")


@router.get("/models/{model}/labels", summary="Labels that a model knows", responses=problems(404, 422, 503))
async def get_labels(
    model: ModelName,
    replica: ReplicaDep,
    prefix: Annotated[str, Query(max_length=512, description="Only labels that begin with this.")] = "",
    contains: Annotated[
        str, Query(max_length=512, description="Only labels that have this in them, in capitals or not.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LABELS_LISTED, description="At most so many.")] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31, description="Leave out so many.")] = 0,
) -> LabelsAnswer:
    """In the order in which they were first seen. With `prefix` or `contains` all of them are looked at, in slices."""
    live = replica.model(model).live
    if not (prefix or contains):
        n = len(live.labels)
        return _answer(live, list(range(min(offset, n), min(offset + limit, n))), n)
    begin, part = prefix.encode("utf-8", "surrogatepass"), contains.casefold()
    pace = Pace()
    found = []
    total = 0
    for class_id in range(len(live.labels)):
        label = live.labels.key(class_id)
        if label.startswith(begin) and (not part or part in label.decode().casefold()):
            if offset <= total < offset + limit:
                found.append(class_id)
            total += 1
        if pace.due():
            await pace.rest()
    return _answer(live, found, total)


class Searches:
    """How many searches for features are under way in this process."""

    count = 0

    @classmethod
    def check(cls) -> None:
        """Overloaded when no further one is let in."""
        if cls.count >= MOST_SEARCHES:
            raise Overloaded(f"{MOST_SEARCHES} searches for the features of labels are under way", retry_after=1.0)


@router.get(
    "/models/{model}/labels/{label:path}",
    summary="A label, and the features that vote for it",
    responses=problems(404, 422, 503),
)
async def get_label(
    model: ModelName,
    label: Annotated[str, Path(max_length=512, description="The label; `/` may stand in it.", examples=["grain"])],
    replica: ReplicaDep,
    room: Annotated[None, Depends(Searches.check)],
    limit: Limit = 100,
) -> LabelAnswer:
    """In the index as it is. All its connections are looked at for this, in slices: it is for people, now and then."""
    return await _label_of(replica.model(model).live, model, label, limit)


@router.get(
    "/models/{model}/label",
    summary="A label by any name, and the features that vote for it",
    responses=problems(404, 422, 503),
)
async def get_label_by_name(
    model: ModelName,
    name: Annotated[str, Query(max_length=512, description="The label, whatever stands in it.", examples=["grain"])],
    replica: ReplicaDep,
    room: Annotated[None, Depends(Searches.check)],
    limit: Limit = 100,
) -> LabelAnswer:
    """As `/labels/{label}`, for those labels too that no path can carry: `.` and `..`."""
    return await _label_of(replica.model(model).live, model, name, limit)


async def _label_of(live: LiveModel, model: str, label: str, limit: int) -> LabelAnswer:
    class_id = live.labels.find(label.encode("utf-8", "surrogatepass"))
    if class_id < 0:
        raise UnknownLabel(f"the model {model} was never taught the label {label[:100]!r}")
    Searches.count += 1
    try:
        features, total = await _pointing(live, class_id, limit)
    finally:
        Searches.count -= 1
    return LabelAnswer(label=label, learned=live.times_learned(class_id), features=features, total=total)


async def _pointing(live: LiveModel, class_id: int, limit: int) -> tuple[list[PointingShape], int]:
    """The heaviest features of a class, and how many there are."""
    best: list[tuple[float, str]] = []
    total = 0
    pace = Pace()
    for first in range(0, live.index.n_features, SLICE):
        weights = weights_to(live.index, class_id, first, min(first + SLICE, live.index.n_features))
        voting = np.flatnonzero(weights)
        total += len(voting)
        heaviest = voting[np.argsort(-weights[voting], kind="stable")[:limit]]
        found = [(float(weights[at]), live.features.key(first + at).decode()) for at in heaviest.tolist()]
        best = nlargest(limit, best + found, key=itemgetter(0))
        if pace.due():
            await pace.rest()
    return [PointingShape(feature=feature, weight=weight) for weight, feature in best], total


def _answer(live: LiveModel, class_ids: list[int], total: int) -> LabelsAnswer:
    return LabelsAnswer(
        labels=[live.label(class_id) for class_id in class_ids],
        learned=[live.times_learned(class_id) for class_id in class_ids],
        total=total,
    )
