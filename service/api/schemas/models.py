"""What is told of models over HTTP, and of their configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from abound.service.api.schemas.hot import Shape

MAX_CLASSES = (
    "A new class beyond this is refused. A replica counts those that it has on their way; of several replicas none "
    "knows what others have, so each may bring what it has on its way at that moment beyond the bound."
)


class AnalyzerShape(Shape):
    """How text becomes terms."""

    kind: Literal["word", "char", "char_wb"] = Field(description="Words, characters, or these inside word bounds.")
    ngrams: list[Annotated[int, Field(ge=1, le=8)]] = Field(
        min_length=2, max_length=2, description="Shortest and longest length."
    )
    lowercase: bool
    strip_accents: bool = Field(description="Take accents and other marks off letters.")
    min_length: int = Field(ge=1, le=64, description="Words shorter than this are left out.")
    stop_words: Literal["english"] | None = Field(description="Leave out English stop words.")


class ConfigShape(Shape):
    """The configuration of a model. In a request, what is not named keeps its value."""

    update: Literal["fsu", "sls"] = Field(
        description="The update rule: of the paper (fast), or sparse least squares (more accurate)."
    )
    eta: float = Field(ge=1e-3, le=10, description="sls: the step of a connection that was never corrected.")
    slots: int = Field(ge=1, le=1024, description="sls: connections of a feature at most, more while features are few.")
    rows: bool = Field(
        description="sls: a small model with many labels keeps a weight for every feature and class, and an intercept "
        "a class."
    )
    idf: bool = Field(description="sls: weigh features by their inverse frequency so far.")
    w_min: float = Field(ge=0, le=1, description="Connections of less weight are dropped.")
    d_max: int = Field(ge=1, le=65_535, description="Only so many connections of a feature vote.")
    margin: float = Field(ge=0, le=1e9, description="Learn until the true class leads by more than this.")
    leak: bool = Field(description="Keep the weight of dropped connections in the feature's total.")
    rating: bool = Field(description="Features seen fewer than ten times vote less.")
    boolean: bool = Field(description="Every active feature has the value 1; nothing is normalised.")
    memory: float | None = Field(ge=1e-6, le=1e12, description="Horizon of the adaptive update, in feature weight.")
    max_features: int | None = Field(ge=1, le=2**31 - 1, description="Beyond it a feature goes for each new one.")
    max_classes: int | None = Field(ge=1, le=2**31 - 1, description=MAX_CLASSES)
    max_memory: int | None = Field(
        ge=2**20, le=2**50, description="Bytes that it may take in a replica; nothing is learned beyond."
    )
    analyzer: AnalyzerShape
    negative: Literal["ignore", "split"] = Field(description="What becomes of negative numbers.")
    calibrate: bool = Field(description="Learn what scores are worth as probabilities; may change at any time.")


class ServingShape(Shape):
    """Which version answers whoever names none; part of the state that all replicas share."""

    version: str = Field(description="The active version; `live` is the index.")
    digest: str = Field(description="Of that version; empty for the index.")
    former: str = Field(description="What was active before: the way back.")
    at: str = Field(description="Offset from which on it is active.")
    weights: tuple[float, float] = Field(description="Of the index and the version, for `version=blend`.")


class ModelSummary(Shape):
    """A model, without its digest."""

    name: str
    incarnation: str = Field(description="Tells models apart that had this name one after the other.")
    config: ConfigShape
    version: str = Field(description="The active version; `live` is the index.")
    serving: ServingShape
    offset: str = Field(description="The last event applied here.")
    learned: int = Field(description="Events applied.")
    features: int
    classes: int
    connections: int
    mean_out_degree: float = Field(description="Connections a feature.")
    in_rows: bool = Field(description="Whether every feature is connected to every class just now: see `rows`.")
    memory: int = Field(description="Bytes held.")
    memory_parts: dict[str, int] = Field(description="Of what these bytes are.")


class ModelAnswer(ModelSummary):
    """A model and the digest of its state at ``offset``."""

    digest: str


class RightsShape(Shape):
    """What the key that was shown may do."""

    scopes: list[Literal["classify", "learn", "admin"]] = Field(description="`admin` includes the other two.")
    all_models: bool = Field(description="Not limited to models: jobs, data sets and keys take such a one.")


class ModelsAnswer(Shape):
    """All models, by name."""

    models: list[ModelSummary]
    key: RightsShape | None = Field(description="What the key that was shown may do; null: no key is asked for.")
