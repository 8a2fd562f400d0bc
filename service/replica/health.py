"""How a replica does: in one value, and where that comes from."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

from abound.core.errors import NotReady
from abound.service.replica.follower import Follower
from abound.service.replica.storage_status import Keeping
from abound.service.store.reconnecting import Line

WATCH_SECONDS = 0.25

MOST_TROUBLES = 3
"""Models whose trouble is told at a time."""


class Durability(NamedTuple):
    """What the store promises of an event that it has in its log.

    Attributes
    ----------
    appendfsync : ``always`` | ``everysec`` | ``no``, or None
        None when it does not tell, or keeps no file.
    levels : tuple of str
        The levels that a request can ask for here, least first.
    warning : str or None
        What may be lost, and what mends it.
    """

    appendfsync: str | None
    levels: tuple[str, ...]
    warning: str | None


class Status(NamedTuple):
    """How a replica does.

    Attributes
    ----------
    stage : ``connecting`` | ``loading snapshot of ...`` | ``replaying ...`` | ``warming`` | ``ready`` | ``draining``
    progress : float, 0 to 1
        Of the stage.
    ready : bool
        It answers from a state that it trusts.
    reason : str or None
        Why it is not ready.
    log : ``connected`` | ``cut off``
    since : float or None
        Seconds that it has been cut off.
    lag : int or None
        Entries behind, over all models; None when not known.
    durability : Durability or None
        As the store said last; None before the first connection.
    history : str or None
        Why there is none, or the log is not moved to it, and what mends that; None while it is kept.
    """

    stage: str
    progress: float
    ready: bool
    reason: str | None
    log: Literal["connected", "cut off"]
    since: float | None
    lag: int | None
    durability: Durability | None
    history: str | None = None


class Health:
    """The stage that a replica is in, and since when the store has been away from it."""

    def __init__(self, follower: Follower, line: Line, keeping: Keeping) -> None:
        self._follower = follower
        self._line = line
        self._keeping = keeping
        self._stage = "connecting"
        self._progress = 0.0
        self._cut_off_at: float | None = None

    def tell(self, stage: str, progress: float = 0.0) -> None:
        """The replica has come to a stage, and so far in it."""
        self._stage, self._progress = stage, progress

    def check_taking(self) -> None:
        """NotReady when the replica is not up yet, or about to stop."""
        if self._stage != "ready":
            raise NotReady(f"this replica takes nothing: {self._stage}")

    async def watch(self) -> None:
        """Note since when the store has been away, whether anybody asks or not. For ever."""
        while True:
            self._cut_off()
            await asyncio.sleep(WATCH_SECONDS)

    def status(self) -> Status:
        """How the replica does; costs nothing."""
        models = self._follower.models.values()
        reasons = [self._follower.trouble] if self._follower.trouble else []
        reasons += [model.trouble for model in models if model.trouble is not None]
        reasons += [
            f"{model.name} waits: {model.halted}" if model.halted else f"{model.name} is being loaded anew"
            for model in models
            if not (model.ready or model.trouble)
        ]
        if self._stage != "ready":
            reasons.append(f"{self._stage}, {self._progress:.0%}" if self._progress else self._stage)
        away = self._cut_off()
        facts = self._line.facts
        lags = [model.lag for model in models if model.lag is not None]
        return Status(
            stage=self._stage,
            progress=self._progress,
            ready=not reasons,
            reason="; ".join(reasons) or None,
            log="connected" if away is None else "cut off",
            since=away,
            lag=sum(lags) if lags else None,
            durability=Durability(facts.appendfsync, facts.levels, facts.warning) if facts is not None else None,
            history=_some(self._keeping.troubles()),
        )

    def _cut_off(self) -> float | None:
        """Seconds for which the store has been away for reading or for appending, None when it is there."""
        if self._stage == "connecting" or (self._follower.cut_off is None and self._line.link is not None):
            self._cut_off_at = None
            return None
        now = asyncio.get_running_loop().time()
        if self._cut_off_at is None:
            self._cut_off_at = now
        return now - self._cut_off_at


def _some(troubles: list[str]) -> str | None:
    more = [f"and {len(troubles) - MOST_TROUBLES} more"] if len(troubles) > MOST_TROUBLES else []
    return "; ".join([*troubles[:MOST_TROUBLES], *more]) or None
