"""What is told of how well a model does."""

from __future__ import annotations

from pydantic import Field

from service.contest_shapes import ContestShape, DriftMarkShape
from service.schemas import DriftShape, KeptShape, ReplicaShape, ScoresShape, Shape, TraceShape


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
    connections: int
    features: int
    classes: int
    mean_out_degree: float
    memory: int
    memory_parts: dict[str, int]
    kept: KeptShape | None = Field(description="As it was seen last; null until then.")
    replicas: list[ReplicaShape] = Field(description="Empty while the store is away.")
