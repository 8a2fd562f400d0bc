"""``/models/{model}/uncertain``: the remembered instances that a label would teach most (uncertainty sampling)."""

from __future__ import annotations

import heapq
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from abound.api.dependencies import ModelName, PartsDep
from abound.api.openapi import problems
from abound.api.schemas.shape import Shape
from abound.replica.predictions import RememberParams, newest_predictions, vector_fingerprint
from abound.tasks import TimeSlice
from abound_core.instances.record import unpack_vector

router = APIRouter(tags=["models"])

MAX_RANKED = 1000  # newest remembered instances among which the least certain ones are found
MAX_BYTES = 8 * 2**20  # of their vectors, after which no more are read
N_LABELS = 9  # per instance in the answer


class CandidateShape(Shape):
    """A label and its score."""

    label: str
    score: float


class UncertainShape(Shape):
    """A remembered instance."""

    id: str = Field(description="For `prediction` in `/learn`.")
    features: dict[str, float] = Field(description="Its active features as the model reads them.")
    labels: list[CandidateShape] = Field(description="The best labels of the live index.")
    margin: float = Field(description="Score of the best label minus that of the second; a missing label scores 0.")


class UncertainAnswer(Shape):
    """Instances, least certain first."""

    instances: list[UncertainShape]


@router.get(
    "/models/{model}/uncertain",
    summary="The remembered instances that the model is least sure of",
    responses=problems(404, 422, 503),
)
async def get_uncertain(
    model: ModelName,
    parts: PartsDep,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of instances.")] = 20,
) -> UncertainAnswer:
    """List instances that `/classify` remembered, those with the lowest margin between two labels first.

    The live index ranks the newest 1,000 of them that were not learned by their id (`prediction` in `/learn`) yet.
    """
    replica = parts.replica
    known = replica.model(model)
    reading = vector_fingerprint(known.live.config)
    params = parts.settings.group(RememberParams)
    found = await newest_predictions(replica.store, known.keys, params, reading, MAX_RANKED, MAX_BYTES)
    pace = TimeSlice()
    margins = []
    for at, (_, vector) in enumerate(found):
        scores = [*replica.model(model).live.rank(vector, 2).scores.tolist(), 0.0, 0.0]
        margins.append((scores[0] - scores[1], at))
        if pace.due():
            await pace.pause()
    live = replica.model(model).live
    instances = []
    for margin, at in heapq.nsmallest(limit, margins):
        name, vector = found[at]
        keys, values = unpack_vector(vector)
        ranking = live.rank(vector, N_LABELS)
        labels = [
            CandidateShape(label=live.label(one), score=score)
            for one, score in zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)
        ]
        features = dict(zip(keys, values.tolist(), strict=True))
        instances.append(UncertainShape(id=name, features=features, labels=labels, margin=margin))
    return UncertainAnswer(instances=instances)
