"""``/models/{model}/events``: the newest events that a model was taught, and undo; ``/suspicious``: those in doubt.

Where the log ends, both read history: it has what is trimmed off the log, and all before the last forget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from abound.api.dependencies import ActorDep, GrantDep, ModelName, PartsDep, RequestBound
from abound.api.openapi import problems
from abound.api.routes.jobs import JobKey, job_answer
from abound.api.schemas.jobs import JobAnswer
from abound.api.schemas.shape import Shape
from abound.history import full_log
from abound.jobs.submission import JobRequest
from abound.log.events import LearnEvent
from abound.log.stream import Element, entry_size
from abound.replica import predictions
from abound.security.audit import audited
from abound.tasks import TimeSlice
from abound_core.errors import Conflict, InvalidInstance, Overloaded, UnknownEvent
from abound_core.instances.record import Record, iterate, record_ends
from abound_core.instances.record_kernels import record_shape
from abound_core.model.calibration import Suspect
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

MAX_READ = 2000  # entries, of which those that match are listed
READ_AT_ONCE = 20  # an entry has at most some megabytes
MAX_BYTES = 64 * 2**20  # of the entries that a request reads; a segment is read as a whole
NEWEST = Offset(2**64 - 1, 2**64 - 1, 1)  # past every event
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
    partial: bool = Field(description="Whether its labels are not all.")
    source: str | None
    key: str | None = Field(description="The idempotency key of its request.")


class EventsAnswer(Shape):
    """Events, newest first."""

    events: list[EventShape]


class SuspiciousShape(EventShape):
    """An event that may have a wrong label, with what the model held probable before it learned the event."""

    features: dict[str, float] | None = Field(  # type: ignore[assignment]
        description="As in `/events`; null if the event was not read. Then source and key are unknown, too."
    )
    label: str = Field(description="The label in doubt, by its present name.")
    probability: float = Field(ge=0, le=1, description="Its probability; 0 if it was not among the best five.")
    first: str = Field(description="The label that was more probable.")
    first_probability: float = Field(ge=0, le=1)


class SuspiciousAnswer(Shape):
    """Events, most suspicious first."""

    total: int = Field(description="The number of suspicious events that are kept and not dismissed.")
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
    """List the newest events, also archived ones, without registrations.

    A request reads at most 2,000 entries with 64 MiB.
    """
    known, replica = parts.replica.model(model), parts.replica
    end = at = NEWEST if before is None else _offset(before, "before")
    wanted = [one.encode() for one in (source, label) if one is not None]
    found: list[EventShape] = []
    n_read, n_bytes, pace = 0, 0, TimeSlice()
    while elements := await full_log.read_newest(replica.store, replica.artifacts, known.keys, at, READ_AT_ONCE):
        for element in elements:
            n_read, n_bytes = n_read + 1, n_bytes + entry_size(element[1])
            if all(one in element[1][1] for one in wanted):
                found += [
                    _shape(offset, unit, record)
                    for offset, unit, record in reversed(list(_learned(element)))
                    if offset < end
                    and (source is None or unit.source == source)
                    and (label is None or label in record.labels + record.rejected)
                ]
            if len(found) >= limit or n_read >= MAX_READ or n_bytes >= MAX_BYTES:
                return EventsAnswer(events=found[:limit])
            if pace.due():
                await pace.pause()
        at = Offset.of_entry(elements[-1][0])
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
            raise UnknownEvent(f"no event was learned at {at}; GET the list again")
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
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of events.")] = 50,
) -> SuspiciousAnswer:
    """List events whose label was improbable while another label was probable, before the model learned them.

    A model with `calibrate` or `decide` keeps the 1,000 most suspicious of its newest 100,000 events. Dismissed
    ones are left out. Of the log and of the segments of history that have one of the list, 64 MiB are read.
    """
    known, replica = parts.replica.model(model), parts.replica
    dismissed = await predictions.dismissed(replica.store, known.keys)
    suspects = [one for one in known.live.suspects() if str(one.offset) not in dismissed]
    events = {one.offset: _doubted(known.live, one) for one in suspects[:limit]}
    missing, n_bytes, pace = sorted(events), 0, TimeSlice()
    while missing and n_bytes < MAX_BYTES:
        before = missing[-1]._replace(position=1)
        elements = await full_log.read_newest(replica.store, replica.artifacts, known.keys, before, 1)
        if not elements:
            break
        entries = {at.entry.encode() for at in missing}
        for element in elements:
            n_bytes += entry_size(element[1])
            if element[0] in entries:
                for offset, unit, record in _learned(element):
                    if offset in events:
                        events[offset] |= dict(_shape(offset, unit, record))
            if pace.due():
                await pace.pause()
        missing = missing[: bisect_left(missing, Offset.of_entry(elements[-1][0]))]
    return SuspiciousAnswer.model_validate({"total": len(suspects), "events": [*events.values()]})


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
    known, store, at = parts.replica.model(model), parts.replica.store, _offset(offset, "offset")
    kept = [one.offset for one in known.live.suspects()]
    if at not in kept and str(at) not in await predictions.dismissed(store, known.keys):
        raise UnknownEvent(f"no suspicious event has the offset {at}; GET the list again")
    await predictions.dismiss(store, known.keys, [at])
    return Response(status_code=204)


def _doubted(live: LiveModel, suspect: Suspect) -> dict[str, Any]:
    """Return a suspicious event as far as the state knows it."""
    label = live.label(suspect.given)
    event = {"offset": str(suspect.offset), "time": suspect.offset.milliseconds / 1000, "features": None}
    event |= {"labels": [label], "rejected": [], "partial": False, "source": None, "key": None}
    first = {"first": live.label(suspect.first), "first_probability": suspect.first_chance}
    return event | {"label": label, "probability": suspect.chance} | first


def _offset(text: str, field: str) -> Offset:
    try:
        return Offset.parse(text)
    except ValueError as error:
        raise InvalidInstance(f"{field}: {error}", field) from None


def _learned(element: Element) -> Iterator[tuple[Offset, Unit, Record]]:
    """Yield the records of an entry with their offsets and units, without registrations and changes of labels."""
    event, at = full_log.decode_element(element).event, Offset.of_entry(element[0])
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
        partial=record.partial,
        source=unit.source,
        key=unit.key,
    )
