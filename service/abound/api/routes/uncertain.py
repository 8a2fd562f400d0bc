"""``/models/{model}/uncertain``: the queue of remembered instances that a person should label."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, Query
from pydantic import Field

from abound.api.answer_json import add_names, scored_labels
from abound.api.dependencies import ModelName, PartsDep
from abound.api.openapi import problems
from abound.api.schemas.learn_classify import AUDIT, DECISION, ScoredLabel
from abound.api.schemas.shape import Shape
from abound.replica.predictions import RememberParams, StoredInstance, newest_predictions, vector_fingerprint
from abound.state.replicated_model import new_secret
from abound.tasks import TimeSlice
from abound_core.instances.codes_kernels import EXPANSION, expand_vector
from abound_core.instances.record import has_dense, unpack_vector
from abound_core.methods.training.gather import MatrixBuilder
from abound_core.model.live_model import Decided, LiveModel
from abound_core.types import Ranking

router = APIRouter(tags=["models"])

MAX_RANKED = 1000  # newest remembered instances, among which the first ones are found
MAX_BYTES = 8 * 2**20  # of their vectors and texts, after which no more are read
N_LABELS = 9  # per instance in the answer
ALIKE = 0.5  # cosine above which an instance waits for all that are not alike


class CandidateShape(Shape, record=ScoredLabel, fields="label score probability name"):
    """A label and its score."""


class UncertainShape(Shape):
    """A remembered instance."""

    id: str = Field(description="For `prediction` in `/learn`.")
    text: str | dict[str, str | None] | None = Field(description="Its text as it came; null without one.")
    features: dict[str, float] = Field(description="Its active features as the model reads them.")
    labels: list[CandidateShape] = Field(description="The best labels of the live index.")
    margin: float = Field(description="Score of the best label minus that of the second; a missing label scores 0.")
    decision: Literal["answer", "defer", "none"] | None = Field(description=DECISION)
    audit: bool = Field(description=AUDIT)


class UncertainAnswer(Shape):
    """Instances, the one to ask about first comes first."""

    instances: list[UncertainShape]
    waiting: int = Field(description="Number of instances from which these are: not learned yet, of the newest 1,000.")


@router.get(
    "/models/{model}/uncertain",
    summary="The remembered instances to ask a person about",
    responses=problems(404, 422, 503),
)
async def get_uncertain(
    model: ModelName,
    parts: PartsDep,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of instances.")] = 20,
) -> UncertainAnswer:
    """List instances that `/classify` remembered, in the order in which a person should label them.

    A model with `decide` lists those that it defers first, then those to audit, then the others, each by the
    probability of the best label, lowest first. Another model lists those with the lowest margin between two labels
    first. Each of these groups ends with the instances that are like an earlier one.

    The live index ranks the newest 1,000 that were not learned by their id (`prediction` in `/learn`) yet.
    """
    replica = parts.replica
    known = replica.model(model)
    reading = vector_fingerprint(known.live.config)
    params = parts.settings.group(RememberParams)
    found = await newest_predictions(replica.store, known.keys, params, reading, MAX_RANKED, MAX_BYTES)
    pace = TimeSlice()
    urgency, vectors = [], []
    for one in found:
        live = replica.model(model).live
        urgency.append(_urgency(*_ranked(live, one.vector)))
        vectors.append(_expanded(live, one.vector))
        if pace.due():
            await pace.pause()
    order = sorted(range(len(found)), key=urgency.__getitem__)
    groups = [urgency[at][0] for at in order]
    first = await asyncio.to_thread(spread, [vectors[at] for at in order], groups, limit)
    live = replica.model(model).live
    return UncertainAnswer(instances=[_shape(live, found[order[place]]) for place in first], waiting=len(found))


def spread(vectors: Sequence[bytes], groups: Sequence[int], most: int) -> list[int]:
    """Return the places of the first ``most`` vectors if those that are like an earlier one end their group.

    ``groups``: the group of each, ascending.
    """
    builder = MatrixBuilder(new_secret())
    for vector in vectors:
        builder.add(vector, ())
    X = builder.matrices().X  # rows of length 1
    differs, first = np.ones(len(vectors), np.bool_), list[int]()
    for place in range(len(vectors)):
        if differs[place] and len(first) < most:
            first.append(place)
            differs &= X @ X[place].toarray()[0] <= ALIKE
    alike = sorted({*range(len(vectors))}.difference(first))
    return sorted([*first, *alike], key=groups.__getitem__)[:most]


def _ranked(live: LiveModel, vector: bytes) -> tuple[Ranking, Decided | None]:
    if live.decisions.on:
        decided = live.decide(vector, N_LABELS)
        return decided.ranking.first(N_LABELS), decided
    return live.rank_estimated(vector, N_LABELS) if live.calibration.on else live.rank(vector, N_LABELS), None


def _margin(ranking: Ranking) -> float:
    scores: list[float] = [*ranking.scores[:2].tolist(), 0.0, 0.0]
    return scores[0] - scores[1]


def _urgency(ranking: Ranking, decided: Decided | None) -> tuple[int, float]:
    """Return the key by which instances are in order, smallest first."""
    if decided is None:
        return 0, _margin(ranking)
    best = ranking.probabilities[:1].tolist() if ranking.probabilities is not None else []
    return 0 if decided.decision == "defer" else 1 if decided.audit else 2, best[0] if best else 0.0


def _expanded(live: LiveModel, vector: bytes) -> bytes:
    """Return a vector with codes in place of its dense part, so that similar dense vectors share features."""
    if not has_dense(vector):
        return vector
    target = np.empty(len(vector) + EXPANSION, np.uint8)
    return target[: expand_vector(vector, live.config.codes, live.dimension, target)].tobytes()


def _shape(live: LiveModel, stored: StoredInstance) -> UncertainShape:
    ranking, decided = _ranked(live, stored.vector)
    keys, values = unpack_vector(stored.vector)
    labels = scored_labels(live, ranking)
    add_names(live, labels)
    return UncertainShape.of(
        stored,
        text=msgspec.json.decode(stored.text) if stored.text else None,
        features=dict(zip(keys, values.tolist(), strict=True)),
        labels=[CandidateShape.of(label) for label in labels],
        margin=_margin(ranking),
        decision=decided and decided.decision,
        audit=decided is not None and decided.audit,
    )
