"""Appending: requests that come at the same time share one entry, one round trip and one fsync.

**group**: the requests of one entry. **lane**: a queue and a line to the store, on which one group at a time is
under way. Each model has a fast lane and a careful one, for those who ask to know more than that the store has the
event in its log, so that their wait is nobody else's.

    1. a request waits in its lane, bounded by bytes and by number; what is over the bounds is refused (Overloaded)
    2. when no append is under way, what waits (bounded again) becomes a group and goes out as one XADD, on the
       careful lane with WAITAOF and WAIT right behind it, before anything is answered
    3. the replies say that the group is durable, and how much so; the next group goes out
    4. the follower meets the entry in the log, knows it by its origin and sequence, and hands over what came of it
    5. a request ends when it is durable and, unless it asked for less, applied

A group whose reply is lost is never sent again. If the follower meets it all the same, it is in the log and its
requests end well; otherwise they end as :class:`OutcomeUnknown` when their time is over. A client that goes away
leaves its group alone: the other requests in it do not notice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from core.applying import Applying, Unit
from core.errors import InvalidInstance, NotReady, OutcomeUnknown, Overloaded, StoreUnavailable
from core.receipts import AnotherBody
from core.types import Offset
from service.ending import end
from service.events import APPLY_VERSION, Configure, Entry, Learn, Mark, encode
from service.line import Line
from service.link import LinkLost, Reply, packed
from service.log import LogParams, xadd
from service.store import LEVELS, WAITAOF_VERSION, Facts

SWEEP_SECONDS = 0.05


class Draft(msgspec.Struct, frozen=True, gc=False):
    """One request to learn, checked and vectorized: an instance, or a batch that is learned whole or not at all.

    Attributes
    ----------
    records : bytes
        ``n`` records (vector + labels part), one after the other.
    n : int
    key : str or None
        Idempotency key.
    body : bytes
        Hash of the request's body; needed with a key.
    source : str or None
    """

    records: bytes
    n: int
    key: str | None = None
    body: bytes = b""
    source: str | None = None


class Learned(msgspec.Struct, frozen=True):
    """What came of a draft.

    Attributes
    ----------
    offset : Offset
        Of its first instance; the others follow it position by position.
    n : int
    ranks : list of int, or None
        Rank of the best true label before learning, from 1; 0 when not retrieved. None when not applied in time.
    updated : list of bool, or None
        Whether the index changed.
    applied : bool
    durability : ``log`` | ``fsync`` | ``replica``
        The level that was asked for if it was reached, else the highest below it that was.
    refused : InvalidInstance or None
        Its key came before with another body; nothing was learned.
    """

    offset: Offset
    n: int
    ranks: list[int] | None
    updated: list[bool] | None
    applied: bool
    durability: str
    refused: InvalidInstance | None = None


class Waiting(msgspec.Struct):
    """A request on its way: from its lane, through a group, to its end.

    Attributes
    ----------
    future : Future
    level : int
        Durability asked for, as a place in ``LEVELS``.
    wait : bool
        Until it is applied.
    deadline : float
        Of the event loop's clock.
    drafts : sequence of Draft
    n, n_bytes : int
        Instances and bytes of all drafts.
    event : Configure, Mark or None
        In the place of drafts.
    first, first_unit : int
        Places of its first instance and its first draft in the group.
    """

    future: asyncio.Future[Any]
    level: int
    wait: bool
    deadline: float
    drafts: Sequence[Draft]
    n: int
    n_bytes: int
    event: Configure | Mark | None = None
    first: int = 0
    first_unit: int = 0

    def result(self, group: Group, reached: int) -> Offset | list[Learned]:
        """What the request is told, once its group is in the log."""
        entry, applied = group.entry, group.applied
        if entry is None:
            raise AssertionError("a group ends in the log or not at all")
        if self.event is not None:
            return entry
        durability = LEVELS[min(self.level, reached)]
        learned = []
        first = self.first
        for at, draft in enumerate(self.drafts, self.first_unit):
            n = draft.n
            offset = Offset(entry[0], entry[1], first)
            outcome = applied.outcomes[at] if applied is not None else None
            if applied is None:
                learned.append(Learned(offset, n, None, None, False, durability))
            elif outcome is None:
                ranks, updated = group.ranks[first : first + n], group.updated[first : first + n]
                learned.append(Learned(offset, n, ranks, updated, True, durability))
            elif isinstance(outcome, AnotherBody):
                refused = InvalidInstance("this idempotency key came before with another body", "key")
                learned.append(Learned(offset, n, None, None, True, durability, refused))
            else:
                came = Offset(*outcome.offset)
                learned.append(Learned(came, n, outcome.ranks, outcome.updated, True, durability))
            first += n
        return learned


class Group:
    """The requests of one entry, from the append until all of them have ended.

    Attributes
    ----------
    sequence : int
    waiting : list of Waiting
        Those that have not ended.
    patient : bool
        All of them wait until they are applied.
    entry : Offset or None
        Where it is, once that is known.
    reached : int or None
        Durability that the store has confirmed, as a place in ``LEVELS``.
    lost : bool
        The connection went before the store had answered.
    sighted : bool
        The follower has applied it; ``applied``, ``ranks`` and ``updated`` say what came of it.
    """

    __slots__ = ("applied", "entry", "lost", "patient", "ranks", "reached", "sequence", "sighted", "updated", "waiting")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.waiting: list[Waiting] = []
        self.entry: Offset | None = None
        self.reached: int | None = None
        self.lost = False
        self.patient = True
        self.sighted = False
        self.applied: Applying | None = None
        self.ranks: list[int] = []
        self.updated: list[bool] = []


class Lane:
    """A queue of requests, of which one group at a time is being appended over one line."""

    def __init__(self, appender: Appender, line: Line, careful: bool) -> None:
        self.queue: deque[Waiting] = deque()
        self.line = line
        self._appender = appender
        self._careful = careful
        self._busy = False
        self._loop = asyncio.get_running_loop()

    def put(self, waiting: Waiting) -> None:
        """Queue a request. It goes out with all others that come before the event loop's next turn."""
        self.queue.append(waiting)
        if not self._busy:
            self._busy = True
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
        payload, checksum = self._appender.encode(group)
        command = xadd(self._appender.key, payload, checksum)
        timeout = self._appender.reply_seconds
        if not self._careful:
            link.send(command, lambda reply: self._answered(group, reply, int(facts.appendfsync == "always")), timeout)
            return
        waits = _waits(facts, max(waiting.level for waiting in group.waiting), self._appender.params)
        replies: list[Reply] = []

        def collect(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) == 1 + len(waits):
                self._answered(group, replies[0], _reached(facts, waits, replies[1:]))

        link.send(command, collect, timeout)
        for wait in waits:
            link.send(packed(wait), collect, timeout + self._appender.params.wait_store_seconds)

    def _answered(self, group: Group, reply: Reply, reached: int) -> None:
        if isinstance(reply, bytes):
            group.entry = Offset.of_entry(reply)
            group.reached = reached
            self._appender.settle(group)
        elif isinstance(reply, LinkLost):
            group.lost = True
            self._appender.settle(group)
        else:
            self._appender.fail(group, StoreUnavailable(f"the store refused to append: {reply}"))
        self._send()

    async def open(self) -> None:
        """Open the line if it is not, and go on with what waits."""
        self.line.start()
        await self.line.opened()
        if not self._busy and self.queue:
            self._busy = True
            self._send()


