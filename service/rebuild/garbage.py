"""Garbage collection of a model's unreferenced state files, for the job that has written one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from abound.core.errors import Conflict, NotReady
from abound.core.types import START
from abound.service.history.history import History
from abound.service.history.past import entries
from abound.service.log.events import Adopt, adoption_after, decode_entry
from abound.service.rebuild.adoption import Place
from abound.service.snapshots import state_files
from abound.service.store.lease import take
from abound.service.store.replication import until_copied


async def sweep_indexes(place: Place) -> list[str]:
    """Delete unreferenced state files; return their ids.

    The caller holds the adoption lock, so no state file is being written. Deletes nothing while the worker
    holds the lease or copies of the store are behind.
    """
    try:
        async with take(place.store, place.keys):
            return await delete_indexes(place)
    except (Conflict, NotReady):
        return []


async def _nobody(ids: list[str]) -> None:
    pass


async def delete_indexes(place: Place, before: Callable[[list[str]], Awaitable[None]] = _nobody) -> list[str]:
    """Delete unreferenced state files and return their ids, for a caller that also holds the lease.

    ``before`` is awaited with the ids first. Raises NotReady if copies of the store are behind: after a
    failover to one of them, the state files would be needed again.
    """
    await until_copied(place.store, 0.0)
    there = set(await state_files.ids(place.artifacts, place.keys))
    contents = await History(place.store, place.artifacts, place.keys).contents()
    if contents is not None and contents.base is not None:
        there.discard(contents.base.index)
    beginning = START if contents is None else contents.beginning
    reading = entries(place.store, place.artifacts, place.keys, beginning, params=place.log)
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                if adoption_after(element) is not None:
                    event = decode_entry(element[1]).event
                    there -= {event.index} if isinstance(event, Adopt) else set()
    going = sorted(there)
    await before(going)
    for name in going:
        await state_files.delete(place.artifacts, place.keys, name)
    return going
