"""Appending events to a model's log: concurrent requests share one entry, one round trip and one fsync.

An **append group** is the requests of one entry. Each model has one queue of requests, and appends one group at a
time. A request ends when it is durable and, unless it does not wait for that, applied. A client that disconnects
does not change its group, and the other requests of the group are unaffected.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from abound.log.append_group import AppendGroup, LearnDraft, LearnOutcome, PendingRequest
from abound.log.events import APPLY_VERSION, ControlEvent, Entry, encode
from abound.log.stream import LogParams, xadd
from abound.metrics import DurationCounter
from abound.processes.tracing import Tracing
from abound.store.client import Store, store_errors
from abound.store.durability import Words, confirmation_commands, confirmed_level
from abound.store.key_names import ModelKeys
from abound.store.lease import refuses_closed
from abound.store.raw_connection import ConnectionLost, Reply, pack_command
from abound.store.reconnecting_connection import ReconnectingConnection
from abound.store.server_info import CLOSED, LEVELS, ServerInfo, refusal_of
from abound.tasks import cancel_and_wait
from abound_core.errors import NotReady, OutcomeUnknown, Overloaded, StoreUnavailable, TooLarge
from abound_core.model.entry_application import EntryApplication
from abound_core.types import Offset

SWEEP_SECONDS = 0.05

CLOSED_RETRY_SECONDS = 0.02
CLOSED_SECONDS = 2.0
"""How long a request waits while the log is closed, because the model is being replaced."""

RETIRE_SECONDS = 15.0


async def append_event(store: Store, keys: ModelKeys, event: ControlEvent) -> Offset:
    """Append a control event to a model's log, from any process; return its offset."""
    payload, checksum = encode(Entry(APPLY_VERSION, secrets.token_bytes(8), 1, event))
    with refuses_closed(keys), store_errors():
        return Offset.of_entry(await store.client.xadd(keys.log, {"e": payload, "c": checksum}))


