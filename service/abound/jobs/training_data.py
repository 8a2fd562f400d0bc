"""The instances that a model has learned, as matrices for a batch method.

If history begins with a base, or the model was imported, the earlier events exist only as a state file; the instances
begin after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NamedTuple

from abound.history import erasures, full_log
from abound.history.lineage import Lineage, read_events, trace_lineage
from abound.log.events import LearnEvent
from abound.log.stream import Element, LogParams
from abound.state import state_files
from abound.state.replicated_model import new_secret
from abound_core.instances.record import record_ends
from abound_core.limits import Limits
from abound_core.methods.training.gather import MatrixBuilder
from abound_core.methods.training.matrices import Matrices
from abound_core.methods.training.progress import Progress
from abound_core.model.entry_application import OutcomeReplay
from abound_core.types import START, Offset

if TYPE_CHECKING:
    from abound.jobs.context import JobContext

AT_ONCE = 256  # records between two progress reports

MAX_DENSE_BYTES = 2**27  # of the dense vectors of all instances, in memory; beyond it there is no baseline


class LearnedInstances(NamedTuple):
    """Instances from the log entries after ``after``, up to ``until``.

    ``is_all``: False if the model has learned earlier events, of which only a state file exists.
    """

    data: Matrices
    after: Offset
    until: Offset
    is_all: bool

    @property
    def range(self) -> dict[str, str | None]:
        return {"after": None if self.after == START else str(self.after), "until": str(self.until)}


async def matrices_of_history(context: JobContext, progress: Progress) -> LearnedInstances:
    """Return the instances that a model has learned and that still count, in the order in which it learned them.

    Raises Conflict while history still has events that are being forgotten.
    """
    store, artifacts, keys = context.store, context.artifacts, context.living.keys
    params = context.settings.group(LogParams)
    await context.pin(START)  # nothing of history is deleted during the read
    until = await full_log.newest_offset(store, keys)
    await erasures.refuse_forgotten(store, keys, until)

    async def read(after: Offset, to: Offset) -> AsyncGenerator[list[Element]]:
        reading = full_log.read_entries(store, artifacts, keys, after, to._replace(position=0), params=params)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                context.check()
                yield elements

    progress("finding the events that count", 0.0)
    # The ranges that still count at ``until``, the end of the log when the job began.
    found = await trace_lineage(read, store, artifacts, keys, until)
    after = found.ranges[0].after if found.ranges else until
    await context.range(None if after == START else after, until)
    gathering = MatrixBuilder(new_secret(), dense_bytes=MAX_DENSE_BYTES)
    outcomes = await _outcomes(context, found)
    # Repeats and forgotten events are left out. Of a record only the ids and values of its features and labels are
    # kept.
    for log_range in found.ranges:
        async with contextlib.aclosing(read_events(read, log_range)) as reading:
            async for group in reading:
                for at, event in group:
                    if type(event) is LearnEvent:
                        await _add(gathering, outcomes, event, at, progress, _share(at, after, until))
    progress("building the matrices", 0.95)
    data = await asyncio.to_thread(gathering.matrices)
    return LearnedInstances(data, after, until, found.start is None)


async def _outcomes(context: JobContext, found: Lineage) -> OutcomeReplay:
    """Return which requests were learned, starting from the receipts of the initial state."""
    if found.start is None:
        return OutcomeReplay()
    live = await state_files.load(
        context.artifacts, context.living.keys, found.start.name, found.start.digest, Limits()
    )
    return OutcomeReplay(live.receipts)


async def _add(
    gathering: MatrixBuilder, outcomes: OutcomeReplay, event: LearnEvent, at: Offset, progress: Progress, done: float
) -> None:
    learned = outcomes.were_learned(event.records, event.units, at)
    ends = record_ends(event.records, event.n_records).tolist()
    first = 0
    for unit, good in zip(event.units, learned, strict=True):
        if unit.emptied:
            continue
        if good:
            for place in range(first, first + unit.n):
                gathering.add_record(event.records, ends[place])
                if place % AT_ONCE == 0:
                    progress("reading history", 0.95 * done)
                    await asyncio.sleep(0)
        first += unit.n


def _share(at: Offset, after: Offset, until: Offset) -> float:
    """Return the fraction of a range that was read, by the time of its entries."""
    whole = until.milliseconds - after.milliseconds
    return min(1.0, (at.milliseconds - after.milliseconds) / whole) if whole > 0 else 1.0
