"""``/models/{model}/events``: the newest events that a model was taught, and undo; ``/suspicious``: those in doubt."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from abound.api.dependencies import ActorDep, GrantDep, ModelName, Parts, PartsDep, RequestBound
from abound.api.openapi import problems
from abound.api.routes.jobs import JobKey, job_answer
from abound.api.schemas.jobs import JobAnswer
from abound.api.schemas.shape import Shape
from abound.history import full_log
from abound.jobs.submission import JobRequest
from abound.log.events import LearnEvent
from abound.log.stream import Element
from abound.replica.predictions import DISMISSED
from abound.security.audit import audited
from abound.store.client import store_errors
from abound.store.key_names import ModelKeys
from abound.tasks import TimeSlice
from abound_core.errors import Conflict, InvalidInstance, Overloaded
from abound_core.instances.record import Record, iterate, record_ends
from abound_core.instances.record_kernels import record_shape
from abound_core.model.calibration import Suspect
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

MAX_READ = 2000  # entries, of which those that match are listed
READ_AT_ONCE = 20  # an entry has at most some megabytes
MOST_DISMISSED = 10_000  # dismissed offsets that are kept; a model keeps 1,000 suspicious events
MOST_UNDONE = 100  # events of a request that is undone; larger ones take the job forget

router = APIRouter(tags=["models"])
readers = RequestBound(4, "readers of events", retry_after=1.0)  # each may hold a segment of history


class EventShape(Shape):
    """An event: an instance and what was taught about it."""

    offset: str
    time: float = Field(description="Unix time, by the store's clock.")
    features: dict[str, float] = Field(description="Its active features as the model reads them.")
    labels: list[str]
    rejected: list[str]
    source: str | None
    key: str | None = Field(description="The idempotency key of its request.")


class EventsAnswer(Shape):
    """Events, newest first."""

    events: list[EventShape]


class SuspiciousShape(EventShape):
    """An event that may have a wrong label, with what the model held probable before it learned the event."""

    features: dict[str, float] | None = Field(  # type: ignore[assignment]
        description="As in `/events`; null if the event was not found. Then source and key are unknown, too."
    )
    label: str = Field(description="The label in doubt, by its present name.")
    probability: float = Field(ge=0, le=1, description="Its probability; 0 if it was not among the best five.")
    first: str = Field(description="The label that was more probable.")
    first_probability: float = Field(ge=0, le=1)


class SuspiciousAnswer(Shape):
    """Events, most suspicious first."""

    events: list[SuspiciousShape]


@router.get("/models/{model}/events", summary="The newest events", responses=problems(404, 422, 503))
async def get_events(
    model: ModelName,
    parts: PartsDep,
    room: Annotated[None, Depends(readers)],
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of events.")] = 50,
    before: Annotated[str | None, Query(max_length=64, description="Only events before this offset.")] = None,
    source: Annotated[str | None, Query(description="Only events with this source.")] = None,
    label: Annotated[str | None, Query(description="Only events with this label, right or rejected.")] = None,
) -> EventsAnswer:
    """List events of 2,000 entries of the log or of history, without registrations."""
    known = parts.replica.model(model)
    end = None if before is None else _offset(before, "before")
    found: list[EventShape] = []
    async for offset, unit, record in _learned_back(parts, known.keys, end):
        if (
            (end is None or offset < end)
            and (source is None or unit.source == source)
            and (label is None or label in record.labels + record.rejected)
        ):
            found.append(_shape(offset, unit, record))
        if len(found) == limit:
            break
    return EventsAnswer(events=found)


@router.delete(
    "/models/{model}/events/{offset}",
    status_code=202,
    summary="Undo an event",
    responses={200: {"model": JobAnswer, "description": "The job has ended."}, **problems(404, 409, 422, 429, 503)},
)
async def undo_event(
    model: ModelName,
    parts: PartsDep,
    grant: GrantDep,
    actor: ActorDep,
    response: Response,
    room: Annotated[None, Depends(readers)],
    offset: Annotated[str, Path(max_length=64, description="Its offset.")],
    key: JobKey = None,
) -> JobAnswer:
    """Submit a job `forget` for the request that taught an event which `/events` lists: at most 100 events.

    Repeat the request with the same `Idempotency-Key` to follow the job. It fails rather than delete a version or a
    refit that has learned the events. One such job can wait at a time. The former state of a model that was replaced
    is deleted, as by each `forget`.
    """
    known, at = parts.replica.models.trusted(model), _offset(offset, "offset")
    params = {"offset": str(at), "reason": "one event undone", "keep_versions": True}
    request = JobRequest(method="forget", model=model, params=params)
    job = None if key is None else await parts.submission.earlier(request, key)
    if job is None:
        replica = parts.replica
        reading = full_log.read_entries(replica.store, replica.artifacts, known.keys, at.before, at)
        learned = [one async for elements in reading for element in elements for one in _learned(element)]
        unit = next((unit for one, unit, _ in learned if one == at), None)
        if unit is None:
            raise InvalidInstance(f"offset: no event was learned at {at}; GET the list again", "offset")
        if unit.n > MOST_UNDONE:
            raise Conflict(
                f"the request taught {unit.n} events, and {MOST_UNDONE} at most are undone: submit the job forget"
            )
        if any(one.method == "forget" for one in await parts.submission.jobs.all("queued", model)):
            raise Overloaded("another undo waits for a worker", retry_after=2.0)
        await parts.rates.admit(grant, unit.n, None, learns=True)
        async with audited(parts.replica.store, actor, "event.undo", model=model, offset=str(at), n=unit.n) as details:
            job = await parts.submission.submit(request, known, actor.key, key)
            details["job"] = job.id
    response.status_code = 200 if job.has_ended else 202
    return job_answer(job)


@router.get(
    "/models/{model}/suspicious", summary="Events that may have a wrong label", responses=problems(404, 422, 503)
)
async def get_suspicious(
    model: ModelName,
    parts: PartsDep,
    room: Annotated[None, Depends(readers)],
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of events.")] = 50,
) -> SuspiciousAnswer:
    """List events whose label was improbable while another label was probable, before the model learned them.

    A model with `calibrate` or `decide` keeps the 1,000 most suspicious of its newest 100,000 events. Dismissed
    ones are left out.
    """
    known, client = parts.replica.model(model), parts.replica.store.client
    with store_errors():
        dismissed = set(await client.zrange(known.keys.key(DISMISSED), 0, -1))
    suspects = [one for one in known.live.suspects() if str(one.offset).encode() not in dismissed]
    events, pace = {one.offset: _doubted(known.live, one) for one in suspects[:limit]}, TimeSlice()
    entries = list(dict.fromkeys(at.entry for at in events))
    for first in range(0, len(entries), READ_AT_ONCE):
        with store_errors():
            async with client.pipeline(transaction=False) as pipe:
                for entry in entries[first : first + READ_AT_ONCE]:
                    pipe.xrange(known.keys.log, entry, entry)
                found = await pipe.execute()
        for name, fields in chain(*found):
            for offset, unit, record in _learned((name, [part for field in fields.items() for part in field])):
                if offset in events:
                    events[offset] |= dict(_shape(offset, unit, record))
            if pace.due():
                await pace.pause()
    archived = {at for at, event in events.items() if event["features"] is None}
    if archived:
        async for offset, unit, record in _learned_back(parts, known.keys, max(archived)):
            if offset in archived:
                events[offset] |= dict(_shape(offset, unit, record))
    return SuspiciousAnswer.model_validate({"events": [*events.values()]})


@router.delete(
    "/models/{model}/suspicious/{offset}",
    status_code=204,
    summary="Dismiss a suspicious event: its label is right",
    responses=problems(404, 422, 503),
)
async def dismiss(
    model: ModelName, parts: PartsDep, offset: Annotated[str, Path(max_length=64, description="Its offset.")]
) -> Response:
    """Leave an event out of the list from now on. The model stays as it is."""
    known, at = parts.replica.model(model), _offset(offset, "offset")
    if at not in {one.offset for one in known.live.suspects()}:
        raise InvalidInstance(f"no suspicious event has the offset {at}; GET the list again", "offset")
    key = known.keys.key(DISMISSED)
    with store_errors():
        async with parts.replica.store.client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {str(at): at.milliseconds})
            pipe.zremrangebyrank(key, 0, -MOST_DISMISSED - 1)  # the oldest events go first, as in the list
            await pipe.execute()
    return Response(status_code=204)


def _doubted(live: LiveModel, suspect: Suspect) -> dict[str, Any]:
    """Return a suspicious event as far as the state knows it."""
    label = live.label(suspect.given)
    event = {"offset": str(suspect.offset), "time": suspect.offset.milliseconds / 1000, "features": None}
    event |= {"labels": [label], "rejected": [], "source": None, "key": None}
    first = {"first": live.label(suspect.first), "first_probability": suspect.first_chance}
    return event | {"label": label, "probability": suspect.chance} | first


def _offset(text: str, field: str) -> Offset:
    try:
        return Offset.parse(text)
    except ValueError as error:
        raise InvalidInstance(f"{field}: {error}", field) from None


async def _learned_back(
    parts: Parts, keys: ModelKeys, until: Offset | None
) -> AsyncIterator[tuple[Offset, Unit, Record]]:
    """Yield what ``_learned`` does of up to ``MAX_READ`` entries, newest first."""
    pace, left = TimeSlice(), MAX_READ
    reading = full_log.read_back(parts.replica.store, parts.replica.artifacts, keys, until, READ_AT_ONCE)
    async with contextlib.aclosing(reading):
        async for element in reading:
            for one in reversed(list(_learned(element))):
                yield one
            left -= 1
            if not left:
                break
            if pace.due():
                await pace.pause()


def _learned(element: Element) -> Iterator[tuple[Offset, Unit, Record]]:
    """Yield the records of an entry with their offsets and units, without registrations and changes of labels."""
    at, event = Offset.of_entry(element[0]), full_log.decode_element(element).event
    if not isinstance(event, LearnEvent):
        return
    starts = record_ends(event.records, event.n_records).tolist()
    records = zip(starts, iterate(event.records, event.n_records), strict=False)
    position = at.position
    for unit in event.units:
        for offset in range(position, position + unit.n) if not unit.emptied else ():
            start, record = next(records)
            if record_shape(event.records, start).details_at < 0:
                yield at._replace(position=offset), unit, record
        position += unit.n


def _shape(offset: Offset, unit: Unit, record: Record) -> EventShape:
    return EventShape(
        offset=str(offset),
        time=offset.milliseconds / 1000,
        features=dict(zip(record.keys, record.values.tolist(), strict=True)),
        labels=record.labels,
        rejected=record.rejected,
        source=unit.source,
        key=unit.key,
    )
