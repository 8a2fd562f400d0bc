"""Requests to learn on their way into the log: drafts, the groups that they travel in, and what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from abound.core.errors import InvalidInstance
from abound.core.model.apply import Applying, Unit
from abound.core.model.receipts import AnotherBody
from abound.core.types import Offset
from abound.service.log.events import Control, Learn
from abound.service.store.server_info import LEVELS


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
    batch : int
        Drafts from this one on that are learned whole or not at all: said by the first.
    """

    records: bytes
    n: int
    key: str | None = None
    body: bytes = b""
    source: str | None = None
    batch: int = 1


class Learned(msgspec.Struct, frozen=True, gc=False):
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
    is_of_another_body : bool
        Its key came before with another body; nothing was learned.
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
        """Why nothing was learned. Made when asked for: one that was raised holds the frames that it came through."""
        if not self.is_of_another_body:
            return None
        return InvalidInstance("this idempotency key came before with another body", "key")


class Waiting(msgspec.Struct, gc=False):
    """A request on its way: from its lane, through a group, to its end.

    Attributes
    ----------
    future : Future
    level : int
        Durability asked for, as a place in ``LEVELS``.
    wait : bool
        Until it is applied. Who does not wait is never told what came of it, also when that is known by chance: the
        answer to a request depends on the request.
    deadline : float
        Of the event loop's clock.
    drafts : sequence of Draft
    n, n_bytes : int
        Instances and bytes of all drafts.
    event : Control or None
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
    event: Control | None = None
    first: int = 0
    first_unit: int = 0

    def result(self, group: Group, reached: int) -> Offset | list[Learned]:
        """What the request is told, once its group is in the log."""
        entry, applied, first = group.entry, group.applied if self.wait else None, self.first
        if entry is None:
            raise AssertionError("a group ends in the log or not at all")
        if self.event is not None:
            return entry
        durability = LEVELS[min(self.level, reached)]
        milliseconds, sequence, _ = entry
        learned = []
        for at, draft in enumerate(self.drafts, self.first_unit):
            n = draft.n
            offset = Offset(milliseconds, sequence, first)
            if applied is None:
                learned.append(Learned(offset, n, None, None, False, durability))
            elif (outcome := applied.outcomes[at]) is None:
                ranks, updated = group.ranks[first : first + n], group.updated[first : first + n]
                learned.append(Learned(offset, n, ranks, updated, True, durability))
            elif isinstance(outcome, AnotherBody):
                learned.append(Learned(offset, n, None, None, True, durability, is_of_another_body=True))
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

    def event(self) -> Learn | Control:
        """What its entry says."""
        event = self.waiting[0].event
        if event is not None:
            return event
        drafts = [draft for waiting in self.waiting for draft in waiting.drafts]
        units = [Unit(draft.n, draft.key, draft.body, draft.source, draft.batch) for draft in drafts]
        return Learn(b"".join([draft.records for draft in drafts]), sum([draft.n for draft in drafts]), units)
