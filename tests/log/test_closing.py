"""A log that is closed: the store itself refuses to append to it, and only the holder of the lease opens it."""

import asyncio
from typing import Any

import pytest
import redis

from abound.log.appender import CLOSED_SECONDS
from abound.log.catalog import CATALOG_KEY, CatalogModel, read_catalog
from abound.log.closing import append_fenced, close_log, open_log, replace_log
from abound.log.events import (
    APPLY_VERSION,
    BoundaryEvent,
    Entry,
    IncarnationDropped,
    ModelReplaced,
    ReplacementBegun,
    ReplacementPrepared,
)
from abound.log.stream import tail
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.lease import REPLACEMENT, LeaseLost, acquire
from abound.store.server_info import CLOSED
from abound_core.errors import Conflict, NotReady
from abound_core.types import Offset
from tests.support.replicas import teach
from tests.support.streams import append, create

LAST = Entry(APPLY_VERSION, b"closing", 1, BoundaryEvent("2-0"))


async def ends(store: Store, keys: ModelKeys) -> Offset:
    return (await tail(store, keys.log)).last


async def close(store: Store, lease: Any, after: Offset) -> Offset:
    return await close_log(store, lease, after, LAST, (await read_catalog(store)).offset)


async def begin(store: Store, living: CatalogModel, lease: Any) -> ModelKeys:
    """Prepare a replacement; the new keys."""
    await append_fenced(store, lease, ReplacementBegun(living.keys.name, living.keys.incarnation))
    new = (await read_catalog(store)).coming[living.keys.name].keys
    await append_fenced(store, lease, ReplacementPrepared(living.keys.name, new.incarnation, {}))
    return new


async def test_a_closed_log_takes_no_entry_until_it_is_opened(store: Store) -> None:
    living = await create(store)
    await append(store, living, 5, 1)
    async with acquire(store, living.keys, purpose=REPLACEMENT) as lease:
        new = await begin(store, living, lease)
        at = await close(store, lease, await ends(store, living.keys))
        with pytest.raises(redis.exceptions.ResponseError, match=CLOSED):
            await store.client.xadd(living.keys.log, {"e": "late", "c": "late"})
        assert await close(store, lease, at) == at  # its reply was lost, and it is repeated
        assert (await tail(store, living.keys.log))[:2] == (at, 6)
        await open_log(store, lease, IncarnationDropped(living.keys.name, new.incarnation))
        with pytest.raises(LeaseLost):  # it was on its way when its sender was cancelled
            await close(store, lease, at)
    assert await ends(store, living.keys) == at
    await append(store, living, 1, 2)
    assert await ends(store, living.keys) > at
    assert not (await read_catalog(store)).coming


async def test_a_log_whose_end_the_store_has_lost_is_not_closed(store: Store) -> None:
    living = await create(store)
    await append(store, living, 5, 1)
    async with acquire(store, living.keys, purpose=REPLACEMENT) as lease:
        with pytest.raises(Conflict, match="has lost the newest entries"):
            await close(store, lease, Offset(5, 0, 0))
        lost = (await read_catalog(store)).offset
        await store.client.xdel(CATALOG_KEY, lost.entry)
        with pytest.raises(Conflict, match="has lost the newest entries"):  # nothing would open the log again
            await close_log(store, lease, await ends(store, living.keys), LAST, lost)
    await append(store, living, 1, 2)


async def test_whose_lease_has_passed_to_another_process_changes_nothing(store: Store) -> None:
    living = await create(store)
    await append(store, living, 5, 1)
    async with acquire(store, living.keys, purpose=REPLACEMENT) as late:
        new = await begin(store, living, late)
        await store.client.delete(living.keys.key(f"{REPLACEMENT}-lease"))
        async with acquire(store, living.keys, purpose=REPLACEMENT):
            n_entries = await store.client.xlen(CATALOG_KEY)
            before = await tail(store, living.keys.log)
            event = ModelReplaced(living.keys.name, living.keys.incarnation, new.incarnation, True)
            for change in (
                append_fenced(store, late, event),
                close(store, late, before.last),
                replace_log(store, late, new, before.last, 1, "job", event),
                open_log(store, late, IncarnationDropped(living.keys.name, new.incarnation)),
            ):
                with pytest.raises(LeaseLost):
                    await change
            assert await store.client.xlen(CATALOG_KEY) == n_entries
            assert await tail(store, living.keys.log) == before


async def test_a_request_that_waits_too_long_is_refused_and_learns_nothing(server, start_replica):
    replica = await start_replica(server)
    await teach(replica)
    keys, loop = replica.model("default").keys, asyncio.get_running_loop()
    async with acquire(replica.store, keys, purpose=REPLACEMENT) as lease:
        await close(replica.store, lease, await ends(replica.store, keys))
        began = loop.time()
        with pytest.raises(NotReady, match="is being replaced; nothing was learned"):
            await teach(replica, 1)
        assert CLOSED_SECONDS - 0.1 < loop.time() - began < CLOSED_SECONDS + 30
        await open_log(replica.store, lease, IncarnationDropped("default", "9-0"))
    await teach(replica, 1, 2)
    assert replica.model("default").live.n_learned == 51
