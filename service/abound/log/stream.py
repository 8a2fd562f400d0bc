"""The log of a model: an append-only stream in the store, trimmed at its beginning.

    <log>             the stream
    <log>:trimmed     what was trimmed so far: id of the last removed entry, number of entries, their bytes

This module knows the stream commands and their replies. ``events`` defines what an entry means, ``appender``
appends, ``abound/replica/follower.py`` follows, and ``abound/history/archive.py`` archives and trims.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

import redis.exceptions

from abound.store.client import Store, store_errors
from abound.store.raw_connection import Reply, StoreConnection, pack_command
from abound_core.errors import Corrupted, StoreUnavailable
from abound_core.types import START, Offset

DAMAGED_ENTRY_ADVICE = (
    "Restore the store from a backup; or, once all snapshots are past the entry, `abound history begin-anew` gives up "
    "everything before the oldest snapshot"
)

Fields = list[bytes]
Element = tuple[bytes, Fields]  # id, and the flat list of field names and values

MAX_ENTRIES = 16  # per read; a reply of only the largest entries then arrives in time at 1 Gb/s

ENTRY_OVERHEAD = 64  # bytes counted for an entry besides its payload: id, field names, checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParams:
    """Bounds of appending and reading.

    Attributes
    ----------
    max_log_bytes : int
        Size of a model's log at which learning is refused.
    request_bytes : int
        Largest request, measured as the records made from it; a larger one is refused. This also bounds an
        entry: the store accepts no element over 512 MiB and closes the connection instead.
    group_bytes, group_events : int
        Maximum size of an entry that holds several requests; a larger request gets an entry of its own.
    waiting_bytes, waiting_requests : int
        Maximum that waits to be appended, per model; further requests are refused.
    wait_store_seconds : float
        Longest wait for WAITAOF or WAIT.
    read_bytes : int
        Approximate number of bytes per read.
    slice_events : int
        Events applied before other work of the process gets its turn.
    """

    max_log_bytes: int = 8 * 2**30
    request_bytes: int = 16 * 2**20
    group_bytes: int = 4 * 2**20
    group_events: int = 4096
    waiting_bytes: int = 64 * 2**20
    waiting_requests: int = 10_000
    wait_store_seconds: float = 2.0
    read_bytes: int = 4 * 2**20
    slice_events: int = 32

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")
        if self.request_bytes > 256 * 2**20:
            raise ValueError("request_bytes must be at most 268435456: the store takes no element over 512 MiB")


class Tail(NamedTuple):
    last: Offset  # START if the log is empty
    n_entries: int
    n_removed: int  # since the log began


class Trim(NamedTuple):
    """A record of what was trimmed off a log since it began."""

    last: Offset  # the last removed entry, or START
    n_entries: int  # removed ones
    log_bytes: int  # their size

    def packed(self) -> bytes:
        return f"{self.last.entry} {self.n_entries} {self.log_bytes}".encode()

    def covers(self, offset: Offset) -> bool:
        return self.last[:2] >= offset[:2]

    def is_past(self, offset: Offset) -> bool:
        return self.last[:2] > offset[:2]

    @classmethod
    def parse(cls, text: bytes | None) -> Trim:
        if text is None:
            return UNTRIMMED
        try:
            entry, n_entries, log_bytes = text.split()
            return cls(Offset.of_entry(entry), int(n_entries), int(log_bytes))
        except ValueError:
            raise Corrupted(
                f"the trim record of a log cannot be read: {text[:100]!r}. Restore the store from a backup"
            ) from None


UNTRIMMED = Trim(START, 0, 0)


class LogTrimmed(Exception):
    """Requested entries are no longer in the log."""

    def __init__(self, trim: Trim) -> None:
        super().__init__(f"the log is trimmed up to {trim.last.entry}")
        self.trim = trim


class LogGone(StoreUnavailable):
    """A log that was read before does not exist: its model was deleted, or the store was emptied."""


class ReadPacer:
    """Chooses how many entries to request of each stream (``count``), so that a reply stays around ``read_bytes``.

    The store bounds a reply only by its number of entries. The size of the last reply therefore sets the next
    request. The first one asks for one entry, and each asks for at most four times as many as the last reply held.
    """

    def __init__(self, read_bytes: int, most: int = MAX_ENTRIES) -> None:
        self.count = 1
        self._read_bytes = read_bytes
        self._most = most

    def on_reply(self, longest: int, size: int) -> None:
        """Adapt to a reply of ``size`` bytes with at most ``longest`` entries of any one stream."""
        self.count = max(1, min(self._most, longest * 4, longest * self._read_bytes // max(1, size)))


def xadd(key: bytes, payload: bytes, checksum: bytes, begun: bool = False) -> bytes:
    """With ``begun``, a log that does not exist gives None instead."""
    there = (b"NOMKSTREAM",) if begun else ()
    return pack_command((b"XADD", key, *there, b"*", b"e", payload, b"c", checksum))


def trimmed_key(key: bytes) -> bytes:
    return key + b":trimmed"


ROLE = ("ROLE",)

CLOSED_ID = b"18446744073709551615-18446744073709551615"
"""The last id of a closed log: the largest one, so that the store refuses every further entry.

