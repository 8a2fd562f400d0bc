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
    """One checked and vectorized learn request: an instance, or a batch that is learned as a whole or not at all."""

    records: bytes  # ``n`` records (vector + labels part), concatenated
    n: int
    key: str | None = None  # idempotency key
    body: bytes = b""  # hash of the request's body; required with a key
    source: str | None = None
    batch: int = 1  # drafts, from this one on, that are learned all or none; set in the first one of a batch
    predictions: tuple[str, ...] = ()  # ids of the remembered instances among the records


class LearnOutcome(msgspec.Struct, frozen=True, gc=False):
    offset: Offset  # of its first instance; the others follow position by position
    n: int
    # Of the best true label before learning, from 1; 0: none retrieved; None: not applied in time.
    ranks: list[int] | None
    updated: list[bool] | None  # whether the index changed
    applied: bool
    durability: str  # the level of the service if it was reached, else the highest lower level that was
    is_of_another_body: bool = False  # the key was used before with another body; nothing was learned

    @property
    def refused(self) -> InvalidInstance | None:
        """Why nothing was learned.

        A new exception each time: a raised one keeps references to the frames that it passed.
        """
        if not self.is_of_another_body:
            return None
        return InvalidInstance("this idempotency key came before with another body", "key")


class PendingRequest(msgspec.Struct, gc=False):
    """A request, from the queue through its group to its end."""

    future: asyncio.Future[Any]
    # Whether the request waits until it is applied. If not, it never gets the result, even if that happens to be known:
    # the answer depends only on the request.
    wait: bool
    deadline: float  # in the event loop's clock
    drafts: Sequence[LearnDraft]
    n: int  # instances of all drafts
    n_bytes: int
    event: ControlEvent | None = None  # instead of drafts
    first: int = 0  # index of its first instance in the group
    first_unit: int = 0  # index of its first draft in the group
    spans: AppendSpans | None = None  # if requests are traced
    refused_since: float = 0.0  # when a closed log refused it first

    def result_in(self, group: AppendGroup, reached: int) -> Offset | list[LearnOutcome]:
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
    """The requests that share one log entry, from the append until all of them have ended."""

    __slots__ = ("applied", "entry", "is_read", "lost", "patient", "ranks", "reached", "sequence", "updated", "waiting")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.waiting: list[PendingRequest] = []
        self.entry: Offset | None = None
        self.reached: int | None = None  # durability confirmed by the store, as an index into ``LEVELS``
        self.lost = False  # the connection, before the store answered
        self.patient = True  # all of them wait until they are applied
        self.is_read = False  # the follower has applied the entry, with this outcome:
        self.applied: EntryApplication | None = None
        self.ranks: list[int] = []
        self.updated: list[bool] = []

    def begin_apply_spans(self) -> None:
        for waiting in self.waiting:
            if waiting.spans is not None and waiting.wait:
                waiting.spans.appended()

    def event(self) -> LearnEvent | ControlEvent:
        event = self.waiting[0].event
        if event is not None:
            return event
        drafts = [draft for waiting in self.waiting for draft in waiting.drafts]
        units = [Unit(draft.n, draft.key, draft.body, draft.source, draft.batch) for draft in drafts]
        return LearnEvent(b"".join([draft.records for draft in drafts]), sum([draft.n for draft in drafts]), units)
