"""Replacing a model: refit, restore, forget, undo and import make a new incarnation with a log of its own.

The log of an incarnation is what the model has learned. So a model is replaced by writing another log, and by one entry
of the catalog that says which of the two is served. ``docs/internals/replace.md`` has the states, and what happens when
a process dies between two steps.

:func:`replace_model` is the protocol, from top to bottom. What the new incarnation is made of is a :class:`Past`, which
each kind of replacement returns.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from abound.history import pins
from abound.log.catalog import DEFAULT_MODEL, Catalog, CatalogModel, read_catalog
from abound.log.closing import append_fenced, close_log, open_log, replace_log, replaced_by
from abound.log.events import (
    APPLY_VERSION,
    BoundaryEvent,
    Entry,
    IncarnationDropped,
    ModelReplaced,
    ReplacementBegun,
    ReplacementPrepared,
    encode,
)
from abound.replace.context import ReplaceContext
from abound.replace.copying import Copy, Past
from abound.state import replica_status
from abound.state.replica_status import SILENT_SECONDS
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.lease import REPLACEMENT, Lease, acquire
from abound.tasks import retry, wait_until
from abound_core.errors import Conflict, OutcomeUnknown, StoreUnavailable, UnknownModel
from abound_core.types import START, Offset

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.05
RETRY_SECONDS = 1.0
APPEND_SECONDS = 60.0
SWITCH_SECONDS = 30.0  # longest wait, after a replacement, for replicas to serve it


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A replacement that has begun."""

    context: ReplaceContext
    living: CatalogModel  # the model that is replaced
    former: CatalogModel | None  # the one that it had replaced, if that is kept
    lease: Lease
    after: Offset  # the end of the log when the replacement began


async def replace_model(
    context: ReplaceContext, make: Callable[[Replacement], Awaitable[Past | None]], reason: str
) -> Offset | None:
    """Replace a model by what ``make`` returns; return the offset at which it was replaced.

    None if ``make`` returns None: nothing was changed. After OutcomeUnknown the model may or may not be replaced; after
    any other error it is not.
    """
    store = context.store
    async with _begin(context) as replacement:
        keys, lease = replacement.living.keys, replacement.lease
        past = await make(replacement)
        if past is None:
            return None
        # 1. The entry of the catalog gives the new incarnation its name. Garbage collection leaves alone what is
        #    written under it from now on. Replicas do nothing yet.
        await append_fenced(store, lease, ReplacementBegun(keys.name, keys.incarnation))
        coming = (await read_catalog(store)).coming.get(keys.name)
        if coming is None:
            raise UnknownModel(f"the model {keys.name} was deleted")
        try:
            # 2. History, states and versions are written, then the log from the entry of the state on.
            copy = Copy(context, replacement.living, coming.keys, past)
            context.progress("writing the new history", 0.8)
            await copy.write()
            # 3. Replicas load the new incarnation beside the one that they serve, and follow its log.
            await append_fenced(
                store, lease, ReplacementPrepared(keys.name, coming.keys.incarnation, copy.config.to_dict())
            )
            catalog = await read_catalog(store)
            prepared = catalog.coming.get(keys.name)
            if prepared is None or prepared.config is None:
                raise Conflict(f"the store has lost that {keys.name} is to be replaced; start again")
            context.progress("waiting until the replicas are ready", 0.85)
            await _until_loaded(context, catalog, replacement.living, coming.keys, copy)
            keep = past.keep and await copy.store_bytes() <= context.undo_bytes
            await context.commit()
            # 4. Nothing can be appended to the old log behind its last entry. Requests to learn wait meanwhile.
            last = Entry(APPLY_VERSION, secrets.token_bytes(8), 1, BoundaryEvent(coming.keys.incarnation))
            at: Offset = await _repeat(lambda: close_log(store, lease, replacement.after, last, catalog.offset))
            # 5. The rest of it is copied. Now the new log is exact: no event is missing, and none is doubled.
            await _repeat(lambda: copy.finish(at))
            # 6. From this entry of the catalog on, replicas serve the new incarnation. The script refuses it if a
            #    failover has lost the end of either log.
            event = ModelReplaced(keys.name, keys.incarnation, coming.keys.incarnation, keep)
            await _repeat(lambda: replace_log(store, lease, coming.keys, at, copy.n_entries, context.record, event))
        except BaseException:
            with contextlib.suppress(StoreUnavailable, Conflict):
                await _end_unfinished(store, lease)
            raise
        living = (await read_catalog(store)).get(keys.name)
        if living is None or living.keys != coming.keys:
            raise UnknownModel(f"the model {keys.name} was deleted")
        log.info(
            "replaced a model", model=keys.name, incarnation=living.keys.incarnation, offset=str(at), reason=reason
        )
        await _until_switched(context, replacement.living)
        return at


