"""The lineage of a model: the ranges of its full log that its present state has learned.

A restore discards what came after its offset; an import discards everything before it. Both leave log and history
unchanged. A job that learns from past events therefore reads these ranges instead of the full log.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

import msgspec

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.full_log import decode_element
from abound.history.history import History
from abound.log.events import (
    MAX_POSITIONS,
    AdoptEvent,
    Event,
    LearnEvent,
    adoption_after,
    decode_entry,
    element_of,
)
from abound.log.stream import Element
from abound.state import state_files
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound_core.instances.record import record_ends
from abound_core.types import START, Offset

# Yields the entries after the first offset, up to and including the entry of the second.
Read = Callable[[Offset, Offset], AsyncGenerator[list[Element]]]


class LineageRange(NamedTuple):
    after: Offset
    until: Offset  # included


class LineageStart(NamedTuple):
    """The state file on top of which everything else is learned."""

    name: str
    digest: str


class Lineage(NamedTuple):
    """The ranges that count, in order, on top of the state file ``start``, or of the empty state if it is None."""

    start: LineageStart | None
    ranges: list[LineageRange]


async def trace_lineage(read: Read, store: Store, artifacts: ArtifactStore, keys: ModelKeys, until: Offset) -> Lineage:
    """Return the ranges that count at ``until``, on top of an import, the base of history or a restore to before it."""
    contents = await History(store, artifacts, keys).manifest()
    base = contents.base if contents is not None else None
    beginning = START if contents is None else contents.start
    until = entry_end(until)
    start = LineageStart(base.index, base.digest) if base is not None else None
    current = Lineage(start, [LineageRange(beginning, until)])
    replaced: list[tuple[Offset, Lineage]] = []  # by the adoption at this offset
    adopted = START
    async with contextlib.aclosing(read(beginning, until)) as reading:
        async for elements in reading:
            for element in elements:
                after = adoption_after(element)
                if after is None or after < adopted:
                    continue
                adopted = Offset.of_entry(element[0])
                event = decode_entry(element[1]).event
                if not isinstance(event, AdoptEvent):
                    continue
                replaced.append((adopted, current))
                recipe = (await state_files.read_manifest(artifacts, keys, event.index)).recipe
                file = LineageStart(event.index, event.digest)
                if recipe.get("method") == "import":
                    current = Lineage(file, [LineageRange(after, until)])
                elif recipe.get("method") == "restore":
                    to = Offset.parse(recipe["to"])
                    then = next(one for at, one in replaced if at[:2] > to[:2])
                    kept = Lineage(file, []) if to < beginning else Lineage(then.start, clip_ranges(then.ranges, to))
                    current = Lineage(kept.start, [*kept.ranges, LineageRange(after, until)])
    return Lineage(current.start, [one for one in current.ranges if one.after < one.until])


def entry_end(offset: Offset) -> Offset:
    return offset._replace(position=MAX_POSITIONS)


def clip_ranges(ranges: list[LineageRange], until: Offset) -> list[LineageRange]:
    return [LineageRange(one.after, min(one.until, until)) for one in ranges if one.after < until]


async def read_events(read: Read, log_range: LineageRange) -> AsyncGenerator[list[tuple[Offset, Event]]]:
    """Yield the events of a range with their offsets, a list for each read; the last entry only up to its position."""
    async with contextlib.aclosing(read(log_range.after, log_range.until)) as reading:
        async for elements in reading:
            group = []
            for element in elements:
                at = Offset.of_entry(element[0])
                event = decode_element(element).event
                if at[:2] == log_range.until[:2] and type(event) is LearnEvent:
                    event = truncate_learn(event, log_range.until.position)
                group.append((at, event))
            yield group


def cut_entry(element: Element, until: Offset) -> Element:
    """Return a log entry; if it is the entry of ``until``, only the requests up to that position."""
    name = element[0]
    if Offset.of_entry(name)[:2] != until[:2]:
        return element
    entry = decode_element(element)
    if type(entry.event) is not LearnEvent:
        return element
    return element_of(name, msgspec.structs.replace(entry, event=truncate_learn(entry.event, until.position)))


def truncate_learn(event: LearnEvent, position: int) -> LearnEvent:
    """Return the requests of an entry that start at or before a position. Batches are not split."""
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
