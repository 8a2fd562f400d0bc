"""What of a model's past still counts: the stretches of it that a model of today has learned.

A restore takes back what came after its offset, an import what came before it at all; both stay in the log and in
history as they were. So whoever learns from the past, and not the past itself, reads stretches.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

import msgspec

from abound.core.instances.record import record_ends
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.past import entry_of
from abound.service.log.events import MOST_POSITIONS, Adopt, Event, Learn, adoption_after, decode_entry
from abound.service.log.stream import Element
from abound.service.snapshots import state_files
from abound.service.store.keys import ModelKeys

Read = Callable[[Offset, Offset], AsyncGenerator[list[Element]]]
"""The entries past one offset, up to and with the entry of another."""


class Stretch(NamedTuple):
    """The events after one offset, up to and with another."""

    after: Offset
    until: Offset


class Start(NamedTuple):
    """An index that all else is learned on top of."""

    name: str
    digest: str


class Stretches(NamedTuple):
    """What counts: on top of ``start``, or of the beginning, these stretches in order."""

    start: Start | None
    stretches: list[Stretch]


async def stretches_of(
    read: Read, artifacts: Artifacts, keys: ModelKeys, beginning: Offset, until: Offset
) -> Stretches:
    """What counts at ``until`` of what came after ``beginning``.

    Raises
    ------
    UnknownArtifact, Damaged, ArtifactsUnavailable
        An index that was adopted does not tell any more what it was made of.
    What ``read`` raises.
    """
    start: Start | None = None
    until = whole(until)
    found = [Stretch(beginning, until)]
    adopted = START
    async with contextlib.aclosing(read(beginning, until)) as reading:
        async for elements in reading:
            for element in elements:
                after = adoption_after(element)
                if after is None or after < adopted:
                    continue
                adopted = Offset.of_entry(element[0])
                event = decode_entry(element[1]).event
                if not isinstance(event, Adopt):
                    continue
                recipe = (await state_files.manifest_of(artifacts, keys, event.index)).recipe
                if recipe.get("method") == "restore":
                    found = [*clipped(found, Offset.parse(recipe["to"])), Stretch(after, until)]
                elif recipe.get("method") == "import":
                    start, found = Start(event.index, event.digest), [Stretch(after, until)]
    return Stretches(start, [one for one in found if one.after < one.until])


def whole(offset: Offset) -> Offset:
    """The end of an offset's entry."""
    return offset._replace(position=MOST_POSITIONS)


def clipped(stretches: list[Stretch], until: Offset) -> list[Stretch]:
    """The part of stretches that is not past an offset."""
    return [Stretch(one.after, min(one.until, until)) for one in stretches if one.after < until]


async def events(read: Read, stretch: Stretch) -> AsyncGenerator[list[tuple[Offset, Event]]]:
    """The events of a stretch, an entry each; the last one only up to its position."""
    async with contextlib.aclosing(read(stretch.after, stretch.until)) as reading:
        async for elements in reading:
            group = []
            for element in elements:
                at = Offset.of_entry(element[0])
                event = entry_of(element).event
                if at[:2] == stretch.until[:2] and type(event) is Learn:
                    event = up_to(event, stretch.until.position)
                group.append((at, event))
            yield group


def up_to(event: Learn, position: int) -> Learn:
    """The requests of an entry that begin at or before a position; a batch stays whole."""
    n = n_records = n_units = 0
    while n_units < len(event.units) and n <= position:
        for unit in event.units[n_units : n_units + event.units[n_units].batch]:
            n += unit.n
            n_records += 0 if unit.emptied else unit.n
            n_units += 1
    if n_units == len(event.units):
        return event
    end = int(record_ends(event.records, event.n_records)[n_records])
    return msgspec.structs.replace(event, records=event.records[:end], n=n, units=event.units[:n_units])
