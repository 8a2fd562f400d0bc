"""Standings of a contest: its persisted state, and the form in which the API returns it.

    ...:standings    JSON of ``Standings``; swapped under the lease ``challengers`` (``abound/store/lease.py``)

The standings name the offset up to which instances are counted, so a worker that continues from them counts no
instance twice. They hold only numbers, no instance data, and their size is bounded.
"""

from __future__ import annotations

from typing import Any

import msgspec

from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import Lease
from abound_core.errors import Corrupted
from abound_core.model.active_version import LIVE
from abound_core.promotion_rule import Contest, Decision, GateParams
from abound_core.types import START

FORMAT = 1
MAX_DECISIONS = 20

PURPOSE = "challengers"  # of the lease


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    offset: str
    decision: Decision
    outcome: str


class Standings(msgspec.Struct, kw_only=True):
    """Persisted state of a contest."""

    format: int = FORMAT
    offset: str = str(START)  # everything up to here is counted
    since: str = str(START)  # where counting began
    contest: Contest
    promoted: str = ""  # activation by which the gate made the served version active; empty if it did not
    decisions: list[DecisionRecord] = msgspec.field(default_factory=list)
    promotions: int = 0
    rollbacks: int = 0
    gaps: int = 0  # times that instances were skipped, because no snapshot at or before ``offset`` was left
    trouble: dict[str, str] = msgspec.field(default_factory=dict)  # versions that cannot be scored, with the reason

    def record_decision(self, offset: str, decision: Decision, outcome: str) -> None:
        """Record a decision, or a new outcome of a recorded one."""
        noted = DecisionRecord(offset=offset, decision=decision, outcome=outcome)
        before = [one for one in self.decisions if (one.offset, one.decision) != (offset, decision)]
        self.decisions = [*before, noted][-MAX_DECISIONS:]


_decoder = msgspec.json.Decoder(Standings)


async def read(store: Store, keys: ModelKeys) -> Standings | None:
    """Return the standings; None if the contest was never followed. Raises Corrupted if another release wrote them."""
    with store_errors():
        packed = await store.client.get(keys.key("standings"))
    if packed is None:
        return None
    try:
        standing = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupted(f"the standings of the contest of {keys.name} cannot be read: {error}") from None
    if standing.format != FORMAT:
        raise Corrupted(f"the standings of the contest of {keys.name} have the unknown format {standing.format}")
    return standing


async def save(lease: Lease, standing: Standings, saved: bytes = b"") -> bytes:
    """Write the standings unless they equal ``saved``, and return them packed.

    Raises LeaseLost when another worker follows the model.
    """
    packed = msgspec.json.encode(standing)
    if packed != saved:
        await lease.swap([("SET", lease.keys.key("standings"), packed)])
    return packed


async def drop(lease: Lease) -> None:
    await lease.swap([("DEL", lease.keys.key("standings"))])


def to_public(standing: Standings, gate: GateParams) -> dict[str, Any]:
    """Return the contest as the API shows it: see ``ContestShape`` in ``abound/api/schemas/challengers.py``."""
    contest = standing.contest
    names = sorted(contest.scores, key=lambda name: (name != LIVE, name))
    return {
        "served": contest.served,
        "offset": standing.offset,
        "since": standing.since,
        "gate": {"alpha": gate.alpha, "min_events": gate.min_events, "needed": gate.needed},
        "gaps": standing.gaps,
        "versions": [_public_form(standing, name, gate) for name in names],
        "decisions": [
            {"offset": one.offset, "outcome": one.outcome, **msgspec.structs.asdict(one.decision)}
            for one in standing.decisions
        ],
        "promotions": standing.promotions,
        "rollbacks": standing.rollbacks,
        "trouble": standing.trouble,
    }


def _public_form(standing: Standings, name: str, gate: GateParams) -> dict[str, Any]:
    contest = standing.contest
    score = contest.scores[name]
    one = contest.comparisons.get(name)
    difference, decision = None, "served" if name == contest.served else "waits"
    if one is not None and one.n:
        low, high = one.interval(contest.alpha)
        difference = {"n": one.n, "mean": one.mean, "low": low, "high": high, "evidence": one.evidence}
        better = one.evidence >= gate.needed
        decision = (
            "too few" if one.n < gate.min_events else "better" if better else "worse" if high < 0.0 else "undecided"
        )
    return {
        "version": name,
        **score.all.measures(),
        "window": score.window.measures(),
        "difference": difference,
        "decision": decision,
    }
