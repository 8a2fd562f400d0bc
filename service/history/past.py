"""The past of a model: history, then its log, as one stream of entries without a gap and without an overlap.

Entries wander from the log to history while somebody reads. Whoever reads the log learns with every reply whether the
next entry has left it (``log.read``), and goes on in history; there the end is the last entry that was archived, and
the log goes on from that.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from abound.core.errors import Damaged
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.history import History
from abound.service.log import stream
from abound.service.log.events import Entry, Learn, decode_entry
from abound.service.log.stream import MOST_ENTRIES, Element, LogParams
from abound.service.store.client import Store, reaching
from abound.service.store.connection import Link
from abound.service.store.keys import ModelKeys


async def entries(
    store: Store,
    artifacts: Artifacts | None,
    keys: ModelKeys,
    after: Offset,
    until: Offset | None = None,
    *,
    params: LogParams | None = None,
    link: Link | None = None,
    most: int = MOST_ENTRIES,
    checksum: bytes = b"",
) -> AsyncGenerator[list[Element]]:
    """The entries past ``after``, up to and with ``until`` (default: all there are), a few at a time.

    Parameters
    ----------
    artifacts : Artifacts or None
        Without one, what has left the log cannot be read.
    link : Link, optional
        To read the log over; else one is opened for it.
    checksum : bytes
        Of the entry at ``after``, by which the log is known to go on from there; see ``log.read``.

    Raises
    ------
    UnknownOffset
        History begins after ``after``; names the first possible offset.
    Damaged
        History is needed, and a part of it is missing or not what was written.
    ArtifactsUnavailable, StoreUnavailable
    """
    params = params or LogParams()
    own = None if link is not None else await store.open_link("past")
    try:
        while True:
            reading = stream.read(
                link or own,  # type: ignore[arg-type]  # one of them is there
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
            except stream.Trimmed as error:
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
                    return  # the range has no entry at all
                raise Damaged(f"{trimmed}, and the history of {keys.name} has nothing after {after.entry}")
    finally:
        if own is not None:
            own.close()


def entry_of(element: Element) -> Entry:
    """What an element says.

    Raises
    ------
    Damaged
        It is not what was written; names it, and the command that mends it.
    UnknownApplyVersion
    """
    try:
        return decode_entry(element[1])
    except Damaged as error:
        raise Damaged(f"the entry {element[0].decode()} cannot be applied: {error}. {stream.MENDING}") from error


async def end(store: Store, keys: ModelKeys) -> Offset:
    """The offset of the last event that there is now, START where there is none. Damaged, StoreUnavailable.

    The store knows a log's last entry, which never leaves it; how many events that has stands in the entry itself.
    """
    with reaching():
        newest = await store.client.xrevrange(keys.log, count=1)
    if not newest:
        return (await stream.tail(store, keys.log)).last
    name, fields = newest[0]
    event = decode_entry([part for field in fields.items() for part in field]).event
    return Offset.of_entry(name, max(0, event.n - 1) if isinstance(event, Learn) else 0)
