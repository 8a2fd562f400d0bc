"""Garbage collection of a model's unreferenced state files, for the job that has written one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from abound.core.errors import Conflict, NotReady
from abound.service.history.garbage import referenced_state_files
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
    going = sorted(there - await referenced_state_files(place.store, place.artifacts, place.keys, place.log))
    await before(going)
    for name in going:
        await state_files.delete(place.artifacts, place.keys, name)
    return going
