"""``/models/{model}/events``: the newest events that a model was taught, as its log in the store has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from abound.api.dependencies import ModelName, PartsDep
from abound.api.openapi import problems
from abound.api.schemas.shape import Shape
from abound.log.events import LearnEvent, decode_entry
from abound.store.client import store_errors
from abound.tasks import TimeSlice
from abound_core.errors import InvalidInstance
from abound_core.instances.record import iterate, record_ends
from abound_core.instances.record_kernels import record_shape
from abound_core.types import Offset

MAX_READ = 2000  # entries of the log, of which those that match are listed
READ_AT_ONCE = 20  # an entry has at most some megabytes

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
    known, end = parts.replica.model(model), None
    try:
        end = None if before is None else Offset.parse(before)
    except ValueError as error:
        raise InvalidInstance(f"before: {error}", "before") from None
    found: list[EventShape] = []
    last, pace = b"+" if end is None else end.entry.encode(), TimeSlice()
    for _ in range(MAX_READ // READ_AT_ONCE):
        with store_errors():
            entries = await parts.replica.store.client.xrevrange(known.keys.log, last, b"-", count=READ_AT_ONCE)
        for name, fields in entries:
            event = decode_entry([b"e", fields[b"e"], b"c", fields[b"c"]]).event
            if isinstance(event, LearnEvent):
                listed = _events(Offset.of_entry(name), event)
                found += [
                    one
                    for one in reversed(listed)
                    if (end is None or Offset.parse(one.offset) < end)
                    and (source is None or one.source == source)
                    and (label is None or label in one.labels + one.rejected)
                ]
            if pace.due():
                await pace.pause()
        if len(found) >= limit or len(entries) < READ_AT_ONCE:
            break
        last = b"(" + entries[-1][0]
    return EventsAnswer(events=found[:limit])


def _events(at: Offset, event: LearnEvent) -> list[EventShape]:
    """Return the events of an entry, without registrations and changes of labels."""
    starts = record_ends(event.records, event.n_records).tolist()
    records = zip(starts, iterate(event.records, event.n_records), strict=False)
    found, position = [], at.position
    for unit in event.units:
        for offset in range(position, position + unit.n) if not unit.emptied else ():
            start, record = next(records)
            if record_shape(event.records, start).details_at < 0:
                found.append(
                    EventShape(
                        offset=str(at._replace(position=offset)),
                        time=at.milliseconds / 1000,
                        features=dict(zip(record.keys, record.values.tolist(), strict=True)),
                        labels=record.labels,
                        rejected=record.rejected,
                        source=unit.source,
                        key=unit.key,
                    )
                )
        position += unit.n
    return found
