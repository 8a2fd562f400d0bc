"""Schemas of models and their configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from abound.api.schemas.shape import Shape
from abound_core.config import AnalyzerConfig, DecideConfig, EncoderUrl, ModelConfig
from abound_core.model.active_version import ServingState


class EncoderShape(Shape, record=EncoderUrl):
    """An encoder behind a URL."""


class AnalyzerShape(Shape, record=AnalyzerConfig):
    """How text becomes terms."""

    embed: str | EncoderShape | None = Field(
        description="sls: the encoder that makes the vector of a text, such as `wordllama`, or its URL and model."
    )
    ngrams: list[Annotated[int, Field(ge=1, le=8)]] = Field(
        min_length=2, max_length=2, description="Minimum and maximum length; the first must not exceed the second."
    )


class DecideShape(Shape, record=DecideConfig):
    """When a label may be applied without a person. In a request, omitted fields keep their values."""


class ConfigShape(Shape, record=ModelConfig):
    """The configuration of a model. In a request, omitted fields keep their values."""

    analyzer: AnalyzerShape
    decide: DecideShape | None


class ServingShape(Shape, record=ServingState, fields="version digest former at"):
    """The active version, which answers requests without `version`; part of the state that all replicas share."""


class ModelSummary(Shape):
    """A model without its digest."""

    name: str
    incarnation: str = Field(description="Id that distinguishes successive models of one name.")
    config: ConfigShape
    version: str = Field(description="The active version; `live` is the index.")
    serving: ServingShape
    offset: str = Field(description="Offset of the last event applied by this replica.")
    learned: int = Field(description="Events applied.")
    features: int
    classes: int
    connections: int
    mean_out_degree: float = Field(description="Mean number of connections per feature.")
    in_rows: bool = Field(description="Whether every feature is currently connected to every class; see `rows`.")
    memory: int = Field(description="Bytes in memory.")
    memory_parts: dict[str, int] = Field(description="These bytes by part.")


class ModelAnswer(ModelSummary):
    """A model and the digest of its state at ``offset``."""

    digest: str


class RightsShape(Shape):
    """The permissions of the key in the request."""

    scopes: list[Literal["classify", "learn", "admin"]] = Field(description="`admin` includes the other two.")
    all_models: bool = Field(description="Whether the key is for all models; jobs, data sets and keys require that.")


class ModelsAnswer(Shape):
    """All models, by name."""

    models: list[ModelSummary]
    key: RightsShape | None = Field(description="Permissions of the key in the request; null: no key is required.")
