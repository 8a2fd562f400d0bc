"""What travels over HTTP: requests and answers, checked while they are decoded.

The hot routes' shapes are msgspec structs: unknown fields are refused, and so is a number in quotes. ``features``
stays as the bytes it came in, for the vectorizer to read. The rest are pydantic models, which FastAPI documents.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from pydantic import BaseModel, ConfigDict, Field

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"

MAX_K = 1000
MAX_CHOSEN = 10_000
MAX_KEY_CHARACTERS = 255
MAX_SOURCE_CHARACTERS = 512

FEATURES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [
            {"type": "number"},
            {"type": "string"},
            {"type": "boolean"},
            {"type": "array", "items": {"type": "string"}},
        ]
    },
    "examples": [{"wheat": 0.4, "price": 3, "country": "FI", "tags": ["a", "b"], "urgent": True}],
    "description": "A number is a value (<= 0 is ignored), a string the feature `name=string`, a list several of "
    "these, true the value 1, false nothing.",
}

Durability = Literal["log", "fsync", "replica"]
Reached = Annotated[str, Meta(extra_json_schema={"enum": ["log", "fsync", "replica"]})]
Features = Annotated[Raw, Meta(extra_json_schema=FEATURES_SCHEMA)]
Text = Annotated[str, Meta(description="Text, taken apart by the model's analyzer.", examples=["wheat prices rise"])]
Chosen = Annotated[list[str], Meta(max_length=MAX_CHOSEN)]
Labels = Annotated[list[str], Meta(min_length=1, description="The true labels, 1 to 100.", examples=[["grain"]])]


class Instance(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What is to be labelled: features, a text, or both."""

    features: Features = msgspec.field(default_factory=Raw)
    text: Text | None = None


class ClassifyRequest(Instance, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An instance, or a batch of ``instances``, and how it is to be ranked."""

    k: Annotated[int, Meta(ge=1, le=MAX_K, description="Most labels in an answer.")] = 10
    threshold: Annotated[float, Meta(description="Least score of a label in an answer.")] | None = None
    include: Annotated[Chosen, Meta(description="Rank only these labels.")] | None = None
    exclude: Annotated[Chosen, Meta(description="Do not rank these labels.")] | None = None
    explain: Annotated[bool, Meta(description="Tell which features brought each label its score.")] = False
    version: (
        Annotated[
            str,
            Meta(
                description="`live`: the index; `blend`: the index and the active version together; or the id of a "
                "version. Without it the active one.",
                examples=["live"],
            ),
        ]
        | None
    ) = None
    min_offset: (
        Annotated[
            str,
            Meta(
                description="Answer from a state that has applied this offset.",
                examples=["0-0.0"],
                extra_json_schema={"pattern": r"^[0-9]{1,20}-[0-9]{1,20}\.[0-9]{1,9}$"},
            ),
        ]
        | None
    ) = None
    remember: Annotated[bool, Meta(description="Keep the instance for a late label.")] = False
    instances: Annotated[list[Instance], Meta(min_length=1, description="A batch.")] | None = None


class LabelledInstance(Instance, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An instance with its labels, or the id of a remembered one with them."""

    labels: Labels | None = None
    prediction: Annotated[str, Meta(description="Id of an instance that classify remembered.")] | None = None
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_CHARACTERS, description="Idempotency key.")] | None = None


