"""Server info: what a store reports about itself, and the durability that it can promise."""

from __future__ import annotations

import re
from typing import NamedTuple

from abound.store.raw_connection import Reply
from abound_core.errors import StoreUnavailable

WAITAOF_VERSION = (8, 0)
"""First Redis version whose WAITAOF confirms an fsync. Redis 7.4, and Valkey so far, report events that are written
and not yet synced, for up to a second, unless every command is synced (redis/redis#13793).
"""

WAITAOF_COMMAND_VERSION = (7, 2)

FSYNC_SETTINGS = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
"""Settings with which a server syncs every write before it replies."""

FSYNC_PATTERN = "*appendfsync*"
"""Pattern for both settings (Redis before 7 accepts only one). A single name is twenty times as fast."""

FSYNC_QUERIES = tuple(("CONFIG", "GET", name) for name in FSYNC_SETTINGS)

FULL = "the store is full (maxmemory). Give it more memory: CONFIG SET maxmemory (and in its configuration file)"

LEVELS = ("log", "fsync", "replica")  # of durability, weakest first


class ServerInfo(NamedTuple):
    """Settings and state that the store reports about itself.

    Attributes
    ----------
    version
        Its Redis version, which identifies the protocol.
    waitaof
        It has WAITAOF, and the reply is reliable.
    rewriting
        It is rewriting its append-only file, or is about to.
    aof_complete
        False only while the store writes its first append-only file; a crash before that file is complete loses
        everything appended. Checked at the start only: later rewrites replace a complete file.
    pauses
        It does not sync during a save or a rewrite, whatever ``appendfsync`` is, or does not report that it does
        (``no-appendfsync-on-rewrite``).
    full
        It holds as much as ``maxmemory`` allows, and refuses to append.
    """

    version: tuple[int, int]
    aof: bool
    appendfsync: str | None  # None when it is not reported
    eviction: str
    replicas: int
    waitaof: bool = False
    rewriting: bool = False
    aof_complete: bool = True
    pauses: bool = False
    full: bool = False

    @property
    def syncs_writes(self) -> bool:
        return self.appendfsync == "always" and not self.pauses

    @property
    def confirms_fsync(self) -> bool:
        """Return whether an acknowledged write would outlive a crash, whatever file the server is writing."""
        return self.syncs_writes and not self.rewriting

    def reachable(self, level: str) -> bool:
        on_disk = self.syncs_writes or (self.aof and self.waitaof)
        return level == "log" or (on_disk and (level == "fsync" or self.replicas > 0))

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(level for level in LEVELS if self.reachable(level))

    @property
    def danger(self) -> str | None:
        """Return why this store could lose the log silently, and how to fix it; None when it is safe."""
        if self.aof and self.eviction in ("noeviction", "unknown"):
            return None
        if not self.aof:
            return (
                "keeps no append-only file, so the log would be lost when it stops. "
                "Fix it with: CONFIG SET appendonly yes (and appendonly yes in its configuration file)"
            )
        return (
            f"has the eviction policy {self.eviction} and would drop the log when memory is short. "
            "Fix it with: CONFIG SET maxmemory-policy noeviction (and in its configuration file)"
        )

    @property
    def refusal(self) -> str | None:
        """Return why nothing is learned, and how to fix it; None while the store takes events."""
        if self.danger is not None:
            return f"the store {self.danger}"
        return FULL if self.full else None

    def check_safe(self) -> None:
        """Raise StoreUnavailable when the store could lose the log, since appended events would not be durable."""
        if self.danger is not None:
            raise StoreUnavailable(f"nothing was appended: the store {self.danger}", retry_after=5.0)

    @property
    def warning(self) -> str | None:
        """Return what this store may lose, as a sentence; None when acknowledged events are safe."""
        if self.refusal is not None:
            return f"nothing is learned: {self.refusal}"
        if self.appendfsync is None:
            return "the store does not report its appendfsync policy, so it is unknown what its crash may lose"
        if self.syncs_writes:
            return None
        if self.appendfsync == "always":
            return (
                "events learned while the store saves or rewrites its file may be lost if its machine dies "
                "(it syncs nothing meanwhile: no-appendfsync-on-rewrite); "
                "CONFIG SET no-appendfsync-on-rewrite no keeps them"
            )
        most = "up to 2 s of" if self.appendfsync == "everysec" else "the last"
        return (
            f"{most} events may be lost if the store's process or machine dies (appendfsync {self.appendfsync}); "
            "CONFIG SET appendfsync always keeps them"
        )

    def lacks(self, level: str) -> str | None:
        """Return why this store cannot confirm the level; None if it can."""
        if level == "log" or self.reachable(level):
            return None
        if level == "replica" and self.replicas == 0:
            return "the store has no connected replica, so replica cannot be reached"
        return (
            "the store cannot confirm that an event is on disk: that takes CONFIG SET appendfsync always with "
            "CONFIG SET no-appendfsync-on-rewrite no, or Redis 8.0 or later with an append-only file"
        )


CLOSED = "exhausted the last possible ID"
"""In the reply to XADD of a stream that is closed (``abound/log/closing.py``)."""


def refusal_of(error: Exception) -> str:
    return FULL if "used memory > 'maxmemory'" in str(error) else f"the store refused: {error}"


def parse_config(reply: Reply) -> dict[str, str]:
    """Return the reply to a CONFIG GET as a dict; empty when the server refused."""
    if not isinstance(reply, list):
        return {}
    texts = [text.decode() for text in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def syncs_every_write(settings: dict[str, str]) -> bool:
    return FSYNC_SETTINGS.items() <= settings.items()


def build_server_info(
    server: Reply, persistence: Reply, memory: Reply, replication: Reply, config: Reply
) -> ServerInfo:
    """Build the server info from sections of INFO and the reply to CONFIG GET, both as the client returns them."""
    settings = config if isinstance(config, dict) else {}
    appendfsync = settings.get("appendfsync")
    aof, rewriting, base_bytes = (
        sum(int(persistence.get(name, 0)) for name in names)
        for names in (("aof_enabled",), ("aof_rewrite_in_progress", "aof_rewrite_scheduled"), ("aof_base_size",))
    )
    # Buffers of copies and of the append-only file do not count.
    used = int(memory.get("used_memory", 0)) - int(memory.get("mem_not_counted_for_evict", 0))
    return ServerInfo(
        version=_version(server),
        aof=bool(aof),
        appendfsync=appendfsync if aof else None,
        eviction=str(memory.get("maxmemory_policy", "unknown")),
        replicas=int(replication.get("connected_slaves", 0)),
        waitaof=_waitaof_holds(server),
        rewriting=bool(rewriting),
        aof_complete=not (aof and rewriting and not base_bytes),
        pauses=appendfsync == "always" and not syncs_every_write(settings),
        full=0 < int(memory.get("maxmemory", 0)) <= used,
    )


def _version(server: Reply) -> tuple[int, int]:
    numbers = re.findall(r"\d+", str(server.get("redis_version", "0.0")))[:2]
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0


def _waitaof_holds(server: Reply) -> bool:
    """Return whether a server's WAITAOF is reliable. Valkey reports a Redis version beside its own."""
    is_valkey = server.get("server_name") == "valkey" or "valkey_version" in server
    return not is_valkey and _version(server) >= WAITAOF_VERSION
