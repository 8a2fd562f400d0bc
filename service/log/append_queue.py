"""Append queues: each appends one group of requests at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from abound.core.errors import OutcomeUnknown, StoreUnavailable
from abound.core.types import Offset
from abound.service.log.append_group import AppendGroup, PendingRequest
from abound.service.metrics import DurationCounter
from abound.service.store.connection import ConnectionLost, Reply, pack_command
from abound.service.store.durability import (
    Words,
    check_commands,
    confirmed_level,
    needs_aof_check,
    updated_info,
    wait_commands,
)
from abound.service.store.reconnecting import ReconnectingConnection
from abound.service.store.server_info import AOF_CHECK_SECONDS, ServerInfo, aof_check_command

if TYPE_CHECKING:
    from abound.service.log.appender import Appender


class AppendQueue:
    """A queue of requests, of which one group at a time is appended over one connection."""

    def __init__(self, appender: Appender, line: ReconnectingConnection, careful: bool) -> None:
        self.queue: deque[PendingRequest] = deque()
        self.line = line
        self.timer = DurationCounter()
        self._appender = appender
        self._careful = careful
        self._busy = False
        self._alone = False
        self._loop = asyncio.get_running_loop()

    def put(self, waiting: PendingRequest) -> None:
        """Queue a request. It is sent together with all others that arrive before the event loop's next turn.

        If the previous group held a single request, there are no others to wait for and the request is sent
        at once.
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
        """Append the waiting requests as one entry, or become idle if there are none."""
        link, facts = self.line.connection, self.line.info
        if link is None or facts is None:
            self._busy = False
            if self._careful and self._appender.is_connected:  # the second connection is opened when first needed
                return
            self._appender.refuse_all(self.queue, "the store is unreachable")
            return
        group = self._appender.take(self.queue)
        if group is None:
            self._busy = False
            return
        self._alone = len(group.waiting) == 1
        began = self._loop.time()
        command = self._appender.command(group)
        timeout, wait_seconds = self._appender.reply_seconds, self._appender.params.wait_store_seconds
        level = max([waiting.level for waiting in group.waiting])
        asked, questions = check_commands(facts, level > 0)
        replies: list[Reply] = []
        if not level:
            n = 1 + len(asked)

            def collect_quickly(reply: Reply) -> None:
                replies.append(reply)
                if len(replies) == n:
                    self._answered(group, replies, facts, asked, began)

            link.send(command + questions, collect_quickly, timeout, n)
            return
        waited = wait_commands(facts, level, wait_seconds)
        all_asked = [*asked, *waited]

        def collect(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) <= len(all_asked):
                return
            if needs_aof_check(facts, all_asked, replies[1:]):
                all_asked.append(aof_check_command())
                link.send(pack_command(all_asked[-1]), collect, timeout + AOF_CHECK_SECONDS)
            else:
                self._answered(group, replies, facts, all_asked, began)

        link.send(command + questions, collect, timeout, 1 + len(asked))
        for wait in waited:
            link.send(pack_command(wait), collect, timeout + wait_seconds)

    def _answered(
        self, group: AppendGroup, replies: list[Reply], facts: ServerInfo, asked: Sequence[Words], began: float
    ) -> None:
        reply, *said = replies
        if isinstance(reply, bytes):
            self._appended(group, Offset.of_entry(reply), said, facts, asked, began)
        elif isinstance(reply, ConnectionLost):
            group.lost = True
            self._appender.settle(group)
        elif reply is None:
            self._appender.fail_group(group, StoreUnavailable("the store has lost the log; nothing was appended"))
        else:
            if str(reply).startswith("READONLY") and self.line.connection is not None:
                # After a failover, a new connection to the same address reaches the new primary.
                self.line.connection.close()
            self._appender.fail_group(group, StoreUnavailable(f"the store refused to append: {reply}"))
        self._send()

    def _appended(
        self,
        group: AppendGroup,
        entry: Offset,
        said: list[Reply],
        facts: ServerInfo,
        asked: Sequence[Words],
        began: float,
    ) -> None:
        """Record that the store has the group in its log, and promise only the durability that it confirmed."""
        self.timer.observe(self._loop.time() - began)
        group.entry = entry
        now = updated_info(facts, asked, said)
        if now is None:
            group.lost = True  # the connection was lost after the append, or the store no longer tells
        elif now.danger is None:
            group.reached = confirmed_level(asked, said) if len(asked) > 1 else 0
        else:
            if self.line.info is facts:
                self.line.info = now  # refuses all appends until the store is safe again
            self._appender.fail_group(
                group, OutcomeUnknown(f"the event is in the log but may get lost: the store {now.danger}")
            )
            return
        self._appender.settle(group)

    async def open(self) -> None:
        """Open the connection if it is closed, and continue with the waiting requests."""
        self.line.start()
        await self.line.wait_open()
        if not self._busy and self.queue:
            self._busy = True
            self._send()
