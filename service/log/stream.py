"""The log: a stream of the store a model, read in order and never changed, and cut off at its beginning.

This file knows the commands and the form of their replies; what an entry means is in ``events``, who appends is in
``appender``, who follows is in ``replica``, who archives and trims is in ``archive``.

    <log>             the stream
    <log>:trimmed     what was taken out of it since its beginning: id of the last such entry, how many, their bytes
    <log>:mended      a copy that is about to take its place (``service/history/repair.py``), or is left of that

A reader that asks for what comes after an entry would not notice that the next ones were trimmed away. So it asks
for ``:trimmed`` right behind, on the same connection: while that is not past the entry, nothing was missing. Nor would
it notice that its server was made the copy of another one, and holds what that one has from some moment on: a
connection outlives it. So it asks for that as well, and takes nothing from a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

import redis.exceptions

from abound.core.errors import Damaged, StoreUnavailable
from abound.core.types import START, Offset
from abound.service.store.client import Store, reaching
from abound.service.store.connection import Link, Reply, packed

MENDING = "`abound mend` says what can be done about it and what that costs; start the service again after it"
"""What to do about an entry that cannot be read (``service/history/repair.py``)."""

Fields = list[bytes]
Element = tuple[bytes, Fields]
"""A stream element: its id and the flat list of its field names and values."""

MOST_ENTRIES = 64
"""Entries of a stream that are asked for at a time at most: when all are the largest that there can be, a reply still
comes in time."""

ENTRY_OVERHEAD = 64
"""Bytes that an entry is counted with besides its payload: id, field names, checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParams:
    """Bounds of appending and reading.

    Attributes
    ----------
    max_log_bytes : int
        Size of a model's log at which learning is refused.
    request_bytes : int
        Largest request, as the records that it becomes; a larger one is refused. With it the size of an entry is
        bounded: the store takes no element over 512 MiB and ends the connection instead.
    group_bytes, group_events : int
        Most that one entry takes of several requests; a request that is larger by itself goes alone.
    waiting_bytes, waiting_requests : int
        Most that waits to be appended, a model; beyond it requests are refused.
    wait_store_seconds : float
        Longest wait for WAITAOF or WAIT.
    read_bytes : int
        About as much is read at a time.
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
    """The extent of a log as it is in the store.

    Attributes
    ----------
    last : Offset
        Entry that was appended last, or START.
    n_entries : int
        Entries that are held.
    n_removed : int
        Entries that were taken out of it since its beginning.
    """

    last: Offset
    n_entries: int
    n_removed: int


class Trim(NamedTuple):
    """What was trimmed off a log since its beginning.

    Attributes
    ----------
    last : Offset
        The last entry that is gone, or START.
    n_entries, log_bytes : int
        How many are gone, and their size.
    """

    last: Offset
    n_entries: int
    log_bytes: int

    def packed(self) -> bytes:
        """As it stands in the store."""
        return f"{self.last.entry} {self.n_entries} {self.log_bytes}".encode()

    def covers(self, offset: Offset) -> bool:
        """Whether the entry of ``offset`` itself is gone."""
        return self.last[:2] >= offset[:2]

    def is_past(self, offset: Offset) -> bool:
        """Whether an entry after ``offset`` is gone."""
        return self.last[:2] > offset[:2]

    @classmethod
    def parse(cls, text: bytes | None) -> Trim:
        """From what stands in the store; Damaged when it cannot be read."""
        if text is None:
            return UNTRIMMED
        try:
            entry, n_entries, log_bytes = text.split()
            return cls(Offset.of_entry(entry), int(n_entries), int(log_bytes))
        except ValueError:
            raise Damaged(f"what was trimmed off a log cannot be read: {text[:100]!r}") from None


UNTRIMMED = Trim(START, 0, 0)


class Trimmed(Exception):
    """Entries that were asked for are not in the log any more. ``trim`` says up to where."""

    def __init__(self, trim: Trim) -> None:
        super().__init__(f"the log is trimmed up to {trim.last.entry}")
        self.trim = trim


class Pace:
    """How many entries to ask for, so that a reply stays around ``read_bytes``.

    The store bounds a reply by entries only. So the size of those that came last says how many to ask for next, few
    at first and at most four times as many as came.

    Attributes
    ----------
    count : int
        Entries of each stream to ask for.
    """

    def __init__(self, read_bytes: int, most: int = MOST_ENTRIES) -> None:
        self.count = 1
        self._read_bytes = read_bytes
        self._most = most

    def came(self, longest: int, size: int) -> None:
        """A reply had so many entries of one stream at most, and so many bytes altogether."""
        self.count = max(1, min(self._most, longest * 4, longest * self._read_bytes // max(1, size)))


def xadd(key: bytes, payload: bytes, checksum: bytes, begun: bool = False) -> bytes:
    """The packed command that appends an entry. ``begun``: only to a log that is there, else the reply is None."""
    there = (b"NOMKSTREAM",) if begun else ()
    return packed((b"XADD", key, *there, b"*", b"e", payload, b"c", checksum))


def trimmed_key(key: bytes) -> bytes:
    """The key of what was trimmed off the log ``key``."""
    return key + b":trimmed"


def mended_key(key: bytes) -> bytes:
    """The key of the copy that mending makes of the log ``key``. Who takes it away ends a mend that is under way."""
    return key + b":mended"


ROLE = ("ROLE",)
"""The words that ask a server whether it is a copy."""


def check_primary(said: Reply) -> None:
    """StoreUnavailable unless a server says (``ROLE``) that it is no copy: a copy's log may come to be another one."""
    if not isinstance(said, list) or said[:1] != [b"master"]:
        raise StoreUnavailable("the server behind this address copies another one now")