Its entries can be read as before. ``open_log`` sets the last id to that of the last entry again.
"""


def check_primary(said: Reply) -> None:
    """Raise StoreUnavailable unless a primary replied: the log of a replica may be replaced by another one."""
    if not isinstance(said, list) or said[:1] != [b"master"]:
        raise StoreUnavailable("the server at this address is a replica of another one now")


def entry_size(fields: Fields) -> int:
    return len(fields[1]) + ENTRY_OVERHEAD if len(fields) > 1 else ENTRY_OVERHEAD


def xrange_command(key: bytes, after: Offset, until: Offset | None, count: int) -> tuple[str | bytes | int, ...]:
    first = "-" if after == START else f"({after.entry}"
    return "XRANGE", key, first, "+" if until is None else until.entry, "COUNT", count


async def read(
    connection: StoreConnection,
    key: bytes,
    after: Offset,
    until: Offset | None = None,
    *,
    read_bytes: int,
    seconds: float,
    most: int = MAX_ENTRIES,
    checksum: bytes = b"",
) -> AsyncGenerator[list[Element]]:
    """Yield the entries after ``after``, up to and including ``until`` (default: all), up to ``most`` at a time.

    The next entries are requested while the caller handles the previous ones.

    ``checksum`` is that of the entry at ``after``. Reading fails if the log holds another entry there. This protects a
    state that came from elsewhere, such as a snapshot from another server.

    Raises LogTrimmed if the next entry is no longer in the log, LogGone if the log does not exist, and StoreUnavailable
    also if the server is a replica now, or not the one that ``after`` came from.
    """
    pace = ReadPacer(read_bytes, most)

    def ask() -> asyncio.Future[list[Reply]]:
        words = xrange_command(key, after, until, pace.count)
        # Right behind the entries, on the same connection: entries after ``after`` may be trimmed before they are read,
        # and the server may have become a replica of another one, and then hold that server's data.
        asked = connection.call_all(words, ("GET", trimmed_key(key)), ROLE, seconds=seconds)
        asked.add_done_callback(_forget)
        return asked

    with store_errors():
        if checksum and not await holds_over(connection, key, after, checksum, seconds):
            trim = Trim.parse(await connection.call("GET", trimmed_key(key), seconds=seconds))
            if not trim.covers(after):
                if not await connection.call("EXISTS", key, seconds=seconds):
                    raise LogGone(
                        f"there is no log to continue from {after}: the model was deleted, or its log is lost"
                    )
                raise StoreUnavailable(f"the log does not continue from {after}: the store has lost its last entries")
        coming = ask()
        while True:
            elements, text, role = await coming
            check_primary(role)
            trim = Trim.parse(text)
            if trim.is_past(after):
                raise LogTrimmed(trim)
            if not elements:
                return
            pace.on_reply(len(elements), sum(entry_size(fields) for _, fields in elements))
            after = Offset.of_entry(elements[-1][0])
            coming = ask()
            yield [(name, fields) for name, fields in elements]


def _forget(future: object) -> None:
    """Retrieve the outcome of a read that may have no reader left, so that asyncio does not warn about it."""
    if not future.cancelled():  # type: ignore[attr-defined]
        future.exception()  # type: ignore[attr-defined]


async def holds(store: Store, key: bytes, offset: Offset, checksum: bytes) -> bool:
    """Return whether the log still contains an applied entry, with the same checksum; for START, its beginning."""
    if offset == START:
        return (await tail(store, key)).n_removed == 0
    with store_errors():
        found = await store.client.xrange(key, offset.entry, offset.entry)
    return bool(found) and found[0][1].get(b"c") == checksum


async def holds_over(connection: StoreConnection, key: bytes, offset: Offset, checksum: bytes, seconds: float) -> bool:
    """Return the same as ``holds``, asked over this connection: another one may end at another server."""
    with store_errors():
        if offset != START:
            found = await connection.call("XRANGE", key, offset.entry, offset.entry, seconds=seconds)
            return bool(found) and found[0][1][-1] == checksum
        if Trim.parse(await connection.call("GET", trimmed_key(key), seconds=seconds)).n_entries:
            return False
        first = await connection.call("XRANGE", key, "-", "+", "COUNT", 1, seconds=seconds)
        if not first:
            return True
        info = await connection.call("XINFO", "STREAM", key, seconds=seconds)
        said = dict(zip(info[::2], info[1::2], strict=True))
        return int(said.get(b"entries-added") or said[b"length"]) == int(said[b"length"])


async def trim_of(store: Store, key: bytes) -> Trim:
    with store_errors():
        return Trim.parse(await store.client.get(trimmed_key(key)))


async def tail(store: Store, key: bytes) -> Tail:
    """Return where a log ends, and how much of it was removed. A log that does not exist is empty."""
    trim = await trim_of(store, key)
    with store_errors():
        try:
            info = await store.client.xinfo_stream(key)
        except redis.exceptions.ResponseError as error:
            if "no such key" not in str(error):
                raise
            return Tail(START, 0, trim.n_entries)
    length = int(info["length"])
    newest = info["last-generated-id"]
    if newest == CLOSED_ID and info["last-entry"] is not None:
        newest = info["last-entry"][0]
    removed = int(info.get("entries-added", 0)) - length  # entries-added (7.0 and later) reveals what others removed
    return Tail(Offset.of_entry(newest), length, max(removed, trim.n_entries))


async def newest_after(store: Store, key: bytes, after: Offset) -> Offset | None:
    """Return the offset of the last entry, or None if it is not after ``after``. The store then sends no entry."""
    with store_errors():
        found = await store.client.xrevrange(key, "+", f"({after.entry}", count=1)
    return Offset.of_entry(found[0][0]) if found else None
