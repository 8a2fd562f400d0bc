"""Requests to append: drafts of learn requests, the groups that share a log entry, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from abound.log.events import ControlEvent, LearnEvent
from abound.processes.tracing import AppendSpans
from abound.store.server_info import LEVELS
from abound_core.errors import InvalidInstance
from abound_core.model.entry_application import EntryApplication, Unit
from abound_core.model.receipts import BodyMismatch
from abound_core.types import Offset


class LearnDraft(msgspec.Struct, frozen=True, gc=False):
    """One checked and vectorized learn request: an instance, or a batch that is learned as a whole or not at
    all.

    Attributes
    ----------
    records : bytes
        ``n`` records (vector + labels part), concatenated.
    n : int
    key : str or None
        Idempotency key.
    body : bytes
        Hash of the request's body; required with a key.
    source : str or None
    batch : int
        Number of drafts, from this one on, that are learned all or none. Set in the first draft of a batch.
    predictions : tuple of str
        Ids of the remembered instances among the records.
    """

    records: bytes
    n: int
    key: str | None = None
    body: bytes = b""
    source: str | None = None
    batch: int = 1
    predictions: tuple[str, ...] = ()


class LearnOutcome(msgspec.Struct, frozen=True, gc=False):
    """The result of a draft.

    Attributes
    ----------
    offset : Offset
        Of its first instance; the others follow position by position.
    n : int
    ranks : list of int, or None
        Rank of the best true label before learning, from 1; 0 if none was retrieved. None if not applied in
        time.
    updated : list of bool, or None
        Whether the index changed.
    applied : bool
    durability : ``log`` | ``fsync`` | ``replica``
        The level of the service if it was reached, else the highest lower level that was.
    is_of_another_body : bool
        The key was used before with another body; nothing was learned.
    """

    offset: Offset
    n: int
    ranks: list[int] | None
    updated: list[bool] | None
    applied: bool
    durability: str
    is_of_another_body: bool = False

    @property
    def refused(self) -> InvalidInstance | None:
        """The reason why nothing was learned, or None.

        A new exception on each access: a raised exception keeps references to the frames that it passed
        through.
        """
        if not self.is_of_another_body:
            return None
        return InvalidInstance("this idempotency key came before with another body", "key")


class PendingRequest(msgspec.Struct, gc=False):
    """A pending request, from the queue through its group to its end.

    Attributes
    ----------
    future : Future
    wait : bool
        Whether the request waits until it is applied. A request that does not wait never gets the result,
        even if it happens to be known: the answer depends only on the request.
    deadline : float
        In the event loop's clock.
    drafts : sequence of LearnDraft
    n, n_bytes : int
        Number of instances and bytes of all drafts.
    event : ControlEvent or None
        A control event instead of drafts.
    first, first_unit : int
        Indexes of its first instance and its first draft in the group.
    spans : AppendSpans or None
        If requests are traced.
    """

    future: asyncio.Future[Any]
    wait: bool
    deadline: float
    drafts: Sequence[LearnDraft]
    n: int
    n_bytes: int
    event: ControlEvent | None = None
    first: int = 0
    first_unit: int = 0
    spans: AppendSpans | None = None

    def result_in(self, group: AppendGroup, reached: int) -> Offset | list[LearnOutcome]:
        """Return the answer to the request, once its group is in the log."""
        entry, applied, first = group.entry, group.applied if self.wait else None, self.first
        if entry is None:
            raise AssertionError("a result was requested of a group that is not in the log")
        if self.event is not None:
            return entry
        durability = LEVELS[reached]
        milliseconds, sequence, _ = entry
        learned = []
        for at, draft in enumerate(self.drafts, self.first_unit):
            n = draft.n
            offset = Offset(milliseconds, sequence, first)
            if applied is None:
                learned.append(LearnOutcome(offset, n, None, None, False, durability))
            elif (outcome := applied.outcomes[at]) is None:
                ranks, updated = group.ranks[first : first + n], group.updated[first : first + n]
                learned.append(LearnOutcome(offset, n, ranks, updated, True, durability))
            elif isinstance(outcome, BodyMismatch):
                learned.append(LearnOutcome(offset, n, None, None, True, durability, is_of_another_body=True))
            else:
                came = Offset(*outcome.offset)
                learned.append(LearnOutcome(came, n, outcome.ranks, outcome.updated, True, durability))
            first += n
        return learned


class AppendGroup:
    """The requests that share one log entry, from the append until all of them have ended.

    Attributes
    ----------
    sequence : int
    waiting : list of PendingRequest
        The requests that have not ended.
    patient : bool
        Whether all of them wait until they are applied.
    entry : Offset or None
        Offset of the entry, once known.
    reached : int or None
        Durability confirmed by the store, as an index into ``LEVELS``.
    lost : bool
        Whether the connection was lost before the store answered.
    is_read : bool
        Whether the follower has applied the entry; ``applied``, ``ranks`` and ``updated`` then hold the
        outcome.
    """

    __slots__ = ("applied", "entry", "is_read", "lost", "patient", "ranks", "reached", "sequence", "updated", "waiting")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.waiting: list[PendingRequest] = []
        self.entry: Offset | None = None
        self.reached: int | None = None
        self.lost = False
        self.patient = True
        self.is_read = False
        self.applied: EntryApplication | None = None
        self.ranks: list[int] = []
        self.updated: list[bool] = []

    def begin_apply_spans(self) -> None:
        """End the spans ``append`` of the requests that are traced, and begin the spans ``apply``."""
        for waiting in self.waiting:
            if waiting.spans is not None and waiting.wait:
                waiting.spans.appended()

    def event(self) -> LearnEvent | ControlEvent:
        """Return the event of the group's entry."""
        event = self.waiting[0].event
        if event is not None:
            return event
        drafts = [draft for waiting in self.waiting for draft in waiting.drafts]
        units = [Unit(draft.n, draft.key, draft.body, draft.source, draft.batch) for draft in drafts]
        return LearnEvent(b"".join([draft.records for draft in drafts]), sum([draft.n for draft in drafts]), units)
