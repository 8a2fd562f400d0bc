"""Facts: what a store says of itself, and what it can promise by that."""

from __future__ import annotations

import re
from typing import NamedTuple

from abound.core.errors import InvalidInstance, StoreUnavailable
from abound.service.store.connection import Reply

WAITAOF_VERSION = (8, 0)
"""Redis from here on says by WAITAOF that an event is on disk. Redis 7.4, and Valkey so far, say so of what is only
written and not yet synced, for up to a second, unless every command is (redis/redis#13793)."""

WHOLE_VERSION = (7, 2)
"""A server has WAITAOF from here on. Under ``appendfsync always`` it tells the first writing of a file, from which a
crash would not bring back what was appended, from any other."""

WHOLE_SECONDS = 0.5
"""Longest wait for that. It is known as soon as what was sent before is written."""

SAFE_NAMES = ("appendonly", "maxmemory-policy")
"""Settings by which a server would keep the log, or lose it without a word."""

FSYNC_SETTINGS = "*appendfsync*"
"""What CONFIG GET is asked for: the two of ``FSYNC_NAMES`` (Redis before 7 takes one pattern only)."""

FSYNC_NAMES = ("appendfsync", "no-appendfsync-on-rewrite")
"""The same for a server that takes several: it finds a name twenty times as fast as a pattern."""

LEVELS = ("log", "fsync", "replica")
"""How durable an event can be asked to be, least first."""


