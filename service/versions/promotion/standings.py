"""The standing of a model's contenders: all that is kept of their contest, and what is told of it.

    ...:contending    JSON of ``Standing``; swapped under the lease ``contending`` (``service/store/lease.py``)

It names the offset up to which instances are counted, so whoever goes on from it counts none of them twice. It has
numbers only, nothing of an instance, and is bounded whatever comes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from abound.core.comparison.blend import Weighing
from abound.core.comparison.sequential_test import Contest, Decision, GateParams
from abound.core.errors import Damaged
from abound.core.model.active_version import BLEND, LIVE
from abound.core.types import START
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Lease
from abound.service.versions.promotion.drift import Drift

FORMAT = 1
DECISIONS = 20

PURPOSE = "contending"
"""Of the lease."""

NEVER_WEIGHED = -1
"""``weighed`` before any weights were appended."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the gate, where it was taken, and what came of it."""

    offset: str
    decision: Decision
    outcome: str


class Standing(msgspec.Struct, kw_only=True):
    """See the top of this file.

    Attributes
    ----------
    offset : str
        All up to this one is counted.
    since : str
        Where the counting began.
    contest : Contest
    weighing : Weighing
    partner : str or None
        The version that is blended with the index.
    weighed : int
        Instances with the partner (``weighing.since``) when weights were last appended, or about to be.
    promoted : str
        The activation by which the gate brought what is served, empty when somebody else did.
    decisions : list of Decided
        The newest.
    promotions, rollbacks : int
    drift : Drift
    share : float
        Of the instances, how many all versions are asked about; below 1 while it lags.
    passed : int
        Instances that were not asked about.
    gaps : int
        How often instances were passed over because what is needed to go on was gone.
    trouble : dict
        Versions that cannot be scored, and why.
    """

    format: int = FORMAT
    offset: str = str(START)
    since: str = str(START)
    contest: Contest
    weighing: Weighing = msgspec.field(default_factory=Weighing)
    partner: str | None = None
    weighed: int = NEVER_WEIGHED
    promoted: str = ""
    decisions: list[Decided] = msgspec.field(default_factory=list)
    promotions: int = 0
    rollbacks: int = 0
    drift: Drift = msgspec.field(default_factory=Drift)
    share: float = 1.0
    passed: int = 0
    gaps: int = 0
    trouble: dict[str, str] = msgspec.field(default_factory=dict)

    def decided(self, offset: str, decision: Decision, outcome: str) -> None:
        """Note a decision, or another outcome of the last one."""
        noted = Decided(offset=offset, decision=decision, outcome=outcome)
        before = [one for one in self.decisions if (one.offset, one.decision) != (offset, decision)]
        self.decisions = [*before, noted][-DECISIONS:]


_decoder = msgspec.json.Decoder(Standing)


async def read(store: Store, keys: ModelKeys) -> Standing | None:
    """The standing of a model, None when nobody has followed it.

    Raises
    ------
    Damaged
        It cannot be read here: of another release.
    StoreUnavailable
    """
    with reaching():
        packed = await store.client.get(keys.of("contending"))
    if packed is None:
        return None
    try:
        standing = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(f"the standing of the contenders of {keys.name} cannot be read: {error}") from None
    if standing.format != FORMAT:
        raise Damaged(f"the standing of the contenders of {keys.name} has the format {standing.format}")
    return standing


async def keep(lease: Lease, standing: Standing) -> None:
    """Write the standing. LeaseLost when another process follows the model, StoreUnavailable."""
    await lease.swap([("SET", lease.keys.of("contending"), msgspec.json.encode(standing))])


async def drop(lease: Lease) -> None:
    """Take the standing away: nobody contends any more. LeaseLost, StoreUnavailable."""
    await lease.swap([("DEL", lease.keys.of("contending"))])


def told(standing: Standing, gate: GateParams) -> dict[str, Any]:
    """The contest for people: see ``ContestShape`` in ``service/api/schemas/contenders.py``."""
    contest = standing.contest
    order = [LIVE, BLEND]
    names = sorted(contest.scores, key=lambda name: (order.index(name) if name in order else len(order), name))
    return {
        "served": contest.served,
        "offset": standing.offset,
        "since": standing.since,
        "gate": {"alpha": gate.alpha, "min_events": gate.min_events, "needed": gate.needed},
        "share": standing.share,
        "passed": standing.passed,
        "gaps": standing.gaps,
        "versions": [_told_of(standing, name, gate) for name in names],
        "blend": {"version": standing.partner, "weights": list(standing.weighing.weights)},
        "decisions": [
            {"offset": one.offset, "outcome": one.outcome, **msgspec.structs.asdict(one.decision)}
            for one in standing.decisions
        ],
        "promotions": standing.promotions,
        "rollbacks": standing.rollbacks,
        "trouble": standing.trouble,
    }


def _told_of(standing: Standing, name: str, gate: GateParams) -> dict[str, Any]:
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
