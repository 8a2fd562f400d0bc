"""What a model has learned, as matrices for a batch method.

1. all that history has is pinned, so nothing of it goes while it is read
2. the log's present end A is the last event that is read; what still counts at A is found
(``service/history/lineage.py``)
3. its records are read one entry after the other: repeats and what was forgotten are left out, and of each record only
   the ids and values of its features and labels stay, besides every name once

Where history begins with a base, or something was imported, what came before is only there as an index: the instances
begin after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NamedTuple

from abound.core.instances.record import record_ends
from abound.core.limits import Limits
from abound.core.methods.training.gather import Gathering
from abound.core.methods.training.matrices import Matrices
from abound.core.methods.training.progress import Progress
from abound.core.model.apply import Outcomes
from abound.core.types import START, Offset
from abound.service.history import past
from abound.service.history.history import History
from abound.service.history.lineage import Start, Stretches, events, stretches_of
from abound.service.log.events import Learn
from abound.service.log.stream import Element, LogParams
from abound.service.model.replicated_model import new_secret
from abound.service.snapshots import state_files

if TYPE_CHECKING:
    from abound.service.jobs.context import JobContext

AT_ONCE = 256
"""Records between two words of progress."""


class Past(NamedTuple):
    """The instances that count, and which events they were read from: those past ``after``, up to ``until``.

    ``is_all``: False where the model has learned more, before, of which there is an index only.
    """

    data: Matrices
    after: Offset
    until: Offset
    is_all: bool

    @property
    def range(self) -> dict[str, str | None]:
        """As records and cards say it."""
        return {"after": None if self.after == START else str(self.after), "until": str(self.until)}


async def matrices_of_past(context: JobContext, progress: Progress) -> Past:
    """The instances that a model has learned and that still count, in the order in which it learned them.

    Raises
    ------
    Cancelled, Damaged, ArtifactsUnavailable, StoreUnavailable
    """
    store, artifacts, keys = context.store, context.artifacts, context.living.keys
    params = context.settings.group(LogParams)
    await context.pin(START)
    until = await past.end(store, keys)
    contents = await History(store, artifacts, keys).contents()
    beginning = START if contents is None else contents.beginning

    async def read(after: Offset, to: Offset) -> AsyncGenerator[list[Element]]:
        reading = past.entries(store, artifacts, keys, after, to._replace(position=0), params=params)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                context.check()
                yield elements

    progress("looking what counts of the past", 0.0)
    found = await stretches_of(read, artifacts, keys, beginning, until)
    base = contents.base if contents is not None else None
    if found.start is None and base is not None:
        found = found._replace(start=Start(base.index, base.digest))
    after = found.stretches[0].after if found.stretches else until
    await context.range(None if after == START else after, until)
    gathering = Gathering(new_secret())
    outcomes = await _outcomes(context, found)
    for stretch in found.stretches:
        async with contextlib.aclosing(events(read, stretch)) as reading:
            async for group in reading:
                for at, event in group:
                    if type(event) is Learn:
                        await _add(gathering, outcomes, event, at, progress, _share(at, after, until))
    progress("putting the data in order", 0.95)
    data = await asyncio.to_thread(gathering.matrices)
    return Past(data, after, until, found.start is None)


async def _outcomes(context: JobContext, found: Stretches) -> Outcomes:
    """What knows which requests were learned; with the receipts of what all else was learned on top of."""
    if found.start is None:
        return Outcomes()
    live = await state_files.load(
        context.artifacts, context.living.keys, found.start.name, found.start.digest, Limits()
    )
    return Outcomes(live.receipts)


async def _add(
    gathering: Gathering, outcomes: Outcomes, event: Learn, at: Offset, progress: Progress, done: float
) -> None:
    """Take the records of an entry that were learned."""
    learned = outcomes.of(event.records, event.units, at)
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
    """About how much of a range is behind, by time; the log's own where it began with it."""
    whole = until.milliseconds - after.milliseconds
    return min(1.0, (at.milliseconds - after.milliseconds) / whole) if whole > 0 else 1.0