class Appender:
    """Appends events to the log of one model and tells each request what came of it.

    Parameters
    ----------
    key : bytes
        Of the model's stream.
    origin : bytes
        Of this process.
    sequences : iterator of int
        Shared by all appenders of the process.
    line, careful_line : Line
        The first is shared by all models; the second is this model's own and opened when it is first needed.
    log_bytes : callable
        Size of the log now.
    """

    def __init__(
        self,
        key: bytes,
        origin: bytes,
        sequences: Iterator[int],
        line: Line,
        careful_line: Line,
        params: LogParams,
        reply_seconds: float,
        log_bytes: Callable[[], int],
    ) -> None:
        self.key = key
        self.params = params
        self.reply_seconds = reply_seconds
        self._origin = origin
        self._sequences = sequences
        self._log_bytes = log_bytes
        self._fast = Lane(self, line, careful=False)
        self._careful = Lane(self, careful_line, careful=True)
        self._groups: dict[int, Group] = {}
        self._n_waiting = 0
        self._n_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the store can be reached for appending."""
        return self._fast.line.link is not None

    def learn(self, drafts: Sequence[Draft], level: str, wait: bool, timeout: float) -> asyncio.Future[list[Learned]]:
        """Append drafts; the future has a ``Learned`` for each of them.

        Raises (at once, nothing is appended)
        ------
        StoreUnavailable
            The store is away.
        Overloaded
            Too much waits already, or the log is full.
        InvalidInstance
            The store cannot confirm this level of durability.
        """
        facts = self._facts()
        if level != "log":
            facts.check_level(level)
        if len(drafts) == 1:
            n, n_bytes = drafts[0].n, len(drafts[0].records)
        else:
            n, n_bytes = sum([draft.n for draft in drafts]), sum([len(draft.records) for draft in drafts])
        if self._log_bytes() + n_bytes > self.params.max_log_bytes:
            raise Overloaded(
                f"the log of this model holds its limit of {self.params.max_log_bytes} bytes; "
                "raise ABOUND_LOG_MAX_LOG_BYTES if the store has the memory",
                retry_after=60.0,
            )
        loop = self._loop
        future: asyncio.Future[list[Learned]] = loop.create_future()
        waiting = Waiting(future, LEVELS.index(level), wait, loop.time() + timeout, drafts, n, n_bytes)
        self._admit(waiting)
        if level == "log" or (level == "fsync" and facts.appendfsync == "always"):
            self._fast.put(waiting)
            return future
        if self._careful.line.link is None and (self._opening is None or self._opening.done()):
            self._opening = loop.create_task(self._careful.open())
        self._careful.put(waiting)
        return future

    def event(self, event: Configure | Mark, timeout: float) -> asyncio.Future[Offset]:
        """Append a control event; the future has its offset once it is applied here. Raises what ``learn`` does."""
        self._facts()
        future: asyncio.Future[Offset] = self._loop.create_future()
        waiting = Waiting(future, 0, True, self._loop.time() + timeout, (), 0, 0, event)
        self._admit(waiting)
        self._fast.put(waiting)
        return future

    def sighted(self, sequence: int, entry: Offset, applied: Applying | None) -> None:
        """The follower met and applied an entry of this process. ``applied``: None for a control event."""
        group = self._groups.get(sequence)
        if group is None:
            return
        group.entry = entry
        group.sighted = True
        if applied is not None:
            group.applied = applied
            group.ranks = applied.ranks.tolist()
            group.updated = applied.updated.tolist()
        self.settle(group)

    async def stop(self, reason: str) -> None:
        """End every request: what was not sent is refused, the outcome of the rest is unknown."""
        for lane in (self._fast, self._careful):
            self.refuse(lane.queue, reason)
        for group in list(self._groups.values()):
            self.fail(group, OutcomeUnknown(f"{reason} before the store had answered"))
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._opening is not None:
            await end(self._opening)
        await self._careful.line.stop()

    # what the lanes call

    def take(self, queue: deque[Waiting]) -> Group | None:
        """The next group of a queue: requests up to the bounds, or one control event; None when nothing waits."""
        group: Group | None = None
        n = n_bytes = n_units = 0
        while queue:
            waiting = queue[0]
            if waiting.future.done():
                self._leave(queue.popleft())
                continue
            if group is not None and (
                waiting.event is not None
                or n + waiting.n > self.params.group_events
                or n_bytes + waiting.n_bytes > self.params.group_bytes
            ):
                break
            queue.popleft()
            if group is None:
                group = Group(next(self._sequences))
                self._groups[group.sequence] = group
            waiting.first, waiting.first_unit = n, n_units
            n += waiting.n
            n_bytes += waiting.n_bytes
            n_units += len(waiting.drafts)
            group.waiting.append(waiting)
            group.patient = group.patient and waiting.wait
            if waiting.event is not None:
                break
        return group

    def encode(self, group: Group) -> tuple[bytes, bytes]:
        """The payload and checksum of a group's entry."""
        event: Learn | Configure | Mark | None = group.waiting[0].event
        if event is None:
            drafts = [draft for waiting in group.waiting for draft in waiting.drafts]
            units = [Unit(draft.n, draft.key, draft.body, draft.source) for draft in drafts]
            n = sum([draft.n for draft in drafts])
            event = Learn(b"".join([draft.records for draft in drafts]), n, units)
        return encode(Entry(APPLY_VERSION, self._origin, group.sequence, event))

    def settle(self, group: Group) -> None:
        """End the requests of a group that have what they wait for."""
        reached = group.reached
        if reached is None:
            if not (group.lost and group.sighted):
                return
            reached = 0
        if group.patient and not group.sighted:
            return
        left = []
        for waiting in group.waiting:
            if waiting.future.done():
                self._leave(waiting)
            elif group.sighted or not waiting.wait:
                waiting.future.set_result(waiting.result(group, reached))
                self._leave(waiting)
            else:
                left.append(waiting)
        group.waiting = left
        if not left:
            self._groups.pop(group.sequence, None)

    def fail(self, group: Group, error: Exception) -> None:
        """End all requests of a group with an error."""
        self._groups.pop(group.sequence, None)
        for waiting in group.waiting:
            self._end(waiting, error)
        group.waiting = []

    def refuse(self, queue: deque[Waiting], reason: str) -> None:
        """End everything in a queue; nothing of it was sent."""
        while queue:
            self._end(queue.popleft(), StoreUnavailable(f"{reason}; nothing was appended"))

    # bounds and deadlines

    def _facts(self) -> Facts:
        line = self._fast.line
        if line.link is None or line.facts is None:
            raise StoreUnavailable("the store is away; nothing was appended")
        return line.facts

    def _admit(self, waiting: Waiting) -> None:
        params = self.params
        if self._n_waiting >= params.waiting_requests or (
            self._n_waiting and self._n_bytes + waiting.n_bytes > params.waiting_bytes
        ):
            raise Overloaded("too many events wait to be appended")
        self._n_waiting += 1
        self._n_bytes += waiting.n_bytes
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _leave(self, waiting: Waiting) -> None:
        self._n_waiting -= 1
        self._n_bytes -= waiting.n_bytes

    def _end(self, waiting: Waiting, error: Exception) -> None:
        if not waiting.future.done():
            waiting.future.set_exception(error)
        self._leave(waiting)

    def _sweep(self) -> None:
        """End the requests whose time is over, each according to how far it got."""
        self._sweeper = None
        now = self._loop.time()
        for lane in (self._fast, self._careful):
            late = [waiting for waiting in lane.queue if waiting.deadline < now]
            for waiting in late:
                lane.queue.remove(waiting)
                self._end(waiting, Overloaded("the event could not be appended in time; nothing was appended"))
        for group in list(self._groups.values()):
            if any(waiting.deadline < now for waiting in group.waiting):
                self._end_late(group, now)
        if self._n_waiting:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _end_late(self, group: Group, now: float) -> None:
        left = []
        for waiting in group.waiting:
            if waiting.deadline >= now:
                left.append(waiting)
            elif group.entry is None:
                self._end(waiting, OutcomeUnknown("the store did not answer; the event may or may not be in the log"))
            elif waiting.event is not None:
                self._end(waiting, NotReady("the change is in the log; this replica has not come to it yet"))
            elif any(draft.key is not None for draft in waiting.drafts):
                self._end(waiting, OutcomeUnknown("the event is in the log but was not applied in time"))
            else:
                if not waiting.future.done():
                    waiting.future.set_result(waiting.result(group, group.reached or 0))
                self._leave(waiting)
        group.waiting = left
        if not left:
            self._groups.pop(group.sequence, None)


def _waits(facts: Facts, level: int, params: LogParams) -> list[tuple[str | int, ...]]:
    """The commands behind an XADD that wait until it is on disk (if its reply does not say so) and on a replica."""
    milliseconds = int(params.wait_store_seconds * 1000)
    waits: list[tuple[str | int, ...]] = []
    if facts.appendfsync != "always" and facts.version >= WAITAOF_VERSION:
        waits.append(("WAITAOF", 1, 0, milliseconds))
    if LEVELS[level] == "replica":
        waits.append(("WAIT", 1, milliseconds))
    return waits


def _reached(facts: Facts, waits: list[tuple[str | int, ...]], replies: list[Reply]) -> int:
    """The level of durability that the replies of the waits confirm."""
    on_disk, copied = facts.appendfsync == "always", False
    for (name, *_), reply in zip(waits, replies, strict=True):
        if name == "WAITAOF" and isinstance(reply, list):
            on_disk = reply[0] >= 1
        elif name == "WAIT" and isinstance(reply, int):
            copied = reply >= 1
    return (2 if copied else 1) if on_disk else 0
