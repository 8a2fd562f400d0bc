"""What a store is asked behind an append, before anything is promised of it, and what its answers come to.

It may have been changed since it said what it is (``Facts``), by an operator or by whoever took its place. So each
append is followed, in the same piece and on the same connection, by the question whether the store would still keep
the log; and by those that confirm the level that was asked for.

    CONFIG GET    appendonly and maxmemory-policy; and for what is to be on disk, what it syncs and when
    INFO          persistence, for what is to be on disk: not every file counts. Persistence and memory, where the
                  server does not tell its settings, or takes one name at a time
    WAITAOF       where that is what says that it is on disk
    WAIT          until it is on a copy

A name of CONFIG GET costs the store less than a microsecond, a section of INFO four to ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import hiredis

from abound.service.store.connection import LinkLost, Reply, packed
from abound.service.store.reconnecting import Line
from abound.service.store.server_info import (
    FSYNC_NAMES,
    FSYNC_SETTINGS,
    LEVELS,
    SAFE_NAMES,
    Facts,
    always_synced,
    is_at_rest,
    settings_of,
    wait_whole,
)

Words = tuple[str | int, ...]

INFO: Words = ("INFO", "persistence")


@lru_cache(maxsize=64)
def asks(facts: Facts, careful: bool) -> tuple[tuple[Words, ...], bytes]:
    """The commands behind an append, all of which answer at once; and the same as they go over the wire.

    ``careful``: it is to reach more than ``log``.
    """
    fsync = careful and facts.syncs
    asked: tuple[Words, ...]
    if facts.tells_several:
        asked = (("CONFIG", "GET", *SAFE_NAMES, *(FSYNC_NAMES if fsync else ())),)
        if fsync:
            asked += (INFO,)
    else:
        asked = (INFO, ("INFO", "memory"))
        if fsync:
            asked = (("CONFIG", "GET", FSYNC_SETTINGS), *asked)
    return asked, b"".join([packed(words) for words in asked])


def waits(facts: Facts, level: int, seconds: float) -> list[Words]:
    """The commands behind those that wait until it is on disk, and until it is on a copy."""
    milliseconds = int(seconds * 1000)
    waited: list[Words] = []
    if level > 0 and not facts.syncs and facts.waitaof:
        waited.append(("WAITAOF", 1, 0, milliseconds))
    if LEVELS[level] == "replica":
        waited.append(("WAIT", 1, milliseconds))
    return waited


def seen(facts: Facts, asked: Sequence[Words], replies: list[Reply]) -> Facts | None:
    """``facts`` with what the answers say of whether the log may be lost; None when they do not say that."""
    aof, eviction, whole = None, None, facts.whole
    for words, reply in zip(asked, replies, strict=True):
        if words[0] == "CONFIG":
            settings = settings_of(reply)
            if SAFE_NAMES[0] in settings:
                aof = settings[SAFE_NAMES[0]] == "yes"
            eviction = settings.get(SAFE_NAMES[1])
        elif words == INFO and isinstance(reply, bytes):
            aof = b"\naof_enabled:1" in reply
        elif words == ("INFO", "memory") and isinstance(reply, bytes):
            _, _, rest = reply.partition(b"\nmaxmemory_policy:")
            eviction = rest.split(b"\r", 1)[0].decode() or "unknown"
        elif facts.syncs and words == wait_whole():
            if not isinstance(reply, list):
                return None
            whole = reply[0] >= 1
    if aof is None or eviction is None:
        return None
    if aof == facts.aof and eviction == facts.eviction and whole == facts.whole:
        return facts
    return facts._replace(aof=aof, eviction=eviction, whole=whole)


def is_unsettled(facts: Facts, asked: Sequence[Words], replies: list[Reply]) -> bool:
    """Whether it depends on which file the server is writing, and that was not asked yet, though it can be.

    That takes a second round trip, and only while the file is written anew. Asked with each append, it would keep the
    reply until the store's next turn, and behind the fsync of whatever came in between.
    """
    if not facts.tells_whole or asked[0][0] != "CONFIG" or any(words[0] == "WAITAOF" for words in asked):
        return False
    persistence = replies[asked.index(INFO)] if INFO in asked else None
    return (
        always_synced(settings_of(replies[0]))
        and isinstance(persistence, bytes)
        and b"\naof_enabled:1" in persistence
        and not is_at_rest(persistence)
    )


def reached(asked: Sequence[Words], replies: list[Reply]) -> int:
    """The level of durability, as a place in ``LEVELS``, that the answers confirm."""
    on_disk, copied = False, False
    for words, reply in zip(asked, replies, strict=True):
        if words[0] == "CONFIG":
            on_disk = always_synced(settings_of(reply))
        elif words == INFO:
            on_disk = on_disk and is_at_rest(reply)
        elif words[0] == "WAITAOF" and isinstance(reply, list):
            on_disk = reply[0] >= 1
        elif words[0] == "WAIT" and isinstance(reply, int):
            copied = reply >= 1
    return (2 if copied else 1) if on_disk else 0


async def confirmed(line: Line, seconds: float) -> str:
    """How safe the store at the end of a line says that all it has is: ``fsync``, or ``log``.

    While it writes its file anew that is ``log``: what tells more has to stand behind a write.
    """
    link, facts = line.link, line.facts
    if link is None or facts is None or not facts.syncs:
        return "log"
    try:
        settings, persistence = await link.call_all(facts.asks_fsync, ("INFO", "persistence"), seconds=seconds)
    except (LinkLost, hiredis.ReplyError):
        return "log"
    return "fsync" if always_synced(settings_of(settings)) and is_at_rest(persistence) else "log"
