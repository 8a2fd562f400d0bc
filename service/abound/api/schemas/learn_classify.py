"""Schemas of the hot routes. Messages are validated while they are decoded.

The hot routes use msgspec structs, which reject unknown fields and quoted numbers. ``features`` stays raw JSON,
which the vectorizer parses. The other schemas are pydantic models, which FastAPI documents.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from abound_core.instances.encoded_vector import EncodedVector, Numbers
from abound_core.limits import (
    MAX_FIELD_NAME,
    MAX_FIELDS,
    MAX_KEY_CHARACTERS,
    MAX_SOURCE_CHARACTERS,
    MAX_WEIGHT,
)

MAX_K = 1000
MAX_CHOSEN = 10_000
MAX_KNOWN = 100

EXPLAIN = (
    "Return the contribution of each feature to the score of a label, as `because`. Only for the index: an active "
    "version answers without it, and a request that names another `version` is refused."
)

MIN_PROBABILITY = (
    "Minimum probability of the labels in an answer. Only for the index of a model with `calibrate`, or of a model "
    "that re-ranks and an instance with a vector; refused with any other version."
)
PROBABILITY = (
    "Share of true labels among those with such a score. Only for the index of a model with `calibrate`, or of a "
    "model that re-ranks and an instance with a vector."
)

DECISION = (
    "Only of a model with `decide`, by the index. `answer`: apply `labels` without a person; `defer`: ask a person; "
    "`none`: no label of the model fits, or a new one does."
)
DECIDE_AGREEMENT = "Share of the applied labels that shall be right; at least that of the model."
CANDIDATES = "Only with `defer`: these have a right label as often as `coverage` says, if that is reachable."
UNREACHABLE = "False: the best 50 labels have a right one less often than `coverage`."
AUDIT = "True: apply the decision, and send what a person says to `/learn`, too."
NO_LABEL_FITS = "No label fits the instance. It has no labels then."
PARTIAL = (
    "The labels are not all: others count neither as true nor as wrong, and the event is in no measure. It needs a "
    "label in `labels`."
)

LEVELS = (
    "Return the `path` of each label. If no label has `min_probability`, `ancestor` is the deepest label that has it "
    "together with all labels below it."
)
KNOWN = (
    "Labels of the instance that are chosen already: the best other ones are ranked, given these. Only for the index "
    "of a model with `update: sls`. Such an answer has no probabilities and no decision."
)
RARE = (
    "Order the best labels (50, or `k` if that is more) by score and rarity, so that seldom learned ones come higher. "
    "Scores stay as they are. Only for the index."
)
FEATURES_SCHEMA: dict[str, Any] = {
    "type": ["object", "null"],
    "additionalProperties": {
        "anyOf": [
            {"type": "number"},
            {"type": "string"},
            {"type": "boolean"},
            {"type": "array", "items": {"type": ["string", "null"]}},
            {"type": "null"},
        ]
    },
    "examples": [{"wheat": 0.4, "price": 3, "country": "FI", "tags": ["a", "b"], "urgent": True}],
    "description": "A number is the value of a feature (<= 0 is ignored), a string is the feature `name=string`, a "
    "list is several of these, true is the value 1; false, null and an empty string are absent.",
}
TEXT = (
    "Text, split by the model's analyzer, or an object with the texts of named fields. A word that is longer than a "
    "feature key may be (512 bytes) is ignored."
)

VECTOR = (
    "A dense vector, such as an embedding: 1 to 2,048 numbers, or their bytes in base64. Only for a model with "
    "`update: sls`. The first vector that is learned fixes their number. It is scaled and stored as int8."
)

VECTOR_MODEL = "The model that made `vector`: refused unless it is that of `analyzer.embed`."

WARNING = (
    "Only if the model ignores negative numbers of an instance, uses only the most frequent terms of its text, or does "
    "not know a label of `known`, `include` or `exclude`. With a batch it is about the first such instance. With "
    "NDJSON, only in the answer to the first such line of a request."
)

LABELS = "The true labels, at most 100; at least one unless `rejected` or `ignored` has one, or `none` is true."
REJECTED = "Labels that are wrong, at most 100, with or without true ones."
IGNORED = (
    "Labels that were shown and not chosen, at most 100, with or without true ones. They are learned only with the "
    "model's `implicit`."
)
WEIGHT = "Importance of the instance; 1 by default. 2 is close to learning it twice."

Wait = Annotated[Literal["applied", "log"], Meta(description="The step after which the service answers.")]
Source = Annotated[str, Meta(min_length=1, max_length=MAX_SOURCE_CHARACTERS, description="Stored with the event.")]
Reached = Annotated[str, Meta(extra_json_schema={"enum": ["log", "fsync", "replica"]})]
Features = Annotated[Raw, Meta(extra_json_schema=FEATURES_SCHEMA)]
FIELDS_SCHEMA = {"maxProperties": MAX_FIELDS, "propertyNames": {"minLength": 1, "maxLength": MAX_FIELD_NAME}}
Text = Annotated[
    str | Annotated[dict[str, str | None], Meta(extra_json_schema=FIELDS_SCHEMA)],
    Meta(description=TEXT, examples=["wheat prices rise", {"title": "wheat prices", "body": "they rise"}]),
]
Warned = Annotated[str, Meta(description=WARNING)] | None
Label = str | int | float | None
Chosen = Annotated[list[Label], Meta(max_length=MAX_CHOSEN)]
Labels = Annotated[list[Label], Meta(description=LABELS, examples=[["grain"]])]
Rejected = Annotated[list[Label], Meta(description=REJECTED, examples=[["crude"]])]
Ignored = Annotated[list[Label], Meta(description=IGNORED, examples=[["trade"]])]
Weight = Annotated[float, Meta(gt=0, le=MAX_WEIGHT, description=WEIGHT, examples=[1.0])]


class Instance(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An instance: features, a text, a vector, or several of them."""

    features: Features = msgspec.field(default_factory=Raw)
    text: Text | None = None
    vector: Annotated[Numbers | EncodedVector | None, Meta(description=VECTOR, examples=[[0.1, -0.25, 0.5]])] = None
    vector_model: Annotated[str, Meta(description=VECTOR_MODEL, examples=["all-minilm"])] | None = None


