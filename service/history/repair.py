"""Offline repair (``abound mend``): reports what cannot be read, and replaces an unreadable log entry by a mark.

The mark gets the entry's offset. The events in the entry are lost; nothing else is, and no offset moves. An entry that
a good snapshot contains is not replaced, because the snapshot still has its events. Damaged snapshots past the entry
are removed: a start from a snapshot must give the same model as a replay of the log.

A stream cannot be changed in place. It is copied entry by entry under another key, with the same ids. The copy
replaces the stream atomically, unless something was appended meanwhile. If the process dies, garbage collection or an
erasure deletes the copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import redis.exceptions

from abound.core.errors import ArtifactsUnavailable, Conflict, Corrupted, UnknownApplyVersion, UnknownSnapshot
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.history.history_manifest import BEGIN_ANEW_HINT
from abound.service.history.integrity import Damage, find_damage, offset_of_start
from abound.service.log import stream
from abound.service.log.catalog import read_catalog
from abound.service.log.events import APPLY_VERSION, Entry, MarkEvent, encode
from abound.service.log.stream import LogParams
from abound.service.snapshots import snapshots
from abound.service.store.client import Store, store_errors
from abound.service.store.lease import Lease, acquire


async def find_problems(store: Store, artifacts: ArtifactStore | None) -> list[Damage]:
    """Read all logs and histories, and return everything that is unreadable. Raises StoreUnavailable."""
    found: list[Damage] = []
    try:
        catalog = await read_catalog(store)
    except (Corrupted, UnknownApplyVersion) as error:
        return [Damage("", "", str(error))]
    for living in catalog:
        try:
            found += await find_damage(store, artifacts, living)
        except (ArtifactsUnavailable, Corrupted) as error:
            found.append(Damage(living.keys.name, "", str(error)))
    return found


async def replace_entry(store: Store, artifacts: ArtifactStore | None, damage: Damage) -> None:
    """Replace an unreadable log entry by a mark.

    Raises
    ------
    Conflict
        Nothing was changed: something was appended meanwhile, another process works on the model's snapshots, or a
        good snapshot contains the entry.
    Corrupted, UnknownApplyVersion, ArtifactsUnavailable, StoreUnavailable
        Nothing was changed: the model cannot be loaded up to the entry, or a snapshot needs another release.
    """
    at = Offset.of_entry(damage.entry)
    living = (await read_catalog(store)).get(damage.model)
    if living is None:
        raise Conflict(f"the model {damage.model} was deleted meanwhile")
    async with acquire(store, living.keys) as lease:  # a snapshot in progress may contain the entry's events
        if (await offset_of_start(store, artifacts, living))[:2] >= at[:2]:
            raise Conflict(
                f"a snapshot contains the entry {at.entry}. Once all snapshots are past it, {BEGIN_ANEW_HINT}"
            )
        past = [name for name in await snapshots.ids(store, living.keys) if snapshots.offset_in(name)[:2] >= at[:2]]
        for name in past:
            with contextlib.suppress(Corrupted, UnknownSnapshot):
                await snapshots.read_manifest(store, living.keys, name)  # another release may be able to start from it
        await _rewrite(store, lease, damage.entry, past)


async def _rewrite(store: Store, lease: Lease, replaced: str, snapshots: Sequence[str]) -> None:
    """Replace a log by a copy with a mark in the place of one entry. Raises Conflict if the log changed meanwhile.

    The same transaction removes ``snapshots`` from the model's list.
    """
    key, beside = lease.keys.log, stream.repaired_key(lease.keys.log)
    payload, checksum = encode(Entry(APPLY_VERSION, b"mending", 0, MarkEvent(f"mended {replaced}")))
    after, n_copied = START, 0
    pace = stream.ReadPacer(LogParams().read_bytes)
    with store_errors():
        await store.client.delete(beside)
        while True:
            first = "-" if after == START else f"({after.entry}"
            elements: list[tuple[bytes, dict[bytes, bytes]]] = await store.client.xrange(key, first, "+", pace.count)
            if not elements:
                break
            async with store.client.pipeline(transaction=False) as pipe:
                for entry_id, fields in elements:
                    mark = {"e": payload, "c": checksum}
                    pipe.xadd(beside, mark if entry_id.decode() == replaced else fields, id=entry_id)
                await pipe.execute()
            pace.on_reply(len(elements), sum(len(part) for _, fields in elements for part in fields.values()))
            after, n_copied = Offset.of_entry(elements[-1][0]), n_copied + len(elements)
        async with store.client.pipeline(transaction=True) as pipe:
            try:
                await pipe.watch(key, beside, lease.fence)
                held = await pipe.get(lease.fence) == lease.token
                whole = 0 < n_copied == await pipe.xlen(beside)  # garbage collection may have deleted the copy
                if held and whole and not await pipe.xrevrange(key, "+", f"({after.entry}", 1):
                    pipe.multi()
                    pipe.rename(beside, key)
                    for name in snapshots:
                        pipe.lrem(lease.keys.key("snapshots"), 0, name)
                    await pipe.execute()
                    return
            except redis.exceptions.WatchError:
                pass
        await store.client.delete(beside)
    raise Conflict("something was appended meanwhile; stop the service and run `abound mend` again")
