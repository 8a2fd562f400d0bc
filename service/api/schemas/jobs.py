"""What is told of jobs over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from abound.service.api.schemas.hot import Shape


class RangeShape(Shape):
    """The events that a job read: those after one offset, up to another."""

    after: str | None
    until: str | None


class JobAnswer(Shape):
    """A job. Times are seconds since 1970, of the store's clock."""

    id: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    model: str
    method: str
    kind: str = Field(description="Which workers do it.")
    params: dict[str, Any] = Field(description="With the defaults of what was not named.")
    data: str
    upload: str | None = Field(description="Which of all files that came under the name of the data set.")
    activate: str
    reason: str | None = Field(description="The user's, for methods that ask for one.")
    progress: float = Field(ge=0, le=1)
    stage: str | None = Field(description="What is being done.")
    attempt: int = Field(description="How often it was begun: more than once when its worker died.")
    cancelling: bool = Field(description="It was told to stop, and has not yet.")
    data_range: RangeShape | None
    metrics: dict[str, Any]
    outcome: dict[str, Any] = Field(description="What came of it, as the method says.")
    version: str | None = Field(description="The version that it made.")
    error: str | None = Field(description="Why it failed, or who cancelled it; why it waits to be begun again.")
    worker: str | None
    created: float
    started: float | None = Field(description="The last time that it was begun.")
    ended: float | None
    heartbeat: float | None = Field(description="When its process last said that it is at work.")


class JobsAnswer(Shape):
    """Jobs, newest first."""

    jobs: list[JobAnswer]


class MethodShape(Shape):
    """What a job can do."""

    name: str
    summary: str
    kind: str
    params: dict[str, Any] = Field(description="JSON Schema of the parameters.")


class MethodsAnswer(Shape):
    """The methods, by name."""

    methods: list[MethodShape]
