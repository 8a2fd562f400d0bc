"""Garbage collection of a model's unreferenced state files, for the job that has written one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from abound.core.errors import Conflict, NotReady
from abound.core.types import START
from abound.service.history.history import History
from abound.service.history.past import read_entries
from abound.service.log.events import AdoptEvent, adoption_after, decode_entry
from abound.service.rebuild.adoption import AdoptionContext
from abound.service.snapshots import state_files
from abound.service.store.lease import acquire
from abound.service.store.replication import wait_replicated
from abound.service.tasks import do_nothing


async def collect_state_files(place: AdoptionContext) -> list[str]:
    """Delete unreferenced state files; return their ids.

    The caller holds the adoption lock, so no state file is being written. Deletes nothing while the worker
    holds the lease or copies of the store are behind.
    """
    try:
        async with acquire(place.store, place.keys):
            return await delete_unreferenced(place)
    except (Conflict, NotReady):
        return []


async def delete_unreferenced(
    place: AdoptionContext, before: Callable[[list[str]], Awaitable[None]] = do_nothing
) -> list[str]:
    """Delete unreferenced state files and return their ids, for a caller that also holds the lease.

    ``before`` is awaited with the ids first. Raises NotReady if copies of the store are behind: after a
    failover to one of them, the state files would be needed again.
    """
    await wait_replicated(place.store, 0.0)
    there = set(await state_files.ids(place.artifacts, place.keys))
    contents = await History(place.store, place.artifacts, place.keys).manifest()
    if contents is not None and contents.base is not None:
        there.discard(contents.base.index)
    beginning = START if contents is None else contents.start
    reading = read_entries(place.store, place.artifacts, place.keys, beginning, params=place.log)
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                if adoption_after(element) is not None:
                    event = decode_entry(element[1]).event
                    there -= {event.index} if isinstance(event, AdoptEvent) else set()
    going = sorted(there)
    await before(going)
    for name in going:
        await state_files.delete(place.artifacts, place.keys, name)
    return going
