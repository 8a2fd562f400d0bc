"""``/jobs`` and ``/methods``: background work that takes longer than a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from abound.api.decoding import convert
from abound.api.dependencies import ActorDep, JsonObject, PartsDep, RequestBound
from abound.api.openapi import json_body, problems
from abound.api.schemas.jobs import JobAnswer, JobsAnswer, MethodsAnswer, MethodShape
from abound.jobs.record import Job
from abound.jobs.submission import JobRequest, JobSubmission, load_methods
from abound.security.audit import audited
from abound_core.errors import StoreUnavailable
from abound_core.limits import MAX_KEY_CHARACTERS

POLL_SECONDS = 0.2  # between two reads of a followed job
followers = RequestBound(256, "followers of jobs", retry_after=5.0)
router = APIRouter(tags=["jobs"])

EXAMPLES = {"refit": {"summary": "Relearn from history", "value": {"method": "refit", "params": {}}}}

JobKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=f"^[ -~]{{1,{MAX_KEY_CHARACTERS}}}$",
        description="A repeat with the same body returns the first job in its current state; one with another body is "
        "refused. The key is known as long as the record of the job is kept.",
    ),
]
JobId = Annotated[str, Path(alias="id", description="Id of the job.")]
Accepted: dict[int | str, dict[str, Any]] = {
    202: {
        "model": JobAnswer,
        "description": "Accepted, and not ended yet.",
        "headers": {"Location": {"description": "Path of the job.", "schema": {"type": "string"}}},
    }
}


async def submission(parts: PartsDep) -> JobSubmission:
    return parts.submission


SubmissionDep = Annotated[JobSubmission, Depends(submission)]


async def known_job(job: JobId, submission: SubmissionDep) -> Job:
    return await submission.jobs.get(job)


KnownJob = Annotated[Job, Depends(known_job)]


@router.get("/methods", summary="The job methods")
async def list_methods() -> MethodsAnswer:
    """List the methods, each with the JSON Schema of its parameters."""
    return MethodsAnswer(
        methods=[
            MethodShape(name=name, summary=method.about, kind=method.kind, params=method.schema)
            for name, method in sorted((await load_methods()).items())
        ]
    )


@router.post(
    "/jobs",
    status_code=202,
    summary="Submit a job",
    responses={**Accepted, **problems(400, 404, 413, 415, 422, 503)},
    openapi_extra=json_body("JobRequest", examples=EXAMPLES),
)
async def submit_job(
    body: JsonObject,
    parts: PartsDep,
    submission: SubmissionDep,
    actor: ActorDep,
    response: Response,
    key: JobKey = None,
) -> JobAnswer:
    """Submit a job, which a worker runs in the background. `Location` shows its state."""
    request = convert(body, JobRequest)
    replica = parts.replica
    await replica.catch_up(request.model)
    model = replica.models.trusted(request.model)
    async with audited(replica.store, actor, "job.submit", model=request.model, method=request.method) as details:
        details["params"] = request.params
        job = await submission.submit(request, model, actor.key, key)
        details["job"] = job.id
    response.headers["location"] = f"/jobs/{job.id}"
    return job_answer(job)


@router.get("/jobs", summary="All jobs", responses=problems(422, 503))
async def list_jobs(
    submission: SubmissionDep,
    state: Annotated[
        Literal["queued", "running", "succeeded", "failed", "cancelled"] | None,
        Query(description="Only jobs in this state."),
    ] = None,
    model: Annotated[str | None, Query(max_length=64, description="Only jobs of this model.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of jobs.")] = 100,
) -> JobsAnswer:
    """List the jobs, newest first. Ended jobs are kept for a while."""
    return JobsAnswer(jobs=[job_answer(job) for job in await submission.jobs.all(state, model, limit)])


@router.get("/jobs/{id}", summary="A job", responses=problems(404, 422, 503))
async def get_job(job: KnownJob) -> JobAnswer:
    """Return the state and the result of a job."""
    return job_answer(job)


@router.delete(
    "/jobs/{id}",
    summary="Cancel a job",
    responses={**Accepted, **problems(404, 409, 422, 503)},
)
async def cancel_job(
    job: KnownJob, parts: PartsDep, submission: SubmissionDep, actor: ActorDep, response: Response
) -> JobAnswer:
    """Cancel a job. It stops within seconds and leaves nothing behind; a job that has ended stays as it is.

    Returns 202 while the job has not stopped yet, 200 when it has ended, and 409 when it is about to take effect.
    """
    if job.has_ended:
        return job_answer(job)
    async with audited(parts.replica.store, actor, "job.cancel", job=job.id, method=job.method, model=job.model):
        by = f" with the key {actor.key}" if actor.key else ""
        job = await submission.jobs.cancel(job.id, f"cancelled{by} from {actor.address}")
    if not job.has_ended:
        response.status_code = 202
        response.headers["location"] = f"/jobs/{job.id}"
    return job_answer(job)


@router.get(
    "/jobs/{id}/events",
    summary="Follow a job",
    response_class=EventSourceResponse,
    responses=problems(404, 422, 503),
)
async def follow_job(
    job: KnownJob, submission: SubmissionDep, request: Request, room: Annotated[None, Depends(followers)]
) -> AsyncIterator[ServerSentEvent]:
    """Follow a job by server-sent events: `progress` on every change, and finally `ended`; each carries the job.

    A client that reconnects gets the current state of the job. The events end early when the service stops.
    """
    sent: dict[str, Any] = {}
    while True:
        answer = job_answer(job)
        if (changed := answer.model_dump(exclude={"heartbeat"})) != sent:
            sent = changed
            yield ServerSentEvent(
                raw_data=answer.model_dump_json(), event="ended" if job.has_ended else "progress", retry=1000
            )
        if job.has_ended or request.app.state.stopping:
            return
        await asyncio.sleep(POLL_SECONDS)
        try:
            job = await submission.jobs.get(job.id)
        except StoreUnavailable as error:
            yield ServerSentEvent(comment=str(error))
            await asyncio.sleep(1.0)


def job_answer(job: Job) -> JobAnswer:
    progress = round(min(1.0, max(0.0, job.progress)), 6)
    return JobAnswer.of(job, progress=progress, worker=(job.holder or "").rpartition(":")[0] or None)
