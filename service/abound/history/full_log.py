"""The full log of a model: history, then the log in the store, as one stream of entries without gap or overlap.

Entries move from the log to history during a read. Every reply of the log tells the reader whether the next entry has
been trimmed (``stream.read``). If so, the reader continues in history up to the last archived entry, and from there in
the log again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import WAY_OUT, History
from abound.log import stream
from abound.log.events import Entry, LearnEvent, decode_entry
from abound.log.stream import MAX_ENTRIES, Element, LogParams
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.raw_connection import StoreConnection
from abound_core.errors import Corrupted
from abound_core.types import Offset


async def read_entries(
    store: Store,
    artifacts: ArtifactStore | None,
    keys: ModelKeys,
    after: Offset,
    until: Offset | None = None,
    *,
    params: LogParams | None = None,
    connection: StoreConnection | None = None,
    most: int = MAX_ENTRIES,
    checksum: bytes = b"",
) -> AsyncGenerator[list[Element]]:
    """Yield the entries after ``after``, up to and including ``until`` (default: all), a few at a time.

    Without ``artifacts``, trimmed entries cannot be read. ``checksum`` is that of the entry at ``after``; see
    ``stream.read``. Raises UnknownOffset, with the first possible offset, if history starts after ``after``.
    """
    params = params or LogParams()
    own = None if connection is not None else await store.open_connection("past")
    try:
        while True:
            reading = stream.read(
                connection or own,  # type: ignore[arg-type]  # one of them is there
                keys.log,
                after,
                until,
                read_bytes=params.read_bytes,
                seconds=store.params.reply_seconds,
                most=most,
                checksum=checksum,
            )
            trimmed = None
            try:
                async with contextlib.aclosing(reading):
                    async for elements in reading:
                        yield elements
                        after = Offset.of_entry(elements[-1][0])
            except stream.LogTrimmed as error:
                trimmed = error
            if trimmed is None:
                return
            before, checksum = after, b""
            async with contextlib.aclosing(History(store, artifacts, keys).read(after, until, most)) as archived:
                async for elements in archived:
                    yield elements
                    after = Offset.of_entry(elements[-1][0])
            if until is not None and after[:2] >= until[:2]:
                return
            if after == before:
                if until is not None and trimmed.trim.last[:2] >= until[:2]:
                    return  # the range has no entry
                raise Corrupted(f"{trimmed}, and the history of {keys.name} has nothing after {after.entry}. {WAY_OUT}")
    finally:
        if own is not None:
            own.close()


async def read_newest(
    store: Store, artifacts: ArtifactStore | None, keys: ModelKeys, before: Offset, count: int
) -> list[Element]:
    """Return entries that begin before ``before``, newest first: at most ``count`` of the log, else a segment's."""
    last = before if before.position else before.before
    with store_errors():
        newest = await store.client.xrevrange(keys.log, last.entry, "-", count=count)
    if newest:
        return [(name, [part for field in fields.items() for part in field]) for name, fields in newest]
    # Entries that were archived meanwhile are in the manifest, which is read after the log.
    return await History(store, artifacts, keys).read_newest(before)


def decode_element(element: Element) -> Entry:
    try:
        return decode_entry(element[1])
    except Corrupted as error:
        raise Corrupted(
            f"the entry {element[0].decode()} cannot be applied: {error}. {stream.DAMAGED_ENTRY_ADVICE}"
        ) from error


async def newest_offset(store: Store, keys: ModelKeys) -> Offset:
    """Return the offset of the newest event, or START.

    The store knows a log's last entry, which is never trimmed; the number of its events is in the entry.
    """
    with store_errors():
        newest = await store.client.xrevrange(keys.log, count=1)
    if not newest:
        return (await stream.tail(store, keys.log)).last
    name, fields = newest[0]
    event = decode_entry([part for field in fields.items() for part in field]).event
    return Offset.of_entry(name, max(0, event.n - 1) if isinstance(event, LearnEvent) else 0)