class Facts(NamedTuple):
    """What the store says of itself.

    Attributes
    ----------
    version : (major, minor)
        Of the protocol: what it calls its Redis version.
    aof : bool
        It keeps an append-only file.
    appendfsync : str or None
        ``always``, ``everysec``, ``no``; None when it does not tell.
    eviction : str
        ``maxmemory_policy``.
    replicas : int
        Servers that copy it, connected now.
    waitaof : bool
        It has WAITAOF, and what it answers holds.
    run : str
        Of the server's process, another one each time it starts.
    rewriting : bool
        It is writing its append-only file anew, or about to.
    whole : bool
        What it appends to its file would be found there after a crash. That is not so while it writes the file for the
        first time since it was told to keep one.
    pauses : bool
        It syncs nothing while it saves or rewrites its file, whatever ``appendfsync`` says, or does not tell that it
        does (``no-appendfsync-on-rewrite``).
    told : bool
        ``whole`` is what it said itself while it wrote its file anew.
    tells : bool
        It answers CONFIG GET. Servers that somebody else runs often do not.
    """

    version: tuple[int, int]
    aof: bool
    appendfsync: str | None
    eviction: str
    replicas: int
    waitaof: bool = False
    run: str = ""
    rewriting: bool = False
    whole: bool = True
    pauses: bool = False
    told: bool = False
    tells: bool = False

    def after(self, before: Facts | None) -> Facts:
        """The same, with what was seen before: a file that was whole then is while it is written anew.

        INFO does not tell whether the file that a server writes is the first one: only that there was none when it
        started. Where WAITAOF does not tell it either, one that was told to keep none and then to keep one again is
        found out by who has seen that.
        """
        if self.told or before is None or before.run != self.run or not (self.aof and self.rewriting):
            return self
        return self._replace(whole=before.aof and before.whole)

    @property
    def asks_fsync(self) -> tuple[str, ...]:
        """The command that asks, again, whether it syncs whatever it answers for."""
        return "CONFIG", "GET", *(FSYNC_NAMES if self.tells_several else (FSYNC_SETTINGS,))

    @property
    def tells_several(self) -> bool:
        """Whether it tells several settings by their names, in one answer."""
        return self.tells and self.version >= (7, 0)

    @property
    def tells_whole(self) -> bool:
        """Whether it can be asked, behind a write, if that would be found after a crash (``wait_whole``)."""
        return self.version >= WHOLE_VERSION

    @property
    def syncs(self) -> bool:
        """Whether what it has answered for is on disk."""
        return self.appendfsync == "always" and not self.pauses

    def reachable(self, level: str) -> bool:
        """Whether an append can be confirmed to have reached this level of durability here."""
        on_disk = self.syncs or (self.aof and self.waitaof)
        return level == "log" or (on_disk and (level == "fsync" or self.replicas > 0))

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of durability that can be reached here, least first."""
        return tuple(level for level in LEVELS if self.reachable(level))

    @property
    def danger(self) -> str | None:
        """Why this store could lose the log without a word, and the command that mends it; None when it could not."""
        if self.aof and self.whole and self.eviction in ("noeviction", "unknown"):
            return None
        if self.aof and not self.whole:
            return (
                "writes its append-only file for the first time, and until that has ended it would come back from a "
                "crash without the log. Wait for it (INFO persistence: aof_rewrite_in_progress, "
                "aof_last_bgrewrite_status)"
            )
        if not self.aof:
            return (
                "keeps no append-only file, so the log would be lost when it stops. "
                "Mend it with: CONFIG SET appendonly yes (and appendonly yes in its configuration file)"
            )
        return (
            f"has the eviction policy {self.eviction} and would drop the log when memory is short. "
            "Mend it with: CONFIG SET maxmemory-policy noeviction (and in its configuration file)"
        )

    def check_safe(self) -> None:
        """StoreUnavailable when the store could lose the log: what it would be told is not durable."""
        if self.danger is not None:
            raise StoreUnavailable(f"nothing was appended: the store {self.danger}", retry_after=5.0)

    @property
    def warning(self) -> str | None:
        """What may be lost here, in a sentence; None when an event that was answered for stays."""
        if self.danger is not None:
            return f"nothing is learned: the store {self.danger}"
        if self.appendfsync is None:
            return "the store does not tell its appendfsync policy, so it is not known what a crash of it may lose"
        if self.syncs:
            return None
        if self.appendfsync == "always":
            return (
                "events that are learned while the store saves or rewrites its file may be lost if its machine dies "
                "(it syncs nothing meanwhile: no-appendfsync-on-rewrite); "
                "CONFIG SET no-appendfsync-on-rewrite no keeps them"
            )
        most = "up to 2 s of" if self.appendfsync == "everysec" else "the last"
        return (
            f"{most} events may be lost if the store's process or machine dies (appendfsync {self.appendfsync}); "
            "CONFIG SET appendfsync always keeps them"
        )

    def check_level(self, level: str) -> None:
        """InvalidInstance (field ``durability``) when the level is unknown or cannot be reached here."""
        if level not in LEVELS:
            raise InvalidInstance("durability must be log, fsync or replica", "durability")
        if self.reachable(level):
            return
        if level == "replica" and self.replicas == 0:
            raise InvalidInstance("the store has no connected replica, so replica cannot be reached", "durability")
        raise InvalidInstance(
            "the store cannot confirm that an event is on disk: that takes CONFIG SET appendfsync always with "
            "CONFIG SET no-appendfsync-on-rewrite no, or Redis 8.0 or later with an append-only file",
            "durability",
        )


def wait_whole() -> tuple[str | int, ...]:
    """The command behind a write that says whether it would be found after a crash: 1 as the first of two numbers.

    For a server that syncs whatever it answers for, and has the command (``Facts.tells_whole``).
    """
    return ("WAITAOF", 1, 0, int(WHOLE_SECONDS * 1000))


def settings_of(reply: Reply) -> dict[str, str]:
    """What a CONFIG GET over a link answered; empty when the server does not tell."""
    if not isinstance(reply, list):
        return {}
    texts = [text.decode() for text in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def is_at_rest(persistence: Reply) -> bool:
    """Whether a server has an append-only file, and is not writing it anew: what INFO answered over a link."""
    return isinstance(persistence, bytes) and all(
        field in persistence
        for field in (b"\naof_enabled:1", b"\naof_rewrite_in_progress:0", b"\naof_rewrite_scheduled:0")
    )


def always_synced(settings: dict[str, str]) -> bool:
    """Whether a server with these settings syncs whatever it answers for."""
    return settings.get("appendfsync") == "always" and settings.get("no-appendfsync-on-rewrite") == "no"


def facts_of(server: Reply, persistence: Reply, memory: Reply, replication: Reply, config: Reply) -> Facts:
    """From the sections of INFO, and what CONFIG GET answered: of a client, where it was anything."""
    settings = config if isinstance(config, dict) else {}
    appendfsync = settings.get("appendfsync")
    aof, rewriting, base_bytes = (
        sum(int(persistence.get(name, 0)) for name in names)
        for names in (("aof_enabled",), ("aof_rewrite_in_progress", "aof_rewrite_scheduled"), ("aof_base_size",))
    )
    return Facts(
        version=_version(server),
        aof=bool(aof),
        appendfsync=appendfsync if aof else None,
        eviction=str(memory.get("maxmemory_policy", "unknown")),
        replicas=int(replication.get("connected_slaves", 0)),
        waitaof=_waitaof_holds(server),
        run=str(server.get("run_id", "")),
        rewriting=bool(rewriting),
        whole=not (aof and rewriting and not base_bytes),
        pauses=appendfsync == "always" and not always_synced(settings),
        tells=bool(settings),
    )


def _version(server: Reply) -> tuple[int, int]:
    numbers = re.findall(r"\d+", str(server.get("redis_version", "0.0")))[:2]
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0


def _waitaof_holds(server: Reply) -> bool:
    """Whether a server's WAITAOF means what it says. Valkey gives a version of Redis as well, and its own."""
    is_valkey = server.get("server_name") == "valkey" or "valkey_version" in server
    return not is_valkey and _version(server) >= WAITAOF_VERSION
