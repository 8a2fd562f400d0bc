"""The gate: lets a contender take over, and takes back what it let through, by the rule of
``core/comparison/sequential_test.py``.

 1. the decision is kept with the standing, so that it is told whatever happens next
 2. the version is activated as anybody would do it, if what was served then still is
 3. it counts when its ``Activate`` comes back from the log, and not before

What somebody else activated is never undone by the gate; and what somebody else took out of service contends no more.
"""

from __future__ import annotations

import asyncio

import structlog

from abound.core.comparison.sequential_test import Decision, GateParams
from abound.core.errors import AboundError
from abound.core.model.active_version import LIVE, Serving
from abound.core.types import Offset
from abound.service.store.lease import Lease, LeaseLost
from abound.service.tasks import end
from abound.service.versions import activation
from abound.service.versions.activation import Place
from abound.service.versions.promotion.standings import Standing, keep

log = structlog.get_logger(__name__)

QUIET_SECONDS = 30.0
"""After an activation that failed, before the next is tried."""

GATE = "gate: "
"""How the reason of an activation by the gate begins."""

DONE = "done at "
"""How the outcome of a decision begins that came back from the log."""


def reason_of(decision: Decision) -> str:
    """The reason of the activation that carries a decision out."""
    said = f"{GATE}{decision.kind}, difference {decision.difference:+.4f} over {decision.n} instances"
    return f"{said} (from {decision.low:+.4f} to {decision.high:+.4f}), evidence {decision.evidence:.4g}"


class Gate:
    """The gate of one model.

    Parameters
    ----------
    place : Place
        Where versions are activated.
    lease : Lease
        Of the contest.
    """

    def __init__(self, place: Place, lease: Lease, params: GateParams) -> None:
        self.params = params
        self._place = place
        self._lease = lease
        self._activating: asyncio.Task[None] | None = None
        self._quiet_until = 0.0
        self._due: Offset | None = None

    def fallback(self, standing: Standing, serving: Serving) -> list[str]:
        """What may come back in place of what is served: only the gate's own doing is undone by it."""
        if serving.is_live or serving.activation != standing.promoted:
            return []
        return list(dict.fromkeys([serving.former, LIVE]))

    async def decide(self, standing: Standing, serving: Serving, contenders: list[str]) -> None:
        """Let another version take over if the rule says so. LeaseLost, StoreUnavailable."""
        if self._activating is not None and self._activating.done():
            done, self._activating = self._activating, None
            done.result()
        if self._activating is not None or asyncio.get_running_loop().time() < self._quiet_until:
            return
        # What was activated is not served here until it comes back from the log.
        if self._due is not None and Offset.parse(standing.offset)[:2] < self._due[:2]:
            return
        promotable = [name for name in contenders if name != serving.version]
        fallback = [name for name in self.fallback(standing, serving) if name not in standing.trouble]
        decision = standing.contest.decide(self.params, promotable, fallback)
        if decision is not None:
            standing.decided(standing.offset, decision, "under way")
            await keep(self._lease, standing)
            self._activating = asyncio.create_task(self._carry_out(standing, standing.offset, decision))

    async def _carry_out(self, standing: Standing, at: str, decision: Decision) -> None:
        said = reason_of(decision)
        log.info("the gate decides", model=self._place.keys.name, version=decision.version, reason=said)
        try:
            await self._lease.check()
            self._due = await activation.activate(self._place, decision.version, said, if_active=decision.instead_of)
        except LeaseLost:
            return
        except AboundError as error:
            log.warning("what the gate decided could not be done", model=self._place.keys.name, reason=str(error))
            standing.decided(at, decision, f"failed: {error}")
            self._quiet_until = asyncio.get_running_loop().time() + QUIET_SECONDS

    def activated(self, standing: Standing, serving: Serving, reason: str) -> bool:
        """Take notice of an activation in the log; whether it was the gate's: decided by it, and not done yet.

        Anybody can give any reason, so how one begins says nothing.
        """
        for one in standing.decisions:
            decided = (one.decision.version, reason_of(one.decision))
            if decided == (serving.version, reason) and not one.outcome.startswith(DONE):
                standing.promoted = "" if serving.is_live else serving.activation
                standing.decided(one.offset, one.decision, f"{DONE}{serving.at}")
                standing.promotions += one.decision.kind == "promote"
                standing.rollbacks += one.decision.kind == "roll back"
                return True
        standing.promoted = ""
        return False

    async def close(self) -> None:
        """End what is under way: it may or may not have been done."""
        if self._activating is not None:
            await end(self._activating)
