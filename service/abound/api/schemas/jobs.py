"""Schemas of jobs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from abound.api.schemas.shape import Shape
from abound.jobs.record import Job


class RangeShape(Shape):
    """The range of events that a job read: after one offset, up to another."""

    after: str | None
    until: str | None


class JobAnswer(
    Shape,
    record=Job,
    fields="id state model method kind params data upload activate reason progress stage attempt cancelling data_range "
    "metrics outcome version error worker created started ended heartbeat",
):
    """A job. Times are seconds since 1970, of the store's clock."""

    progress: float = Field(ge=0, le=1)
    data_range: RangeShape | None
    worker: str | None
    created: float


class JobsAnswer(Shape):
    """Jobs, newest first."""

    jobs: list[JobAnswer]


class MethodShape(Shape):
    """A job method."""

    name: str
    summary: str
    kind: str
    params: dict[str, Any] = Field(description="JSON Schema of the parameters.")


class MethodsAnswer(Shape):
    """The job methods, by name."""

    methods: list[MethodShape]
