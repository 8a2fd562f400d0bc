"""A lane: requests in a row, of which one group at a time is being appended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from abound.core.errors import OutcomeUnknown, StoreUnavailable
from abound.core.types import Offset
from abound.service.log.append_group import Group, Waiting
from abound.service.metrics import Timer
from abound.service.store.connection import LinkLost, Reply, packed
from abound.service.store.durability import Words, asks, is_unsettled, reached, seen, waits
from abound.service.store.reconnecting import Line
from abound.service.store.server_info import WHOLE_SECONDS, Facts, wait_whole

if TYPE_CHECKING:
    from abound.service.log.appender import Appender


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
        timeout, wait_seconds = self._appender.reply_seconds, self._appender.params.wait_store_seconds
        level = max([waiting.level for waiting in group.waiting])
        asked, questions = asks(facts, level > 0)
        replies: list[Reply] = []
        if not level:
            n = 1 + len(asked)

            def collect_quickly(reply: Reply) -> None:
                replies.append(reply)
                if len(replies) == n:
                    self._answered(group, replies, facts, asked, began)

            link.send(command + questions, collect_quickly, timeout, n)
            return
        waited = waits(facts, level, wait_seconds)
        all_asked = [*asked, *waited]

        def collect(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) <= len(all_asked):
                return
            if is_unsettled(facts, all_asked, replies[1:]):
                all_asked.append(wait_whole())
                link.send(packed(all_asked[-1]), collect, timeout + WHOLE_SECONDS)
            else:
                self._answered(group, replies, facts, all_asked, began)

        link.send(command + questions, collect, timeout, 1 + len(asked))
        for wait in waited:
            link.send(packed(wait), collect, timeout + wait_seconds)

    def _answered(self, group: Group, replies: list[Reply], facts: Facts, asked: Sequence[Words], began: float) -> None:
        reply, *said = replies
        if isinstance(reply, bytes):
            self._appended(group, Offset.of_entry(reply), said, facts, asked, began)
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

    def _appended(
        self, group: Group, entry: Offset, said: list[Reply], facts: Facts, asked: Sequence[Words], began: float
    ) -> None:
        """The store has a group in its log: promise as much of it as it says."""
        self.timer.note(self._loop.time() - began)
        group.entry = entry
        now = seen(facts, asked, said)
        if now is None:
            group.lost = True  # the connection went behind the append, or the store does not tell any more
        elif now.danger is None:
            group.reached = reached(asked, said) if len(asked) > 1 else 0
        else:
            if self.line.facts is facts:
                self.line.facts = now  # nothing more is appended until it says otherwise
            self._appender.fail(
                group, OutcomeUnknown(f"the event is in the log, and may get lost: the store {now.danger}")
            )
            return
        self._appender.settle(group)

    async def open(self) -> None:
        """Open the line if it is not, and go on with what waits."""
        self.line.start()
        await self.line.opened()
        if not self._busy and self.queue:
            self._busy = True
            self._send()