class Appender:
    """Appends events to the log of one model and returns the outcome to each request.

    ``connection`` is shared by all models, ``sequences`` by all appenders of the process, whose id is ``origin``. A
    level of ``durability`` above ``log`` needs ``own_connection``: this model appends over it, so that waiting for the
    store holds up no other model. It is opened on first use.
    """

    def __init__(
        self,
        key: bytes,
        origin: bytes,
        sequences: Iterator[int],
        connection: ReconnectingConnection,
        own_connection: ReconnectingConnection | None,
        durability: str,
        params: LogParams,
        reply_seconds: float,
        log_bytes: Callable[[], int],
        tracing: Tracing | None = None,
    ) -> None:
        self.key = key
        self.params = params
        self.reply_seconds = reply_seconds
        self._origin = origin
        self._sequences = sequences
        self._log_bytes = log_bytes
        self.tracing = tracing
        self.timer = DurationCounter()
        self._shared = connection
        self._connection = own_connection or connection
        self._durability = durability
        self._level = LEVELS.index(durability)
        self._queue: deque[PendingRequest] = deque()
        self._busy = False
        self._alone = False
        self._groups: dict[int, AppendGroup] = {}
        self._n_waiting = 0
        self._n_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._successor: Appender | None = None

    @property
    def waiting(self) -> tuple[int, int]:
        return self._n_waiting, self._n_bytes  # unanswered requests, and their bytes

    def learn(self, drafts: Sequence[LearnDraft], wait: bool, timeout: float) -> asyncio.Future[list[LearnOutcome]]:
        """Append drafts. The future returns one ``LearnOutcome`` for each of them, once they are durable.

        With ``wait``, and always for a draft with a key, it returns when they are applied here.

        Raises (immediately; nothing is appended)
        ------
        StoreUnavailable
            The store is unreachable, cannot confirm the durability of the service, or was changed so that it could
            lose the log.
        TooLarge
            The request is over ``request_bytes``.
        Overloaded
            Too much is waiting already, or the log is full.
        """
        lack = self._server_info().lacks(self._durability)
        if lack is not None:
            raise StoreUnavailable(
                f"nothing was appended: ABOUND_DURABILITY is {self._durability}, but {lack}", retry_after=5.0
            )
        if len(drafts) == 1:
            [draft] = drafts
            n, n_bytes, has_key = draft.n, len(draft.records), draft.key is not None
        else:
            n, n_bytes = sum([draft.n for draft in drafts]), sum([len(draft.records) for draft in drafts])
            has_key = any(draft.key is not None for draft in drafts)
        if n_bytes > self.params.request_bytes:
            raise TooLarge(
                f"the request takes {n_bytes} bytes in the log, over the limit of {self.params.request_bytes}; "
                "send it in smaller batches or raise ABOUND_LOG_REQUEST_BYTES"
            )
        if self._log_bytes() + n_bytes > self.params.max_log_bytes:
            raise Overloaded(
                f"the log of this model holds its limit of {self.params.max_log_bytes} bytes; "
                "a worker with an artifact store trims it (see /readyz), "
                "or raise ABOUND_LOG_MAX_LOG_BYTES if the store has the memory",
                retry_after=60.0,
            )
        loop = self._loop
        future: asyncio.Future[list[LearnOutcome]] = loop.create_future()
        waiting = PendingRequest(future, wait or has_key, loop.time() + timeout, drafts, n, n_bytes)
        self._admit(waiting)
        if self.tracing is not None:
            waiting.spans = self.tracing.append()
            future.add_done_callback(waiting.spans.end)
        self._put(waiting)
        return future

    def event(self, event: ControlEvent, timeout: float) -> asyncio.Future[Offset]:
        """Append a control event.

        The future returns its offset once it is applied here. Raise what ``learn`` raises.
        """
        self._server_info()
        future: asyncio.Future[Offset] = self._loop.create_future()
        waiting = PendingRequest(future, True, self._loop.time() + timeout, (), 0, 0, event)
        self._admit(waiting)
        self._put(waiting)
        return future

    def on_applied(self, entry: Entry, last: Offset, applied: EntryApplication | None) -> None:
        """Accept an entry that the follower applied, up to ``last``. ``applied`` is None for a control event."""
        # An entry of this process is recognized by its origin and sequence.
        group = self._groups.get(entry.sequence) if entry.origin == self._origin else None
        if group is None:
            return
        group.entry = Offset(last.milliseconds, last.sequence, 0)
        group.is_read = True
        if applied is not None:
            group.applied = applied
            group.ranks = applied.ranks.tolist()
            group.updated = applied.updated.tolist()
        self._settle(group)

    async def stop(self, reason: str) -> None:
        """End every request: unsent ones are refused, the outcome of the others is unknown."""
        self._refuse_all(reason)
        for group in list(self._groups.values()):
            self._fail_group(group, OutcomeUnknown(f"{reason} before the store answered"))
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._opening is not None:
            await cancel_and_wait(self._opening)
        if self._connection is not self._shared:
            await self._connection.stop()

    def move_to(self, successor: Appender) -> None:
        """Send everything that the closed log refuses to another one: that of the incarnation that is served now."""
        self._successor = successor
        self._move_queue()

    async def retire(self) -> None:
        """Stop once the requests that were sent have ended. The log is closed, so no further one is appended."""
        until = self._loop.time() + RETIRE_SECONDS
        while self._groups and self._loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(SWEEP_SECONDS)
        await self.stop("the model was replaced")

    # one group at a time

    def _put(self, waiting: PendingRequest) -> None:
        """Queue a request. It is sent together with all others that arrive before the event loop's next turn."""
        self._queue.append(waiting)
        if self._busy:
            return
        self._busy = True
        # After a group of a single request there are no others to wait for.
        if self._alone:
            self._send()
        else:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Append the waiting requests as one entry, or become idle if there are none."""
        raw, info = self._connection.raw, self._connection.info
        if raw is None or info is None:
            self._busy = False
            if self._connection is self._shared or self._shared.raw is None:
                self._refuse_all("the store is unreachable")
            elif self._opening is None or self._opening.done():
                self._opening = self._loop.create_task(self._open())
            return
        if self._shared.info is not None and self._shared.info.rewriting:  # the info of the own one may be older
            info = info._replace(rewriting=True)
        # The requests that have arrived meanwhile become the next group.
        group = self._take()
        if group is None:
            self._busy = False
            return
        self._alone = len(group.waiting) == 1
        began = self._loop.time()
        command = self._command(group)
        timeout, wait_seconds = self.reply_seconds, self.params.wait_store_seconds
        commands = confirmation_commands(info, self._level, wait_seconds)
        replies: list[Reply] = []

        def collect(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) > len(commands):
                self._answered(group, replies, info, commands, began)

        # What confirms the level of the service follows the XADD in the same write.
        if commands:
            timeout += wait_seconds
            command += b"".join([pack_command(words) for words in commands])
        raw.send(command, collect, timeout, 1 + len(commands))

    async def _open(self) -> None:
        self._connection.start()
        await self._connection.wait_open()
        if not self._busy and self._queue:
            self._busy = True
            self._send()

    def _answered(
        self, group: AppendGroup, replies: list[Reply], info: ServerInfo, commands: Sequence[Words], began: float
    ) -> None:
        reply, *confirmations = replies
        if isinstance(reply, bytes):
            self.timer.observe(self._loop.time() - began)
            group.entry = Offset.of_entry(reply)
            # Every second the connection asks its server whether it would keep the log. If not, the events are in the
            # log but may get lost.
            danger = self._connection.info.danger if self._connection.info is not None else None
            if danger is None:
                group.reached = confirmed_level(info, commands, confirmations)
                if self.tracing is not None:
                    group.begin_apply_spans()
                self._settle(group)
            else:
                lost = OutcomeUnknown(f"the event is in the log but may get lost: the store {danger}")
                self._fail_group(group, lost)
        elif isinstance(reply, ConnectionLost):
            # It is never sent again. The follower may still find it in the log; else it ends at its deadline.
            group.lost = True
            self._settle(group)
        elif reply is None:
            self._fail_group(group, StoreUnavailable("the store has lost the log; nothing was appended"))
        elif CLOSED in str(reply):
            self._wait_open(group)
            return
        else:
            if str(reply).startswith("READONLY") and self._connection.raw is not None:
                # After a failover, a new connection to the same address reaches the new primary.
                self._connection.raw.close()
            self._fail_group(group, StoreUnavailable(f"nothing was appended: {refusal_of(reply)}"))
        # The next group goes out.
        self._send()

    def _wait_open(self, group: AppendGroup) -> None:
        """Send the requests of a group again a little later: the log is closed while the model is being replaced."""
        self._groups.pop(group.sequence, None)
        now = self._loop.time()
        for waiting in reversed(group.waiting):
            waiting.refused_since = waiting.refused_since or now
            if waiting.future.done():
                self._uncount(waiting)
            elif now - waiting.refused_since > CLOSED_SECONDS:
                self._end(waiting, NotReady("the model is being replaced; nothing was learned, send it again"))
            else:
                self._queue.appendleft(waiting)
        if self._successor is not None:
            self._busy = False
            self._move_queue()
        else:
            self._loop.call_later(CLOSED_RETRY_SECONDS, self._send)

    def _move_queue(self) -> None:
        successor = self._successor
        if successor is not None:
            while self._queue:
                waiting = self._queue.popleft()
                self._uncount(waiting)
                successor.take_over(waiting)

    def take_over(self, waiting: PendingRequest) -> None:
        """Append a request of another appender. Its bounds were checked there."""
        self._count(waiting)
        self._put(waiting)

    def _take(self) -> AppendGroup | None:
        """Return the next group: requests up to the bounds, or one control event; None if nothing waits."""
        queue = self._queue
        group: AppendGroup | None = None
        n = n_bytes = n_units = 0
        most_events, most_bytes = self.params.group_events, self.params.group_bytes
        while queue:
            waiting = queue.popleft()
            if waiting.future.done():
                self._uncount(waiting)
                continue
            if group is not None and (
                waiting.event is not None or n + waiting.n > most_events or n_bytes + waiting.n_bytes > most_bytes
            ):
                queue.appendleft(waiting)
                break
            if group is None:
                group = AppendGroup(next(self._sequences))
                self._groups[group.sequence] = group
            waiting.first, waiting.first_unit = n, n_units
            n += waiting.n
            n_bytes += waiting.n_bytes
            n_units += len(waiting.drafts)
            group.waiting.append(waiting)
            if not waiting.wait:
                group.patient = False
            if waiting.event is not None:
                break
        return group

    def _command(self, group: AppendGroup) -> bytes:
        entry = Entry(APPLY_VERSION, self._origin, group.sequence, group.event())
        # A log that once had an entry is never created again. If it is missing, the store was emptied, and a new log
        # would belong to no model.
        return xadd(self.key, *encode(entry), begun=self._log_bytes() > 0)

    def _settle(self, group: AppendGroup) -> None:
        """End the requests of a group that have everything they wait for."""
        reached = group.reached
        if reached is None:
            # After a lost reply: the follower has found the entry, and the store keeps its log.
            if not (group.lost and group.is_read and self._is_safe()):
                return
            reached = 0
        is_read = group.is_read
        if group.patient and not is_read:
            return
        left = []
        for waiting in group.waiting:
            future = waiting.future
            if not future.done():
                if not is_read and waiting.wait:
                    left.append(waiting)
                    continue
                future.set_result(waiting.result_in(group, reached))
            self._uncount(waiting)
        group.waiting = left
        if not left:
            self._groups.pop(group.sequence, None)

    def _fail_group(self, group: AppendGroup, error: Exception) -> None:
        self._groups.pop(group.sequence, None)
        for waiting in group.waiting:
            self._end(waiting, error)
        group.waiting = []

    def _refuse_all(self, reason: str) -> None:
        while self._queue:
            self._end(self._queue.popleft(), StoreUnavailable(f"{reason}; nothing was appended"))

    # bounds and deadlines

    def _server_info(self) -> ServerInfo:
        info = self._shared.info
        if self._shared.raw is None or info is None:
            raise StoreUnavailable("the store is unreachable; nothing was appended")
        info.check_safe()
        return info

    def _is_safe(self) -> bool:
        info = self._shared.info
        return self._shared.raw is not None and info is not None and info.danger is None

    def _admit(self, waiting: PendingRequest) -> None:
        params = self.params
        if self._n_waiting >= params.waiting_requests or (
            self._n_waiting and self._n_bytes + waiting.n_bytes > params.waiting_bytes
        ):
            raise Overloaded("too many events wait to be appended; try again later")
        self._count(waiting)

    def _count(self, waiting: PendingRequest) -> None:
        self._n_waiting += 1
        self._n_bytes += waiting.n_bytes
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _uncount(self, waiting: PendingRequest) -> None:
        self._n_waiting -= 1
        self._n_bytes -= waiting.n_bytes

    def _end(self, waiting: PendingRequest, error: Exception) -> None:
        if not waiting.future.done():
            waiting.future.set_exception(error)
        self._uncount(waiting)

    def _sweep(self) -> None:
        """End the requests whose deadline has passed, each according to how far it got."""
        self._sweeper = None
        now = self._loop.time()
        for waiting in [waiting for waiting in self._queue if waiting.deadline < now]:
            self._queue.remove(waiting)
            self._end(waiting, Overloaded("the event could not be appended in time; nothing was appended"))
        for group in list(self._groups.values()):
            if group.lost:  # the store may have become safe again, or been replaced
                self._settle(group)
            if any(waiting.deadline < now for waiting in group.waiting):
                self._end_late(group, now)
        if self._n_waiting:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _end_late(self, group: AppendGroup, now: float) -> None:
        left = []
        for waiting in group.waiting:
            if waiting.deadline >= now:
                left.append(waiting)
            elif group.entry is None or group.reached is None:
                self._end(waiting, OutcomeUnknown("the store did not answer in time; the event may be in the log"))
            elif waiting.event is not None:
                self._end(waiting, NotReady("the change is in the log, but this replica has not applied it yet"))
            elif any(draft.key is not None for draft in waiting.drafts):
                self._end(waiting, OutcomeUnknown("the event is in the log, but was not applied in time"))
            else:
                if not waiting.future.done():
                    waiting.future.set_result(waiting.result_in(group, group.reached))
                self._uncount(waiting)
        group.waiting = left
        if not left:
            self._groups.pop(group.sequence, None)
