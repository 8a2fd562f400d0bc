"""What travels over HTTP: requests and answers, checked while they are decoded.

The hot routes' shapes are msgspec structs: unknown fields are refused, and so is a number in quotes. ``features``
stays as the bytes it came in, for the vectorizer to read. The rest are pydantic models, which FastAPI documents.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from pydantic import BaseModel, ConfigDict

from abound.core.limits import MAX_KEY_CHARACTERS, MAX_SOURCE_CHARACTERS

MAX_K = 1000
MAX_CHOSEN = 10_000

EXPLAIN = (
    "Tell which features brought each label its score, as `because`. Of the index: a version that answers because it "
    "is active gives none, one that is asked for is refused."
)

MIN_PROBABILITY = (
    "Least probability of a label in an answer. For the index of a model that calibrates; refused where something else "
    "ranks."
)
PROBABILITY = "Of being true: what scored like this came true so often. Only of the index of a model that calibrates."

FEATURES_SCHEMA: dict[str, Any] = {
    "type": ["object", "null"],
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
TEXT = (
    "Text, taken apart by the model's analyzer. A word of more bytes than a feature key may have (512) is passed over."
)

Durability = Literal["log", "fsync", "replica"]
Reached = Annotated[str, Meta(extra_json_schema={"enum": ["log", "fsync", "replica"]})]
Features = Annotated[Raw, Meta(extra_json_schema=FEATURES_SCHEMA)]
Text = Annotated[str, Meta(description=TEXT, examples=["wheat prices rise"])]
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
    min_probability: Annotated[float, Meta(ge=0, le=1, description=MIN_PROBABILITY)] | None = None
    include: Annotated[Chosen, Meta(description="Rank only these labels.")] | None = None
    exclude: Annotated[Chosen, Meta(description="Do not rank these labels.")] | None = None
    explain: Annotated[bool, Meta(description=EXPLAIN)] = False
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
    probability: Annotated[float, Meta(ge=0, le=1, description=PROBABILITY)] | UnsetType = UNSET
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