class DecideOptions(Struct, forbid_unknown_fields=True, gc=False):
    """Options of a decision, by the index of a model with `decide`."""

    agreement: Annotated[float, Meta(ge=0.5, le=0.999, description=DECIDE_AGREEMENT)] | None = None


class ClassifyRequest(Instance, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An instance, or a batch of ``instances``, and options of the ranking."""

    k: Annotated[int, Meta(ge=1, le=MAX_K, description="Maximum number of labels in an answer.")] = 10
    threshold: Annotated[float, Meta(description="Minimum score of the labels in an answer.")] | None = None
    min_probability: Annotated[float, Meta(ge=0, le=1, description=MIN_PROBABILITY)] | None = None
    include: Annotated[Chosen, Meta(description="Rank only these labels and those below them.")] | None = None
    exclude: Annotated[Chosen, Meta(description="Do not rank these labels and those below them.")] | None = None
    known: Annotated[list[Label], Meta(max_length=MAX_KNOWN, description=KNOWN, examples=[["grain"]])] | None = None
    rare: Annotated[bool, Meta(description=RARE)] = False
    levels: Annotated[bool, Meta(description=LEVELS)] = False
    explain: Annotated[bool, Meta(description=EXPLAIN)] = False
    version: (
        Annotated[
            str,
            Meta(
                description="`live`: the index; or the id of a version. Default: the active version.",
                examples=["live"],
            ),
        ]
        | None
    ) = None
    min_offset: (
        Annotated[
            str,
            Meta(
                description="Answer from a state that has applied this offset (read your writes).",
                examples=["0-0.0"],
                extra_json_schema={"pattern": r"^[0-9]{1,20}-[0-9]{1,20}\.[0-9]{1,9}$"},
            ),
        ]
        | None
    ) = None
    names: Annotated[bool, Meta(description="Return the names of registered labels.")] = False
    zero_shot: Annotated[bool, Meta(description="Rank labels too that were registered and have no instance yet.")] = (
        True
    )
    remember: Annotated[bool, Meta(description="Store the instance for a later label.")] = False
    decide: DecideOptions | Annotated[bool, Meta(description="False: rank only.")] | None = None
    instances: Annotated[list[Instance], Meta(min_length=1, description="A batch.")] | None = None


class LabelledInstance(Instance, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An instance, or the id of a remembered instance, with its labels."""

    labels: Labels | None = None
    rejected: Rejected | None = None
    ignored: Ignored | None = None
    none: Annotated[bool, Meta(description=NO_LABEL_FITS)] = False
    partial: Annotated[bool, Meta(description=PARTIAL)] = False
    weight: Weight | None = None
    prediction: Annotated[str, Meta(description="Id of an instance that `/classify` remembered.")] | None = None
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_CHARACTERS, description="Idempotency key.")] | None = None


