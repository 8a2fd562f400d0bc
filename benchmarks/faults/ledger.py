"""The ledger: everything since the beginning, history and log, learned anew, beside what clients were told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.log.catalog import DEFAULT_MODEL, read_catalog
from abound.log.events import LearnEvent
from abound.log.stream import Element, trim_of
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store
from abound_core.instances.record import iterate
from abound_core.limits import Limits
from abound_core.types import START, Offset
from benchmarks.faults.clients import Acknowledged


class Learned(NamedTuple):
    """What came of an event when the log was applied."""

    offset: str
    rank: int | None
    updated: bool


class LostTail(NamedTuple):
    """A failover: entries past ``last`` that were acknowledged below the level ``replica`` may be gone.

    Attributes
    ----------
    last : str
        Id of the newest entry that the promoted store had.
    at : float
        Seconds since the epoch when it could be reached.
    """

    last: str
    at: float

    def excuses(self, one: Acknowledged) -> bool:
        """Whether an event may be missing because of this."""
        return (
            one.level != "replica"
            and one.began < self.at
            and Offset.parse(one.offset)[:2] > Offset.of_entry(self.last.encode())[:2]
        )


@dataclass
class Findings:
    """What the log gives, beside what was acknowledged; the lists are empty when every promise was kept.

    Attributes
    ----------
    lost : list of str
        Acknowledged, and not in the log.
    twice : list of str
        Learned more often than once.
    otherwise : list of str
        Learned with another offset, rank or change than what the client was told.
    entries, in_history : int
        Entries that were applied, and how many of them had left the log for history.
    learned, repeated : int
        Events learned; requests that came again and were passed over.
    excused : int
        Acknowledged below ``replica``, and gone with the tail that a failover lost.
    digest : str
        Of the state that comes out.
    """

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)
    entries: int = 0
    in_history: int = 0
    learned: int = 0
    repeated: int = 0
    excused: int = 0
    digest: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing was lost, doubled or told wrong."""
        return not (self.lost or self.twice or self.otherwise)


async def examine(
    url: str, told: dict[str, Acknowledged], tails: list[LostTail], artifacts_url: str | None = None
) -> Findings:
    """Apply everything since the beginning, history and log, in this process, and compare."""
    store = Store(url)
    artifacts = ArtifactStore(artifacts_url) if artifacts_url is not None else None
    try:
        if artifacts is not None:
            await artifacts.join(store)
        living = (await read_catalog(store)).get(DEFAULT_MODEL)
        assert living is not None
        findings = Findings()
        learned: dict[str, list[Learned]] = {}
        model = ReplicatedModel(living.keys, living.config, 1024, Limits())
        async for some in full_log.read_entries(store, artifacts, living.keys, START):
            for element in some:
                await _apply(model, element, learned, findings)
        findings.in_history = (await trim_of(store, living.keys.log)).n_entries
        findings.digest = str(await model.compute_digest())
    finally:
        await store.close()
    findings.learned = model.live.n_learned
    findings.twice = [f"{label}: {times}" for label, times in learned.items() if len(times) > 1]
    for label, one in told.items():
        came = learned.get(label)
        if came is None:
            if any(tail.excuses(one) for tail in tails):
                findings.excused += 1
            else:
                findings.lost.append(f"{label}: {one}")
        elif (one.offset, one.rank, one.updated) != came[0] and not any(tail.excuses(one) for tail in tails):
            findings.otherwise.append(f"{label}: told {one}, came {came}")
    if sum(map(len, learned.values())) != findings.learned:
        findings.twice.append(f"{findings.learned} events were learned, of {len(learned)}")
    return findings


async def _apply(
    model: ReplicatedModel, element: Element, learned: dict[str, list[Learned]], findings: Findings
) -> None:
    applied = await model.apply(element)
    findings.entries += 1
    event, applying = applied.entry.event, applied.applying
    if type(event) is not LearnEvent or applying is None:
        return
    records = (record.labels for record in iterate(event.records, event.n_records))  # none of forgotten requests
    at = 0
    for unit, outcome in zip(event.units, applying.outcomes, strict=True):
        for position in range(at, at + unit.n):
            labels = [] if unit.emptied else next(records)
            if outcome is None and labels:
                offset = Offset(applied.offset.milliseconds, applied.offset.sequence, position)
                rank = int(applying.ranks[position]) or None
                own = labels[min(1, len(labels) - 1)]
                learned.setdefault(own, []).append(Learned(str(offset), rank, bool(applying.updated[position])))
        findings.repeated += outcome is not None
        at += unit.n


def examine_now(
    url: str, told: dict[str, Acknowledged], tails: list[LostTail], artifacts_url: str | None = None
) -> Findings:
    """``examine`` for a program that is not asynchronous."""
    return asyncio.run(examine(url, told, tails, artifacts_url))