async def end_abandoned(store: Store, catalog: Catalog, name: str) -> bool:
    """End the replacement of a model whose process has died, and open its log again; return whether there was one."""
    living = catalog.get(name)
    if living is None or name not in catalog.coming:
        return False
    try:
        async with acquire(store, living.keys, purpose=REPLACEMENT) as lease:
            return await _end_unfinished(store, lease)
    except Conflict:  # its process is alive
        return False


@contextlib.asynccontextmanager
async def hold(context: ReplaceContext) -> AsyncIterator[tuple[Catalog, CatalogModel, Lease]]:
    """Wait until no other replacement of the model runs, hold its lease, and end one whose process has died."""
    store = context.store

    async def waiting() -> None:
        context.progress("waiting for another replacement of the model", 0.0)
        await context.checkpoint()

    while True:
        living = await find_model(store, context.name, context.origin)
        async with acquire(store, living.keys, purpose=REPLACEMENT, wait_seconds=math.inf, waiting=waiting) as lease:
            if await find_model(store, context.name, context.origin) != living:  # it was replaced meanwhile
                continue
            if await _end_unfinished(store, lease):  # the lease has ended with it
                continue
            yield await read_catalog(store), living, lease  # it has no unfinished replacement any more
            return


@contextlib.asynccontextmanager
async def _begin(context: ReplaceContext) -> AsyncIterator[Replacement]:
    store = context.store
    async with hold(context) as (catalog, living, lease), contextlib.AsyncExitStack() as pinned:
        former = catalog.former.get(context.name)
        # A boundary of its own: an empty log gets an entry, and no request is cut in two.
        boundary = Entry(APPLY_VERSION, secrets.token_bytes(8), 1, BoundaryEvent(""))
        after = await lease.append(encode(boundary))
        for keys in (living.keys, *([former.keys] if former is not None else [])):
            await pinned.enter_async_context(pins.hold_pin(store, keys, secrets.token_hex(8), START))
        yield Replacement(
            context=context,
            living=living,
            former=None if former is None else CatalogModel(former.keys, former.config, living.origin),
            lease=lease,
            after=after,
        )


async def find_model(store: Store, name: str, origin: str) -> CatalogModel:
    """Return the present incarnation of a model. Raises UnknownModel even if another model has the same name by now."""
    living = (await read_catalog(store)).get(name)
    if living is None or living.origin != origin:
        raise UnknownModel(f"the model {name} was deleted")
    return living


async def was_made(context: ReplaceContext) -> bool:
    return await replaced_by(context.store, context.record) is not None


async def _end_unfinished(store: Store, lease: Lease) -> bool:
    """End the unfinished replacement of the lease's model, and the lease, if there is one.

    Only the holder of the lease can append ``ModelReplaced``, so the catalog does not change between the two steps.
    """
    catalog = await read_catalog(store)
    living, coming = catalog.get(lease.keys.name), catalog.coming.get(lease.keys.name)
    if living is None or living.keys != lease.keys or coming is None:
        return False
    await open_log(store, lease, IncarnationDropped(lease.keys.name, coming.keys.incarnation))
    log.info("ended an unfinished replacement", model=lease.keys.name, incarnation=coming.keys.incarnation)
    return True


async def _until_loaded(
    context: ReplaceContext, catalog: Catalog, living: CatalogModel, new: ModelKeys, copy: Copy
) -> None:
    """Copy the tail of the log until every ready replica has loaded the new incarnation, for a bounded time."""
    store = context.store
    default = catalog.get(DEFAULT_MODEL)
    everywhere = living.keys if default is None else default.keys
    missing: set[str] = set()

    async def is_loaded() -> bool:
        nonlocal missing
        await context.checkpoint()
        await copy.copy_tail()
        every = {one.replica for one in await replica_status.live_replicas(store, everywhere, SILENT_SECONDS)}
        there = {one.replica for one in await replica_status.live_replicas(store, new, SILENT_SECONDS) if one.ready}
        missing = every - there
        return not missing

    if not await wait_until(is_loaded, POLL_SECONDS, context.prepare_seconds):
        log.warning("replacing a model before all replicas have loaded it", model=living.keys.name, without=missing)


async def _until_switched(context: ReplaceContext, living: CatalogModel) -> None:
    async def is_switched() -> bool:
        return not await replica_status.live_replicas(context.store, living.keys)

    with contextlib.suppress(StoreUnavailable):
        await wait_until(is_switched, POLL_SECONDS, SWITCH_SECONDS)


async def _repeat(step: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a step whose repetition is harmless while the store is unavailable."""
    try:
        return await retry(step, StoreUnavailable, RETRY_SECONDS, APPEND_SECONDS)
    except StoreUnavailable as error:
        raise OutcomeUnknown(f"the store became unavailable during the replacement: {error}") from error
