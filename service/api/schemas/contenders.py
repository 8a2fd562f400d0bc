"""What is told of contests over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from abound.service.api.schemas.hot import Shape


class RankedShape(Shape):
    """Measures over some instances, 0..1; null without one."""

    n: int = Field(description="Instances that it was asked about.")
    r_at_1: float | None = Field(alias="R@1", ge=0, le=1)
    r_at_5: float | None = Field(alias="R@5", ge=0, le=1)
    mrr: float | None = Field(alias="MRR", ge=0, le=1)


class DifferenceShape(Shape):
    """Reciprocal ranks minus those of what is served, on the same instances, since both are what they are."""

    n: int
    mean: float = Field(ge=-1, le=1)
    low: float = Field(
        description="The mean lies between `low` and `high`, at all times at once. More cautious than the evidence, "
        "which may decide while 0 is still between them.",
        ge=-1,
        le=1,
    )
    high: float = Field(ge=-1, le=1)
    evidence: float = Field(description="That it is better than what is served; see `gate`.")


class ContenderShape(RankedShape):
    """One of those that are asked. What ranks beyond the 50th label counts as not ranked."""

    version: str = Field(description="`live`: the index; `blend`; or the id of a version.")
    window: RankedShape = Field(description="Over the newest 4,500 to 5,000 instances.")
    difference: DifferenceShape | None = Field(description="Null for what is served.")
    decision: Literal["served", "waits", "too few", "better", "worse", "undecided"] = Field(
        description="`better`: its evidence is what is needed. `worse`: all of the interval is below 0."
    )


class DecisionShape(Shape):
    """A decision of the gate."""

    offset: str = Field(description="Where it was taken.")
    outcome: str
    kind: Literal["promote", "roll back"]
    version: str
    instead_of: str
    n: int = Field(description="Instances on which both were compared.")
    difference: float
    low: float
    high: float
    evidence: float


class GateShape(Shape):
    """The rule: `needed` evidence after at least `min_events` instances."""

    alpha: float = Field(description="Largest chance that something takes over though it is not better.")
    min_events: int
    needed: float


class BlendShape(Shape):
    """What is learned of the blend."""

    version: str | None = Field(description="Blended with the index; null without one.")
    weights: list[float] = Field(description="Of the index and the version that lead by now.")


class ContestShape(Shape):
    """All that are asked about what the model learns, before it does."""

    served: str
    offset: str = Field(description="All up to this one is counted.")
    since: str = Field(description="Where the counting began.")
    gate: GateShape
    share: float = Field(description="Of the instances, how many are asked about; below 1 while it lags.")
    passed: int = Field(description="Instances that were not asked about.")
    gaps: int = Field(description="How often instances were passed over since what was needed to go on was gone.")
    versions: list[ContenderShape]
    blend: BlendShape
    decisions: list[DecisionShape] = Field(description="The newest, oldest first.")
    promotions: int
    rollbacks: int
    trouble: dict[str, str] = Field(description="Versions that cannot be asked, and why.")


class DriftMarkShape(Shape):
    """A change of the running score."""

    offset: str = Field(description="Where it was found; it began before.")
    learned: int = Field(description="Instances learned by then.")
    measure: str
    before: float
    after: float


class EnteredShape(Shape):
    """A version that contends."""

    version: str
    reason: str
    since: float = Field(description="Seconds since 1970, of the store's clock.")


class ContendersAnswer(Shape):
    """Which versions contend, and how they stand."""

    contenders: list[EnteredShape] = Field(description="In the order in which they came; at most four.")
    contest: ContestShape | None = Field(description="Null until the worker has looked.")


class EnterRequest(Shape):
    """A version to be scored on live traffic."""

    version: str = Field(pattern=r"^[0-9a-z]{8,32}$", description="Its id.")
    reason: str = Field("asked for", min_length=1, max_length=1000)
