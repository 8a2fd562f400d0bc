"""The instances that a model has learned, as matrices for a batch method.

If history begins with a base, the earlier events exist only as a state file; the instances begin after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from abound.history import full_log
from abound.history.history import History
from abound.log.events import LearnEvent
from abound.log.stream import LogParams
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
    """Return the instances that a model has learned, in the order in which it learned them."""
    store, artifacts, keys = context.store, context.artifacts, context.living.keys
    await context.pin(START)  # nothing of history is deleted during the read
    until = await full_log.newest_offset(store, keys)
    contents = await History(store, artifacts, keys).manifest()
    base = None if contents is None else contents.base
    after, outcomes = START, OutcomeReplay()
    gathering = MatrixBuilder(new_secret(), dense_bytes=MAX_DENSE_BYTES)
    if base is not None:
        live = await state_files.load(artifacts, keys, base.index, base.digest, Limits())
        after, outcomes = base.position.offset, OutcomeReplay(live.receipts)
        gathering.follow(live.labels, live.changes)
    await context.range(None if after == START else after, until)
    reading = full_log.read_entries(store, artifacts, keys, after, until, params=context.settings.group(LogParams))
    # Repeats and forgotten events are left out. Of a record only the ids and values of its features and labels are
    # kept.
    async with contextlib.aclosing(reading):
        async for elements in reading:
            context.check()
            for element in elements:
                event = full_log.decode_element(element).event
                if type(event) is LearnEvent:
                    at = Offset.of_entry(element[0])
                    await _add(gathering, outcomes, event, at, progress, _share(at, after, until))
    progress("building the matrices", 0.95)
    data = await asyncio.to_thread(gathering.matrices)
    return LearnedInstances(data, after, until, base is None)


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
