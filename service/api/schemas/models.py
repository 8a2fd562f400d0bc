"""Schemas of models and their configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from abound.service.api.schemas.hot import Shape

MAX_CLASSES = (
    "Classes beyond this number are refused. A replica counts its own pending requests but not those of other "
    "replicas, so several replicas can exceed the bound by the new classes of their pending requests."
)


class AnalyzerShape(Shape):
    """How text becomes terms."""

    kind: Literal["word", "char", "char_wb"] = Field(
        description="Words, characters, or characters within word boundaries."
    )
    ngrams: list[Annotated[int, Field(ge=1, le=8)]] = Field(
        min_length=2, max_length=2, description="Minimum and maximum length."
    )
    lowercase: bool
    strip_accents: bool = Field(description="Remove accents and other marks from letters.")
    min_length: int = Field(ge=1, le=64, description="Shorter words are ignored.")
    stop_words: Literal["english"] | None = Field(description="Ignore English stop words.")


class ConfigShape(Shape):
    """The configuration of a model. In a request, omitted fields keep their values."""

    update: Literal["fsu", "sls"] = Field(
        description="The update rule: the paper's (`fsu`, fast) or sparse least squares (`sls`, more accurate)."
    )
    eta: float = Field(ge=1e-3, le=10, description="sls: the step of a connection that was never corrected.")
    slots: int = Field(ge=1, le=1024, description="sls: maximum connections per feature; more while features are few.")
    rows: bool = Field(
        description="sls: a small model with many labels keeps a weight for every feature and class, and an intercept "
        "per class."
    )
    idf: bool = Field(description="sls: weight features by their inverse frequency so far.")
    w_min: float = Field(ge=0, le=1, description="Connections with a smaller weight are dropped.")
    d_max: int = Field(ge=1, le=65_535, description="Maximum connections of a feature that vote.")
    margin: float = Field(ge=0, le=1e9, description="Learn until the true class leads by more than this.")
    leak: bool = Field(description="Keep the weight of dropped connections in the feature's total.")
    rating: bool = Field(description="Features seen fewer than ten times vote less.")
    boolean: bool = Field(description="Every active feature has the value 1; vectors are not normalised.")
    memory: float | None = Field(ge=1e-6, le=1e12, description="Horizon of the adaptive update, in feature weight.")
    max_features: int | None = Field(ge=1, le=2**31 - 1, description="Beyond it, each new feature replaces another.")
    max_classes: int | None = Field(ge=1, le=2**31 - 1, description=MAX_CLASSES)
    max_memory: int | None = Field(
        ge=2**20, le=2**50, description="Maximum bytes in a replica; a full model learns nothing."
    )
    analyzer: AnalyzerShape
    negative: Literal["ignore", "split"] = Field(
        description="Ignore negative numbers, or make them features of their own."
    )
    calibrate: bool = Field(description="Learn to convert scores to probabilities; can change at any time.")


class ServingShape(Shape):
    """The active version, which answers requests without `version`; part of the state that all replicas share."""

    version: str = Field(description="The active version; `live` is the index.")
    digest: str = Field(description="Digest of that version; empty for the index.")
    former: str = Field(description="The version that was active before, for a rollback.")
    at: str = Field(description="Offset from which it is active.")
    weights: tuple[float, float] = Field(description="Weights of the index and the version, for `version=blend`.")


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
