"""``/models/{model}/events``: the newest events that a model was taught; ``/suspicious``: those in doubt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from abound.api.dependencies import ModelName, PartsDep
from abound.api.openapi import problems
from abound.api.schemas.shape import Shape
from abound.log.events import LearnEvent, decode_entry
from abound.replica.predictions import DISMISSED
from abound.store.client import store_errors
from abound.tasks import TimeSlice
from abound_core.errors import InvalidInstance
from abound_core.instances.record import Record, iterate, record_ends
from abound_core.instances.record_kernels import record_shape
from abound_core.model.calibration import Suspect
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

MAX_READ = 2000  # entries of the log, of which those that match are listed
READ_AT_ONCE = 20  # an entry has at most some megabytes
MOST_DISMISSED = 10_000  # dismissed offsets that are kept; a model keeps 1,000 suspicious events

router = APIRouter(tags=["models"])


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
        description="As in `/events`; null if the log no longer has the event. Then source and key are unknown, too."
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
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of events.")] = 50,
    before: Annotated[str | None, Query(max_length=64, description="Only events before this offset.")] = None,
    source: Annotated[str | None, Query(description="Only events with this source.")] = None,
    label: Annotated[str | None, Query(description="Only events with this label, right or rejected.")] = None,
) -> EventsAnswer:
    """List events of the newest 2,000 entries of the log that are not archived, without registrations."""
    known = parts.replica.model(model)
    end = None if before is None else _offset(before, "before")
    found: list[EventShape] = []
    last, pace = b"+" if end is None else end.entry.encode(), TimeSlice()
    for _ in range(MAX_READ // READ_AT_ONCE):
        with store_errors():
            entries = await parts.replica.store.client.xrevrange(known.keys.log, last, b"-", count=READ_AT_ONCE)
        for name, fields in entries:
            event = decode_entry([b"e", fields[b"e"], b"c", fields[b"c"]]).event
            if isinstance(event, LearnEvent):
                found += [
                    _shape(offset, unit, record)
                    for offset, unit, record in reversed(list(_learned(Offset.of_entry(name), event)))
                    if (end is None or offset < end)
                    and (source is None or unit.source == source)
                    and (label is None or label in record.labels + record.rejected)
                ]
            if pace.due():
                await pace.pause()
        if len(found) >= limit or len(entries) < READ_AT_ONCE:
            break
        last = b"(" + entries[-1][0]
    return EventsAnswer(events=found[:limit])


@router.get(
    "/models/{model}/suspicious", summary="Events that may have a wrong label", responses=problems(404, 422, 503)
)
async def get_suspicious(
    model: ModelName,
    parts: PartsDep,
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
            event = decode_entry([b"e", fields[b"e"], b"c", fields[b"c"]]).event
            if isinstance(event, LearnEvent):
                for offset, unit, record in _learned(Offset.of_entry(name), event):
                    if offset in events:
                        events[offset] |= dict(_shape(offset, unit, record))
            if pace.due():
                await pace.pause()
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


def _learned(at: Offset, event: LearnEvent) -> Iterator[tuple[Offset, Unit, Record]]:
    """Yield the records of an entry with their offsets and units, without registrations and changes of labels."""
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
