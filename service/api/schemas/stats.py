"""What is told of how well a model does."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from abound.service.api.schemas.contenders import ContestShape, DriftMarkShape
from abound.service.api.schemas.hot import Shape


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
    trouble: str | None = Field(description="What keeps the log from being trimmed; null while nothing is known to.")


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


class TenthShape(Shape):
    """Pairs of a label and its outcome whose estimate was in one tenth of 0..1; null where there are none."""

    n: int
    estimate: float | None = Field(ge=0, le=1, description="Mean estimate.")
    true: float | None = Field(ge=0, le=1, description="Share that was true.")


class ReliabilityShape(Shape):
    """How far estimates, each made before its outcome was known, were right; null where there are none."""

    n: int = Field(description="Pairs of a label and its outcome: up to five an instance.")
    error: float | None = Field(ge=0, le=1, description="Mean distance of estimate and share: the calibration error.")
    brier: float | None = Field(ge=0, le=1, description="Mean squared distance of estimate and outcome.")
    bins: list[TenthShape] = Field(description="By tenths of the estimate.")


class CalibrationShape(Shape):
    """The reliability of the probabilities."""

    all: ReliabilityShape = Field(description="Over all time.")
    newest: ReliabilityShape = Field(description="Over the newest 10,000 to 20,000 pairs.")


class StatsAnswer(Shape):
    """How well a model does, and how large it is."""

    offset: str
    learned: int = Field(description="Events applied.")
    updated: int = Field(description="Of these, the ones that changed the index.")
    all: ScoresShape = Field(description="Over all time.")
    window: ScoresShape = Field(description="Over the newest 10,000.")
    drift: DriftShape = Field(description="How far the window is from all time; below 0: it has become worse.")
    drift_marks: list[DriftMarkShape] = Field(description="Where the running score was found changed, oldest first.")
    contenders: ContestShape | None = Field(description="Null while nobody contends.")
    trace: TraceShape
    calibration: CalibrationShape | None = Field(description="Null where the model does not calibrate.")
    connections: int
    features: int
    classes: int
    mean_out_degree: float
    in_rows: bool = Field(description="Whether every feature is connected to every class just now: see `rows`.")
    memory: int
    memory_parts: dict[str, int]
    kept: KeptShape | None = Field(description="As it was seen last; null until then.")
    replicas: list[ReplicaShape] = Field(description="Empty while the store is away.")
