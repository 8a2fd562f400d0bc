"""Checks of durability that follow every append, and how their replies are read.

The server info (``ServerInfo``) may be outdated: an operator may have changed the settings, or another server may
have taken over. So each append is followed, in the same write and on the same connection, by commands that check
whether the store would still keep the log, and by commands that confirm the requested level.

    CONFIG GET    appendonly and maxmemory-policy; for ``fsync`` and above also which writes are synced
    INFO          persistence, for ``fsync`` and above: an fsync does not count while the file is being rewritten.
                  persistence and memory, where the server has no CONFIG GET or accepts one name at a time
    WAITAOF       where it is the command that confirms an fsync
    WAIT          until a store replica has the event

A name of CONFIG GET costs the store less than a microsecond, a section of INFO four to ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import hiredis

from abound.service.store.connection import ConnectionLost, Reply, pack_command
from abound.service.store.reconnecting import ReconnectingConnection
from abound.service.store.server_info import (
    FSYNC_NAMES,
    FSYNC_SETTINGS,
    LEVELS,
    SAFE_NAMES,
    ServerInfo,
    aof_check_command,
    has_idle_aof,
    parse_config,
    syncs_every_write,
)

Words = tuple[str | int, ...]

INFO: Words = ("INFO", "persistence")


@lru_cache(maxsize=64)
def check_commands(facts: ServerInfo, careful: bool) -> tuple[tuple[Words, ...], bytes]:
    """Return the check commands behind an append, which all answer immediately, and the same packed for the wire.

    ``careful``: the append requests more than level ``log``.
    """
    fsync = careful and facts.syncs_writes
    asked: tuple[Words, ...]
    if facts.tells_several:
        asked = (("CONFIG", "GET", *SAFE_NAMES, *(FSYNC_NAMES if fsync else ())),)
        if fsync:
            asked += (INFO,)
    else:
        asked = (INFO, ("INFO", "memory"))
        if fsync:
            asked = (("CONFIG", "GET", FSYNC_SETTINGS), *asked)
    return asked, b"".join([pack_command(words) for words in asked])


def wait_commands(facts: ServerInfo, level: int, seconds: float) -> list[Words]:
    """Return the commands that follow the checks and wait for the disk, and for a store replica."""
    milliseconds = int(seconds * 1000)
    waited: list[Words] = []
    if level > 0 and not facts.syncs_writes and facts.waitaof:
        waited.append(("WAITAOF", 1, 0, milliseconds))
    if LEVELS[level] == "replica":
        waited.append(("WAIT", 1, milliseconds))
    return waited


def updated_info(facts: ServerInfo, asked: Sequence[Words], replies: list[Reply]) -> ServerInfo | None:
    """Return ``facts`` with the safety settings that the replies contain; None if the replies lack them."""
    aof, eviction, whole = None, None, facts.aof_complete
    for words, reply in zip(asked, replies, strict=True):
        if words[0] == "CONFIG":
            settings = parse_config(reply)
            if SAFE_NAMES[0] in settings:
                aof = settings[SAFE_NAMES[0]] == "yes"
            eviction = settings.get(SAFE_NAMES[1])
        elif words == INFO and isinstance(reply, bytes):
            aof = b"\naof_enabled:1" in reply
        elif words == ("INFO", "memory") and isinstance(reply, bytes):
            _, _, rest = reply.partition(b"\nmaxmemory_policy:")
            eviction = rest.split(b"\r", 1)[0].decode() or "unknown"
        elif facts.syncs_writes and words == aof_check_command():
            if not isinstance(reply, list):
                return None
            whole = reply[0] >= 1
    if aof is None or eviction is None:
        return None
    if aof == facts.aof and eviction == facts.eviction and whole == facts.aof_complete:
        return facts
    return facts._replace(aof=aof, eviction=eviction, aof_complete=whole)


def needs_aof_check(facts: ServerInfo, asked: Sequence[Words], replies: list[Reply]) -> bool:
    """Return whether safety depends on which file the server is writing, and that can still be queried.

    The query takes a second round trip, and only during a rewrite of the file. If every append asked, its reply would
    wait for the store's next event loop turn and for the fsync of other writes.
    """
    if not facts.can_check_aof or asked[0][0] != "CONFIG" or any(words[0] == "WAITAOF" for words in asked):
        return False
    persistence = replies[asked.index(INFO)] if INFO in asked else None
    return (
        syncs_every_write(parse_config(replies[0]))
        and isinstance(persistence, bytes)
        and b"\naof_enabled:1" in persistence
        and not has_idle_aof(persistence)
    )


def confirmed_level(asked: Sequence[Words], replies: list[Reply]) -> int:
    """Return the level of durability that the replies confirm, as an index into ``LEVELS``."""
    on_disk, copied = False, False
    for words, reply in zip(asked, replies, strict=True):
        if words[0] == "CONFIG":
            on_disk = syncs_every_write(parse_config(reply))
        elif words == INFO:
            on_disk = on_disk and has_idle_aof(reply)
        elif words[0] == "WAITAOF" and isinstance(reply, list):
            on_disk = reply[0] >= 1
        elif words[0] == "WAIT" and isinstance(reply, int):
            copied = reply >= 1
    return (2 if copied else 1) if on_disk else 0


async def confirmed_durability(line: ReconnectingConnection, seconds: float) -> str:
    """Return the durability that the connected store confirms for all it holds: ``fsync`` or ``log``.

    During a rewrite of its file this is ``log``: a stronger answer requires a preceding write.
    """
    link, facts = line.connection, line.info
    if link is None or facts is None or not facts.syncs_writes:
        return "log"
    try:
        settings, persistence = await link.call_all(facts.fsync_query, ("INFO", "persistence"), seconds=seconds)
    except (ConnectionLost, hiredis.ReplyError):
        return "log"
    return "fsync" if syncs_every_write(parse_config(settings)) and has_idle_aof(persistence) else "log"