class LearnRequest(LabelledInstance, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A labelled instance, or a batch of ``instances``, and options of the append."""

    wait: Wait = "applied"
    source: Source | None = None
    instances: (
        Annotated[list[LabelledInstance], Meta(min_length=1, description="A batch, learned whole or not at all.")]
        | None
    ) = None


class Because(Struct, gc=False):
    """The contribution of one feature to a score."""

    feature: str
    contribution: float


class ScoredLabel(Struct, omit_defaults=True, gc=False):
    """A label and its score; the contributions in ``because`` sum to the score. Fields that are None are not sent."""

    label: str
    score: float
    probability: Annotated[float, Meta(ge=0, le=1, description=PROBABILITY)] | None = None
    because: list[Because] | None = None
    name: Annotated[str, Meta(description="Only with `names`, for a label that was registered with a name.")] | None = (
        None
    )
    zero_shot: (
        Annotated[
            bool, Meta(description="Only with `names`, if true: the label was registered and has no instance yet.")
        ]
        | None
    ) = None
    path: Annotated[list[str], Meta(description="Only with `levels`: from the root to this label.")] | None = None


class Ancestor(Struct, gc=False):
    """A label, and the sum of the probabilities of the best 100 labels that are it or below it, at most 1."""

    label: str
    probability: float
    path: list[str]


class ClassifyAnswer(Struct, omit_defaults=True, gc=False):
    """Labels, best first, and the state that ranked them. Fields that are None are not sent."""

    labels: list[ScoredLabel]
    offset: str
    version: str
    id: Annotated[str, Meta(description="Only with `remember`.")] | None = None
    remembered: Annotated[bool, Meta(description="False: the instance could not be stored.")] | None = None
    decision: Annotated[Literal["answer", "defer", "none"], Meta(description=DECISION)] | None = None
    audit: Annotated[bool, Meta(description=AUDIT)] | None = None
    candidates: Annotated[list[str], Meta(description=CANDIDATES)] | None = None
    reachable: Annotated[bool, Meta(description=UNREACHABLE)] | None = None
    warning: Warned = None
    ancestor: Ancestor | None = None


class ClassifyBatchAnswer(Struct, omit_defaults=True, gc=False):
    """One answer per instance, in order."""

    results: list[ClassifyAnswer]
    offset: str
    version: str
    warning: Warned = None


class LearnAnswer(Struct, omit_defaults=True, gc=False):
    """The offset of the event in the log, and the result of applying it.

    ``rank`` is the rank of the best true label before learning, null when it was not retrieved. Both ``rank`` and
    ``updated`` are null while the event is not applied.
    """

    offset: str
    applied: bool
    durability: Reached
    rank: int | None
    updated: bool | None
    warning: Warned = None


class LearnResult(Struct, gc=False):
    """The result of one instance of a batch."""

    offset: str
    rank: int | None
    updated: bool | None


class LearnBatchAnswer(Struct, omit_defaults=True, gc=False):
    """One result per instance, in order; ``offset`` is the last one."""

    results: list[LearnResult]
    offset: str
    applied: bool
    durability: Reached
    warning: Warned = None


classify_decoder = msgspec.json.Decoder(ClassifyRequest)
learn_decoder = msgspec.json.Decoder(LearnRequest)
instance_decoder = msgspec.json.Decoder(Instance)
labelled_decoder = msgspec.json.Decoder(LabelledInstance)
encoder = msgspec.json.Encoder()