def size_of(fields: Fields) -> int:
    """Bytes that an entry is counted with."""
    return len(fields[1]) + ENTRY_OVERHEAD if len(fields) > 1 else ENTRY_OVERHEAD


def between(key: bytes, after: Offset, until: Offset | None, count: int) -> tuple[str | bytes | int, ...]:
    """The words of XRANGE for entries past ``after``, up to and with ``until``."""
    first = "-" if after == START else f"({after.entry}"
    return "XRANGE", key, first, "+" if until is None else until.entry, "COUNT", count


async def read(
    link: Link,
    key: bytes,
    after: Offset,
    until: Offset | None = None,
    *,
    read_bytes: int,
    seconds: float,
    most: int = MOST_ENTRIES,
    checksum: bytes = b"",
) -> AsyncGenerator[list[Element]]:
    """The entries past ``after``, up to and with ``until`` (default: all there are), up to ``most`` at a time.

    The next ones are on their way while the caller is busy with those it was given.

    Parameters
    ----------
    checksum : bytes
        Of the entry at ``after``. A log in which it is another one does not go on from there: a state that came from
        elsewhere, a snapshot that another server gave, must not go on with it.

    Raises
    ------
    Trimmed
        The next entry is not in the log any more.
    StoreUnavailable
        The store goes away, is a copy now, or is not the one that ``after`` came from.
    """
    pace = Pace(read_bytes, most)

    def ask() -> asyncio.Future[list[Reply]]:
        words = between(key, after, until, pace.count)
        asked = link.call_all(words, ("GET", trimmed_key(key)), ROLE, seconds=seconds)
        asked.add_done_callback(_forget)
        return asked

    with reaching():
        if checksum and not await holds_over(link, key, after, checksum, seconds):
            trim = Trim.parse(await link.call("GET", trimmed_key(key), seconds=seconds))
            if not trim.covers(after):
                raise StoreUnavailable(f"the log does not go on from {after}: the store has lost a tail meanwhile")
        coming = ask()
        while True:
            elements, text, role = await coming
            check_primary(role)
            trim = Trim.parse(text)
            if trim.is_past(after):
                raise Trimmed(trim)
            if not elements:
                return
            pace.came(len(elements), sum(size_of(fields) for _, fields in elements))
            after = Offset.of_entry(elements[-1][0])
            coming = ask()
            yield [(name, fields) for name, fields in elements]


def _forget(future: object) -> None:
    """Look at the outcome of a reading that nobody may wait for any more."""
    if not future.cancelled():  # type: ignore[attr-defined]
        future.exception()  # type: ignore[attr-defined]


async def holds(store: Store, key: bytes, offset: Offset, checksum: bytes) -> bool:
    """Whether a log still goes on from an applied entry: the entry is there, with the same checksum.

    For START: whether the log still has its beginning.
    """
    if offset == START:
        return (await tail(store, key)).n_removed == 0
    with reaching():
        found = await store.client.xrange(key, offset.entry, offset.entry)
    return bool(found) and found[0][1].get(b"c") == checksum


async def holds_over(link: Link, key: bytes, offset: Offset, checksum: bytes, seconds: float) -> bool:
    """What ``holds`` says, asked over a link: another connection may end at another server."""
    with reaching():
        if offset != START:
            found = await link.call("XRANGE", key, offset.entry, offset.entry, seconds=seconds)
            return bool(found) and found[0][1][-1] == checksum
        if Trim.parse(await link.call("GET", trimmed_key(key), seconds=seconds)).n_entries:
            return False
        first = await link.call("XRANGE", key, "-", "+", "COUNT", 1, seconds=seconds)
        if not first:
            return True
        info = await link.call("XINFO", "STREAM", key, seconds=seconds)
        said = dict(zip(info[::2], info[1::2], strict=True))
        return int(said.get(b"entries-added") or said[b"length"]) == int(said[b"length"])


async def trim_of(store: Store, key: bytes) -> Trim:
    """What was trimmed off a log."""
    with reaching():
        return Trim.parse(await store.client.get(trimmed_key(key)))


async def tail(store: Store, key: bytes) -> Tail:
    """Where a log ends, and how much of it is gone. A log that does not exist is an empty one."""
    trim = await trim_of(store, key)
    with reaching():
        try:
            info = await store.client.xinfo_stream(key)
        except redis.exceptions.ResponseError as error:
            if "no such key" not in str(error):
                raise
            return Tail(START, 0, trim.n_entries)
    length = int(info["length"])
    removed = int(info.get("entries-added", 0)) - length  # only the store itself sees what others removed, from 7.0 on
    return Tail(Offset.of_entry(info["last-generated-id"]), length, max(removed, trim.n_entries))


class LastFields(Fields):
    """The fields of the last entry of a segment.

    Attributes
    ----------
    log_bytes : int
        Size of the log up to and with it, as it was appended: what was forgotten in a segment since counts as before.
    """

    def __init__(self, fields: Fields, log_bytes: int) -> None:
        super().__init__(fields)
        self.log_bytes = log_bytes


def bytes_with(log_bytes: int, fields: Fields) -> int:
    """Size of a log with one more entry, as it was appended."""
    return fields.log_bytes if isinstance(fields, LastFields) else log_bytes + size_of(fields)
