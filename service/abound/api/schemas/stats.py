"""Schemas of the statistics of a model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from abound.api.schemas.challengers import ContestShape
from abound.api.schemas.shape import Shape
from abound.state.replica_status import PublishedStatus


class ScoreShape(Shape):
    """Metrics over ranks; null before the first event."""

    n: int
    r_at_1: float | None = Field(alias="R@1", ge=0, le=1, description="Share ranked first.")
    r_at_5: float | None = Field(alias="R@5", ge=0, le=1, description="Share ranked among the first five.")
    mrr: float | None = Field(alias="MRR", ge=0, le=1, description="Mean reciprocal rank.")


class GroupsShape(Shape):
    """Labels by how often they had been learned before: `tail` under 10 times, `torso` under 100, `head` more."""

    head: ScoreShape
    torso: ScoreShape
    tail: ScoreShape


class ScoresShape(ScoreShape):
    """Metrics over instances, by the best of their labels, and over single labels by frequency."""

    groups: GroupsShape


class ReplicaShape(
    Shape, record=PublishedStatus, fields="replica offset digest digest_offset host pid ready lag versions"
):
    """One replica, as reported by its last heartbeat."""


class LogShape(Shape):
    """The log of a model in the store, and its archived part."""

    entries: int
    bytes: int = Field(description="Bytes up to the last event applied by this replica.")
    trimmed: int = Field(description="Entries that were archived and trimmed.")


class HistoryShape(Shape):
    """The archived log in the artifact store."""

    beginning: str = Field(description="Every event after this offset is available.")
    end: str
    segments: int
    bytes: int


class NewestShape(Shape):
    """The newest snapshot."""

    offset: str
    age: float = Field(description="Age in seconds.")


class KeptShape(Shape):
    """The data of a model in the store and in the artifact store."""

    log: LogShape
    history: HistoryShape | None = Field(description="Null while there is no history.")
    snapshot: NewestShape | None = Field(description="Null while there is no snapshot.")
    trouble: str | None = Field(description="Why the log is not being trimmed; null without a known problem.")


class SeriesShape(Shape):
    """Metrics over time, one number per point, 0..1; null where no instance was ranked since the point before."""

    r_at_1: list[float | None] = Field(alias="R@1")
    r_at_5: list[float | None] = Field(alias="R@5")
    mrr: list[float | None] = Field(alias="MRR")


class GroupSeriesShape(SeriesShape):
    """Metrics over time for the labels of a group."""

    n: list[int] = Field(description="Labels of the group since the point before.")


class TraceShape(SeriesShape):
    """The score over time: each point covers the `stride` instances that end with it. At most 256 points."""

    stride: int
    learned: list[int] = Field(description="Instances learned by each point.")
    times: list[int | None] = Field(
        description="When the log got the event at each point, in milliseconds since 1970; null if unknown."
    )
    groups: dict[Literal["tail", "torso", "head"], GroupSeriesShape]


class TenthShape(Shape):
    """Pairs of a label and its outcome with an estimate in one tenth of 0..1; null where there are none."""

    n: int
    estimate: float | None = Field(ge=0, le=1, description="Mean estimate.")
    true: float | None = Field(ge=0, le=1, description="Share of true outcomes.")


class ReliabilityShape(Shape):
    """Comparison of estimates, each made before its outcome was known, with the outcomes; null where there are none."""

    n: int = Field(description="Pairs of a label and its outcome: up to five per instance.")
    error: float | None = Field(
        ge=0, le=1, description="Expected calibration error: mean distance of estimate and share."
    )
    brier: float | None = Field(ge=0, le=1, description="Brier score: mean squared distance of estimate and outcome.")
    bins: list[TenthShape] = Field(description="Tenths of the estimate.")


class CalibrationShape(Shape):
    """The reliability of the probabilities."""

    all: ReliabilityShape = Field(description="Over all time.")
    newest: ReliabilityShape = Field(description="Over the newest 10,000 to 20,000 pairs.")


class RerankedScoresShape(Shape):
    """The running score of one order; null before the first event. Reciprocal ranks are of the best 50 classes."""

    r_at_1: float | None = Field(alias="R@1")
    mrr: float | None = Field(alias="MRR")


class RerankingShape(Shape):
    """The weights and the gain of the re-ranker. Events with a vector and a true label count."""

    used: bool = Field(description="Whether it orders answers; false while its order would be worse than the index's.")
    weights: dict[str, float] = Field(description="The weight of each term of a class, by the name of the term.")
    n: int = Field(description="Events counted, each ranked before it was learned.")
    answers: RerankedScoresShape = Field(description="The answers.")
    index: RerankedScoresShape = Field(description="The index alone.")


class SharesShape(Shape):
    """Decisions on instances. An audited answer stands for all answers, so that shares are those of `/classify`."""

    n: int = Field(description="Events that count: deferred, none, or an audited answer.")
    shares: dict[Literal["answer", "defer", "none"], float]
    audited: int = Field(description="Audited answers.")
    agreement: float | None = Field(ge=0, le=1, description="Share of their labels that were right; null without any.")
    low: float | None = Field(ge=0, le=1, description="A lower confidence bound of the agreement (84 %).")


class CandidatesShape(Shape):
    """The sets of candidates of deferred instances, over about the newest 2,000; null before the first."""

    coverage: float = Field(description="The configured share with a right label.")
    held: float | None = Field(ge=0, le=1, description="Share of the sets that had a right label.")
    reached: float | None = Field(
        ge=0, le=1, description="Share of the instances with a right label among the best 50."
    )
    reachable: bool


class PointShape(Shape):
    """A threshold, and the share that it would answer."""

    threshold: float = Field(ge=0, le=1, description="Least probability of an applied label.")
    share: float = Field(ge=0, le=1, description="Share of the instances (labels) from it on.")
    agreement: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1, description="Lower confidence bound; 0 with too few events.")


class DecisionsShape(Shape):
    """Decisions, by events that were decided before they were learned."""

    agreement: float = Field(description="The configured agreement.")
    threshold: float | None = Field(description="Least probability of an applied label; null: nothing is answered yet.")
    all: SharesShape = Field(description="Over all time.")
    newest: SharesShape = Field(description="Over the newest 1,000 that count.")
    candidates: CandidatesShape
    none_below: float | None = Field(description="Instances whose best score is below get `none`; null: none do.")
    curve: list[PointShape] = Field(description="By threshold, upwards.")


class FeedbackShape(Shape):
    """Feedback other than true labels, over all time."""

    unlabelled: int = Field(
        description="Events without a true label, or whose labels are not all; they do not count in the metrics."
    )
    rejected: int = Field(description="Rejected labels.")
    ignored: int = Field(description="Ignored labels.")
    weighted: int = Field(description="Events with a weight other than 1.")


class RequestsShape(Shape):
    """Answered `/classify` requests by duration, of all models and replicas. NDJSON streams are not counted."""

    bounds: list[float] = Field(description="Upper bounds of the durations, in seconds.")
    counts: list[int] = Field(
        description="Requests by the smallest bound that their duration does not exceed; last: those past all bounds."
    )


class StatsAnswer(Shape):
    """The accuracy and the size of a model."""

    offset: str
    learned: int = Field(description="Events applied.")
    updated: int = Field(description="Events that changed the index.")
    feedback: FeedbackShape
    all: ScoresShape = Field(description="Over all time.")
    window: ScoresShape = Field(description="Over the newest 10,000.")
    recent: ScoresShape = Field(description="Over the newest 500; below `window`: the model has become worse.")
    challengers: ContestShape | None = Field(description="Null while there is no challenger.")
    trace: TraceShape
    calibration: CalibrationShape | None = Field(description="Null without `calibrate` or `decide`.")
    decisions: DecisionsShape | None = Field(description="Null without `decide`.")
    reranking: RerankingShape | None = Field(description="Null unless the model re-ranks.")
    connections: int
    features: int
    classes: int
    mean_out_degree: float
    in_rows: bool = Field(description="Whether every feature is currently connected to every class; see `rows`.")
    memory: int
    memory_parts: dict[str, int]
    kept: KeptShape | None = Field(description="As last checked; null before the first check.")
    classify: RequestsShape | None = Field(
        description="Null for a key that is limited to models, and while the store cannot be reached."
    )
    replicas: list[ReplicaShape] = Field(description="Empty while the store cannot be reached.")
