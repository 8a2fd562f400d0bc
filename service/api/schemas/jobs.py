"""Schemas of jobs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from abound.service.api.schemas.hot import Shape


class RangeShape(Shape):
    """The range of events that a job read: after one offset, up to another."""

    after: str | None
    until: str | None


class JobAnswer(Shape):
    """A job. Times are seconds since 1970, of the store's clock."""

    id: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    model: str
    method: str
    kind: str = Field(description="The kind of workers that run it.")
    params: dict[str, Any] = Field(description="Parameters, including defaults.")
    data: str
    upload: str | None = Field(description="Id of the upload of the data set.")
    activate: str
    reason: str | None = Field(description="The user's reason, for methods that require one.")
    progress: float = Field(ge=0, le=1)
    stage: str | None = Field(description="The current stage.")
    attempt: int = Field(description="Number of starts; more than one when a worker died.")
    cancelling: bool = Field(description="Whether it was cancelled but has not stopped yet.")
    data_range: RangeShape | None
    metrics: dict[str, Any]
    outcome: dict[str, Any] = Field(description="Result; its fields depend on the method.")
    version: str | None = Field(description="The version that it produced.")
    error: str | None = Field(description="Why it failed, who cancelled it, or why it waits for a restart.")
    worker: str | None
    created: float
    started: float | None = Field(description="Time of the last start.")
    ended: float | None
    heartbeat: float | None = Field(description="Time of the last heartbeat of its process.")


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
