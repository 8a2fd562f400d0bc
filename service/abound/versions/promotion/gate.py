"""Promotion gate: activates a better challenger, and rolls back its own promotions.

The rule is in ``abound_core/promotion_rule.py``. The gate never undoes an activation that it did not make. A version
that an operator deactivates leaves the contest.
"""

from __future__ import annotations

import asyncio

import structlog

from abound.store.lease import Lease
from abound.versions import activation
from abound.versions.activation import ActivationContext
from abound.versions.promotion.standings import Standings, save
from abound_core.errors import AboundError
from abound_core.model.active_version import LIVE, ServingState
from abound_core.promotion_rule import Decision, GateParams
from abound_core.types import Offset

log = structlog.get_logger(__name__)

QUIET_SECONDS = 30.0  # after a failed activation

GATE = "gate: "  # prefix of the reason of an activation by the gate

DONE = "done at "  # prefix of the outcome of a decision whose activation was read back from the log


def reason_of(decision: Decision) -> str:
    said = f"{GATE}{decision.kind}, difference {decision.difference:+.4f} over {decision.n} instances"
    return f"{said} (from {decision.low:+.4f} to {decision.high:+.4f}), evidence {decision.evidence:.4g}"


class Gate:
    def __init__(self, place: ActivationContext, lease: Lease, params: GateParams) -> None:
        self.params = params
        self._place = place
        self._lease = lease
        self._quiet_until = 0.0
        self._due: Offset | None = None

    def fallback(self, standing: Standings, serving: ServingState) -> list[str]:
        """Return the versions that the gate may roll back to; empty unless the gate activated the served version."""
        if serving.is_live or serving.activation != standing.promoted:
            return []
        return list(dict.fromkeys([serving.former, LIVE]))

    async def decide(self, standing: Standings, serving: ServingState, challengers: list[str]) -> None:
        """Activate another version if the rule says so, and wait until that is done."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._quiet_until:
            return
        # The gate's own last activation has not been read back from the log yet.
        if self._due is not None and Offset.parse(standing.offset)[:2] < self._due[:2]:
            return
        promotable = [name for name in challengers if name != serving.version]
        fallback = [name for name in self.fallback(standing, serving) if name not in standing.trouble]
        decision = standing.contest.decide(self.params, promotable, fallback)
        if decision is None:
            return
        # Saved first, so that the decision is reported whatever happens next.
        standing.record_decision(standing.offset, decision, "under way")
        await save(self._lease, standing)
        said = reason_of(decision)
        log.info(
            "activating a version by the gate's decision",
            model=self._place.keys.name,
            version=decision.version,
            reason=said,
        )
        try:
            # Fails if the active version has changed. Counts when its ``ActivateEvent`` is read back from the log, not
            # before.
            self._due = await activation.activate(self._place, decision.version, said, if_active=decision.instead_of)
        except AboundError as error:
            log.warning("the gate's decision could not be carried out", model=self._place.keys.name, reason=str(error))
            standing.record_decision(standing.offset, decision, f"failed: {error}")
            self._quiet_until = loop.time() + QUIET_SECONDS

    def on_activated(self, standing: Standings, serving: ServingState, reason: str) -> bool:
        """Record an activation read from the log; return whether the gate made it.

        An activation is the gate's if its version and reason are those of a recorded decision that is not done
        yet. The prefix of the reason proves nothing, since any caller can give any reason.
        """
        for one in standing.decisions:
            decided = (one.decision.version, reason_of(one.decision))
            if decided == (serving.version, reason) and not one.outcome.startswith(DONE):
                standing.promoted = "" if serving.is_live else serving.activation
                standing.record_decision(one.offset, one.decision, f"{DONE}{serving.at}")
                standing.promotions += one.decision.kind == "promote"
                standing.rollbacks += one.decision.kind == "roll back"
                return True
        standing.promoted = ""
        return False
