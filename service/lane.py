"""A lane: requests in a row, of which one group at a time is being appended."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import hiredis

from core.errors import StoreUnavailable
from core.types import Offset
from service.facts import LEVELS, WHOLE_SECONDS, Facts, always_synced, is_at_rest, settings_of, wait_whole
from service.group import Group, Waiting
from service.line import Line
from service.link import LinkLost, Reply, packed
from service.log import LogParams
from service.timer import Timer

if TYPE_CHECKING:
    from service.appender import Appender


class Lane:
    """A queue of requests, of which one group at a time is being appended over one line."""

    def __init__(self, appender: Appender, line: Line, careful: bool) -> None:
        self.queue: deque[Waiting] = deque()
        self.line = line
        self.timer = Timer()
        self._appender = appender
        self._careful = careful
        self._busy = False
        self._alone = False
        self._loop = asyncio.get_running_loop()

    def put(self, waiting: Waiting) -> None:
        """Queue a request. It goes out with all others that come before the event loop's next turn.

        Where the request before it went alone there are no others to wait for, and it goes out at once.
        """
        self.queue.append(waiting)
        if self._busy:
            return
        self._busy = True
        if self._alone:
            self._send()
        else:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Append what waits as one entry, or rest."""
        link, facts = self.line.link, self.line.facts
        if link is None or facts is None:
            self._busy = False
            if self._careful and self._appender.is_connected:  # a careful line is opened when it is first needed
                return
            self._appender.refuse(self.queue, "the store is away")
            return
        group = self._appender.take(self.queue)
        if group is None:
            self._busy = False
            return
        self._alone = len(group.waiting) == 1
        began = self._loop.time()
        command = self._appender.command(group)
        timeout = self._appender.reply_seconds
        level = max([waiting.level for waiting in group.waiting])
        waits = _waits(facts, level, self._appender.params) if level else []
        if not waits:
            link.send(command, lambda reply: self._answered(group, reply, 0, began), timeout)
            return
        replies: list[Reply] = []

        def collect(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) <= len(waits):
                return
            if facts.tells_whole and _is_unsettled(waits, replies[1:]):
                waits.append(wait_whole())
                link.send(packed(waits[-1]), collect, timeout + WHOLE_SECONDS)
            else:
                self._answered(group, replies[0], _reached(waits, replies[1:]), began)

        link.send(command, collect, timeout)
        for wait in tuple(waits):
            link.send(packed(wait), collect, timeout + self._appender.params.wait_store_seconds)

    def _answered(self, group: Group, reply: Reply, reached: int, began: float) -> None:
        if isinstance(reply, bytes):
            self.timer.note(self._loop.time() - began)
            group.entry = Offset.of_entry(reply)
            group.reached = reached
            self._appender.settle(group)
        elif isinstance(reply, LinkLost):
            group.lost = True
            self._appender.settle(group)
        elif reply is None:
            self._appender.fail(group, StoreUnavailable("the store has lost the log; nothing was appended"))
        else:
            if str(reply).startswith("READONLY") and self.line.link is not None:
                self.line.link.close()  # a failover: the primary is to be found behind the same address, by a new link
            self._appender.fail(group, StoreUnavailable(f"the store refused to append: {reply}"))
        self._send()

    async def open(self) -> None:
        """Open the line if it is not, and go on with what waits."""
        self.line.start()
        await self.line.opened()
        if not self._busy and self.queue:
            self._busy = True
            self._send()


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


def _waits(facts: Facts, level: int, params: LogParams) -> list[tuple[str | int, ...]]:
    """The commands behind an XADD that say, or wait until, it is on disk, and that wait until it is on a replica."""
    milliseconds = int(params.wait_store_seconds * 1000)
    waits: list[tuple[str | int, ...]] = []
    if facts.syncs:  # it may have been changed since that was known, and not every file counts
        waits += [facts.asks_fsync, ("INFO", "persistence")]
    elif facts.waitaof:
        waits.append(("WAITAOF", 1, 0, milliseconds))
    if LEVELS[level] == "replica":
        waits.append(("WAIT", 1, milliseconds))
    return waits


def _is_unsettled(waits: list[tuple[str | int, ...]], replies: list[Reply]) -> bool:
    """Whether it depends on which file the server is writing, and that was not asked yet.

    That takes a second round trip, and only while the file is written anew. Asked with each append, it would keep the
    reply until the store's next turn, and behind the fsync of whatever came in between.
    """
    said = {wait[0]: reply for wait, reply in zip(waits, replies, strict=True)}
    return (
        "WAITAOF" not in said
        and always_synced(settings_of(said.get("CONFIG")))
        and isinstance(said["INFO"], bytes)
        and not is_at_rest(said["INFO"])
    )


def _reached(waits: list[tuple[str | int, ...]], replies: list[Reply]) -> int:
    """The level of durability that the replies of the waits confirm."""
    on_disk, copied = False, False
    for (name, *_), reply in zip(waits, replies, strict=True):
        if name == "CONFIG":
            on_disk = always_synced(settings_of(reply))
        elif name == "INFO":
            on_disk = on_disk and is_at_rest(reply)
        elif name == "WAITAOF" and isinstance(reply, list):
            on_disk = reply[0] >= 1
        elif name == "WAIT" and isinstance(reply, int):
            copied = reply >= 1
    return (2 if copied else 1) if on_disk else 0