class LearnRequest(LabelledInstance, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A labelled instance, or a batch of ``instances``, and how it is to be kept."""

    wait: Annotated[Literal["applied", "log"], Meta(description="What the answer waits for.")] = "applied"
    durability: Annotated[Durability, Meta(description="How safe the event is when answered.")] | None = None
    source: (
        Annotated[str, Meta(min_length=1, max_length=MAX_SOURCE_CHARACTERS, description="Kept with the event.")] | None
    ) = None
    instances: (
        Annotated[list[LabelledInstance], Meta(min_length=1, description="A batch, learned whole or not at all.")]
        | None
    ) = None


class Because(Struct, gc=False):
    """One feature's part in a score."""

    feature: str
    contribution: float


class ScoredLabel(Struct, gc=False):
    """A label and its score; ``because`` sums to the score."""

    label: str
    score: float
    because: list[Because] | UnsetType = UNSET


class ClassifyAnswer(Struct, gc=False):
    """Labels, best first, and the state that ranked them."""

    labels: list[ScoredLabel]
    offset: str
    version: str
    id: Annotated[str, Meta(description="Only with `remember`.")] | UnsetType = UNSET
    remembered: Annotated[bool, Meta(description="False: it could not be kept.")] | UnsetType = UNSET


class ClassifyBatchAnswer(Struct, gc=False):
    """An answer each, in order."""

    results: list[ClassifyAnswer]
    offset: str
    version: str


class LearnAnswer(Struct, gc=False):
    """Where the event lies in the log, and what applying it found.

    ``rank`` is that of the best true label before learning, None when it was not retrieved; both ``rank`` and
    ``updated`` are None while the event is not applied.
    """

    offset: str
    applied: bool
    durability: Reached
    rank: int | None
    updated: bool | None


class LearnResult(Struct, gc=False):
    """One instance of a batch."""

    offset: str
    rank: int | None
    updated: bool | None


class LearnBatchAnswer(Struct, gc=False):
    """A result each, in order; ``offset`` is the last one."""

    results: list[LearnResult]
    offset: str
    applied: bool
    durability: Reached


classify_decoder = msgspec.json.Decoder(ClassifyRequest)
learn_decoder = msgspec.json.Decoder(LearnRequest)
encoder = msgspec.json.Encoder()


class Shape(BaseModel):
    """An answer whose fields are all named here."""

    model_config = ConfigDict(extra="forbid")


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
    idf: bool = Field(description="sls: weigh features by their inverse frequency so far.")
    w_min: float = Field(ge=0, le=1, description="Connections of less weight are dropped.")
    d_max: int = Field(ge=1, le=65_535, description="Only so many connections of a feature vote.")
    margin: float = Field(ge=0, le=1e9, description="Learn until the true class leads by more than this.")
    leak: bool = Field(description="Keep the weight of dropped connections in the feature's total.")
    rating: bool = Field(description="Features seen fewer than ten times vote less.")
    boolean: bool = Field(description="Every active feature has the value 1; nothing is normalised.")
    memory: float | None = Field(ge=1e-6, le=1e12, description="Horizon of the adaptive update, in feature weight.")
    max_features: int | None = Field(ge=1, le=2**31 - 1, description="Beyond it a feature goes for each new one.")
    max_classes: int | None = Field(ge=1, le=2**31 - 1, description="A new class beyond this is refused.")
    max_memory: int | None = Field(
        ge=2**20, le=2**50, description="Bytes that it may take in a replica; nothing is learned beyond."
    )
    analyzer: AnalyzerShape
    negative: Literal["ignore", "split"] = Field(description="What becomes of negative numbers.")


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
    memory: int = Field(description="Bytes held.")
    memory_parts: dict[str, int] = Field(description="Of what these bytes are.")


class ModelAnswer(ModelSummary):
    """A model and the digest of its state at ``offset``."""

    digest: str


class ActivateRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which version is to answer whoever names none."""

    version: Annotated[str, Meta(min_length=1, max_length=64, description="Id of a version, or `live`: the index.")]
    reason: Annotated[str, Meta(max_length=1000, description="Kept with the event.")] = ""


class ActivatedAnswer(Shape):
    """From the offset on, every replica answers with the version."""

    version: str
    offset: str
    former: str = Field(description="What was active before: the way back.")


class RightsShape(Shape):
    """What the key that was shown may do."""

    scopes: list[Literal["classify", "learn", "admin"]] = Field(description="`admin` includes the other two.")
    all_models: bool = Field(description="Not limited to models: jobs, data sets and keys take such a one.")


class ModelsAnswer(Shape):
    """All models, by name."""

    models: list[ModelSummary]
    key: RightsShape | None = Field(description="What the key that was shown may do; null: no key is asked for.")


class ScoreShape(Shape):
    """Measures over ranks; None before the first event."""

    n: int
    r_at_1: float | None = Field(alias="R@1", ge=0, le=1, description="Share ranked first.")
    r_at_5: float | None = Field(alias="R@5", ge=0, le=1, description="Share ranked among the first five.")
    mrr: float | None = Field(alias="MRR", ge=0, le=1, description="Mean reciprocal rank.")


class GroupsShape(Shape):
    """Labels by how often they had been learned before: fewer than 10 times, fewer than 100, more."""

    head: ScoreShape
    torso: ScoreShape
    tail: ScoreShape


class ScoresShape(ScoreShape):
    """Measures over instances, by the best of their labels, and over single labels by frequency."""

    groups: GroupsShape


class DriftShape(Shape):
    """The measures over the newest window less those over all time; None before the first event."""

    r_at_1: float | None = Field(alias="R@1", ge=-1, le=1)
    r_at_5: float | None = Field(alias="R@5", ge=-1, le=1)
    mrr: float | None = Field(alias="MRR", ge=-1, le=1)


class ReplicaShape(Shape):
    """One replica, as it said of itself."""

    replica: str
    offset: str
    digest: str | None
    digest_offset: str | None = Field(description="Where it had this digest.")
    host: str
    pid: int
    ready: bool
    lag: int | None = Field(description="Entries behind the log.")
    versions: list[str] = Field(description="Versions that it has loaded.")


class LogShape(Shape):
    """The log of a model in the store, and what was archived of it."""

    entries: int
    bytes: int = Field(description="As far as it has been applied here.")
    trimmed: int = Field(description="Entries that were archived and trimmed off.")


class HistoryShape(Shape):
    """What the artifact store has of the log's past."""

    beginning: str = Field(description="Every event after this offset can be had.")
    end: str
    segments: int
    bytes: int


class NewestShape(Shape):
    """The newest snapshot."""

    offset: str
    age: float = Field(description="Seconds.")


class KeptShape(Shape):
    """What the stores keep of a model."""

    log: LogShape
    history: HistoryShape | None = Field(description="Null while there is none.")
    snapshot: NewestShape | None = Field(description="Null while there is none.")


class SeriesShape(Shape):
    """Measures over time, a number a point, 0..1; null where nothing was ranked in between."""

    r_at_1: list[float | None] = Field(alias="R@1")
    r_at_5: list[float | None] = Field(alias="R@5")
    mrr: list[float | None] = Field(alias="MRR")


class GroupSeriesShape(SeriesShape):
    """Measures over time, of the labels of a group."""

    n: list[int] = Field(description="Labels of the group that came in between.")


class TraceShape(SeriesShape):
    """The score over time: a point is over the `stride` instances that end with it. At most 256 points."""

    stride: int
    learned: list[int] = Field(description="Instances learned by each point.")
    groups: dict[Literal["tail", "torso", "head"], GroupSeriesShape]


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


class SnapshotShape(Shape):
    """A snapshot of a model."""

    id: str
    offset: str
    digest: str
    bytes: int
    created: float = Field(description="Seconds since 1970, of the store's clock.")


class SnapshotsAnswer(Shape):
    """Snapshots, newest first."""

    snapshots: list[SnapshotShape]


class LiveAnswer(Shape):
    """The process runs."""

    status: Literal["alive"]


class DurabilityAnswer(Shape):
    """What the store promises of an event that it has in its log."""

    appendfsync: str | None = Field(description="`always`, `everysec` or `no`; null when it does not tell.")
    levels: list[str] = Field(description="The levels of durability that a request can ask for.")
    warning: str | None = Field(description="What may be lost, and what mends it; null when nothing may.")


class ReadyAnswer(Shape):
    """This replica answers."""

    status: Literal["ready"]
    log: Literal["connected", "cut off"]
    lag: int | None = Field(description="Entries behind the log, as far as is known.")
    since: float | None = Field(default=None, description="Seconds since the log was cut off.")
    durability: DurabilityAnswer | None = Field(default=None, description="As the store said last.")
    history: str = Field(description="`kept`, or why there is none and the log is not trimmed.")
    keys: bool = Field(description="Whether requests must show a key.")
