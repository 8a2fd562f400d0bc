"""Schemas of versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from pydantic import Field

from abound.api.schemas.jobs import RangeShape
from abound.api.schemas.shape import Shape
from abound.versions.card import Card


class ActivateRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The version that is to answer requests without `version`."""

    version: Annotated[str, Meta(min_length=1, max_length=64, description="Id of a version, or `live`: the index.")]
    reason: Annotated[str, Meta(max_length=1000, description="Stored with the event.")] = ""


class ActivatedAnswer(Shape):
    """The offset from which every replica answers with the version."""

    version: str
    offset: str
    former: str = Field(description="The version that was active before, for a rollback.")


class VersionSizes(Shape):
    """The size of the data that a version was fitted on."""

    instances: int = Field(ge=0)
    features: int = Field(ge=0)
    classes: int = Field(ge=0, description="Distinct labels.")
    nnz: int = Field(ge=0, description="Total active features of all instances.")
    assertions: int = Field(ge=0, description="Total labels of all instances.")


class CardAnswer(
    Shape,
    record=Card,
    fields="id model method params seed data upload data_range offset created metrics sizes bytes libraries digest job "
    "origin needed",
):
    """A version: a fitted batch method, which can answer in place of the index."""

    upload: str | None = Field(description="Id of the upload of the data set.")
    data_range: RangeShape | None = Field(description="The events of history that it was fitted on.")
    sizes: VersionSizes
    bytes: int = Field(ge=0)
    needed: str | None = Field(description="Why it cannot be deleted.")


class VersionsAnswer(Shape):
    """Versions, newest first."""

    versions: list[CardAnswer]


class Comparison(Shape):
    """A comparison of versions: each list has one value per version, null where a version has none."""

    versions: list[str] = Field(description="Ids of the versions.")
    methods: list[str]
    created: list[float]
    bytes: list[int]
    metrics: dict[str, list[Any]]
    sizes: dict[str, list[int | None]]
    params: dict[str, list[Any]]

    @classmethod
    def between(cls, cards: list[Card]) -> Comparison:
        return cls(
            versions=[card.id for card in cards],
            methods=[card.method for card in cards],
            created=[card.created for card in cards],
            bytes=[card.n_bytes for card in cards],
            metrics=_columns([card.metrics for card in cards]),
            sizes=_columns([card.sizes for card in cards]),
            params=_columns([{"seed": card.seed, **card.params} for card in cards]),
        )


def card_answer(card: Card, needed: Mapping[str, str]) -> CardAnswer:
    return CardAnswer.of(card, bytes=card.n_bytes, needed=needed.get(card.id))


def _columns(columns: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name) for column in columns] for name in names}
