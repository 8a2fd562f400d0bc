"""Commands that confirm, right behind an append and in the same write, a level of durability above ``log``.

The server info (``ServerInfo``) is at most a second old. It decides which levels a request can ask for, and
whether anything is appended at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import hiredis

from abound.store.raw_connection import ConnectionLost, Reply
from abound.store.reconnecting_connection import ReconnectingConnection
from abound.store.server_info import (
    FSYNC_QUERIES,
    FSYNC_SETTINGS,
    LEVELS,
    WAITAOF_COMMAND_VERSION,
    ServerInfo,
    parse_config,
)

Words = tuple[str | int, ...]


def confirmation_commands(info: ServerInfo, level: int, seconds: float) -> list[Words]:
    """Return the commands that confirm a level (an index into ``LEVELS``); none for ``log``."""
    if level == 0:
        return []
    milliseconds = int(seconds * 1000)
    # Where every write is synced before its reply: whether that is still so.
    commands: list[Words] = [*FSYNC_QUERIES] if info.syncs_writes else []
    has_waitaof = info.waitaof or (info.syncs_writes and info.version >= WAITAOF_COMMAND_VERSION)
    # Where it is the command that confirms an fsync, and while the append-only file is being rewritten: a crash during
    # the first rewrite of a file would lose what is appended.
    if has_waitaof and not info.confirms_fsync:
        commands.append(("WAITAOF", 1, 0, milliseconds))
    if LEVELS[level] == "replica":
        commands.append(("WAIT", 1, milliseconds))
    return commands


def confirmed_level(info: ServerInfo, commands: Sequence[Words], replies: Sequence[Reply]) -> int:
    """Return the level of durability that the replies to the commands confirm, as an index into ``LEVELS``."""
    on_disk, unchanged, copied = info.confirms_fsync, True, False
    for words, reply in zip(commands, replies, strict=True):
        if words[0] == "CONFIG":
            name = str(words[2])
            unchanged = unchanged and parse_config(reply).get(name) == FSYNC_SETTINGS[name]
        elif words[0] == "WAITAOF":
            on_disk = isinstance(reply, list) and reply[0] >= 1
        else:
            copied = isinstance(reply, int) and reply >= 1
    return 0 if not commands or not (on_disk and unchanged) else 2 if copied else 1


async def confirmed_durability(connection: ReconnectingConnection, seconds: float) -> str:
    """Return the durability that the connected store confirms for all it holds: ``fsync`` or ``log``.

    During a rewrite of its file this is ``log``: a stronger answer requires a preceding write.
    """
    raw, info = connection.raw, connection.info
    if raw is None or info is None or not info.confirms_fsync:
        return "log"
    try:
        replies = await raw.call_all(*FSYNC_QUERIES, seconds=seconds)
    except (ConnectionLost, hiredis.ReplyError):
        return "log"
    return LEVELS[confirmed_level(info, FSYNC_QUERIES, replies)]
