"""Schemas of contests between versions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from pydantic import Field

from abound.api.schemas.shape import Shape
from abound.versions.promotion.challengers import Challenger
from abound_core.promotion_rule import Decision


class RankedShape(Shape):
    """Metrics over some instances, 0..1; null without an instance."""

    n: int = Field(description="Instances that it ranked.")
    r_at_1: float | None = Field(alias="R@1", ge=0, le=1)
    r_at_5: float | None = Field(alias="R@5", ge=0, le=1)
    mrr: float | None = Field(alias="MRR", ge=0, le=1)


class DifferenceShape(Shape):
    """Reciprocal ranks minus those of the served version, on the instances that both have ranked since they exist."""

    n: int
    mean: float = Field(ge=-1, le=1)
    low: float = Field(
        description="The mean lies between `low` and `high`, simultaneously at all times. The interval is more "
        "cautious than the evidence, which may decide while 0 is still inside.",
        ge=-1,
        le=1,
    )
    high: float = Field(ge=-1, le=1)
    evidence: float = Field(description="Evidence that it is better than the served version; see `gate`.")


class ComparedShape(RankedShape):
    """One of the versions that are compared. A label below rank 50 counts as not ranked."""

    version: str = Field(description="`live`: the index; or the id of a version.")
    window: RankedShape = Field(description="Over the newest 4,500 to 5,000 instances.")
    difference: DifferenceShape | None = Field(description="Null for the served version.")
    decision: Literal["served", "waits", "too few", "better", "worse", "undecided"] = Field(
        description="`better`: it has the needed evidence. `worse`: the whole interval is below 0."
    )


class DecisionShape(
    Shape,
    record=Decision,
    fields="offset outcome kind version instead_of n difference low high evidence",
):
    """A decision of the gate."""

    offset: str = Field(description="Offset of the decision.")
    outcome: str
    n: int = Field(description="Instances on which both versions were compared.")


class GateShape(Shape):
    """The promotion rule: `needed` evidence after at least `min_events` instances."""

    alpha: float = Field(description="Upper bound of the probability of promoting a version that is not better.")
    min_events: int
    needed: float


class ContestShape(Shape):
    """The versions that rank every instance before the model learns it."""

    served: str
    offset: str = Field(description="Events up to this offset are counted.")
    since: str = Field(description="Offset at which the counting began.")
    gate: GateShape
    gaps: int = Field(description="How often instances were skipped because the data to continue was gone.")
    versions: list[ComparedShape]
    decisions: list[DecisionShape] = Field(description="The newest, oldest first.")
    promotions: int
    rollbacks: int
    trouble: dict[str, str] = Field(description="Versions that cannot rank, and why.")


class ChallengerShape(Shape, record=Challenger):
    """A challenger."""


class ChallengersAnswer(Shape):
    """The challengers, and the state of the contest."""

    challengers: list[ChallengerShape] = Field(description="In the order of their entry; at most four.")
    contest: ContestShape | None = Field(description="Null until the worker has followed the contest.")


class EnterRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A version to be scored on live traffic."""

    version: Annotated[str, Meta(pattern=r"^[0-9a-z]{8,32}$", description="Id of the version.")]
    reason: Annotated[str, Meta(min_length=1, max_length=1000)] = "asked for"
