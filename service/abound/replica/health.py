"""Health of a replica: its stage, readiness, connection to the store and durability."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

import structlog

from abound.replica.follower import Follower
from abound.replica.storage_status import StorageStatus
from abound.store.reconnecting_connection import ReconnectingConnection

log = structlog.get_logger(__name__)

WATCH_SECONDS = 0.25

MAX_FAILURES = 3  # reported at a time


class Durability(NamedTuple):
    """Durability that the store promises for an event in its log."""

    appendfsync: str | None  # always, everysec or no; None: not reported, or no append-only file
    levels: tuple[str, ...]  # that a request can ask for here, weakest first
    warning: str | None  # possible losses, and how to prevent them


class ReplicaStatus(NamedTuple):
    stage: str  # connecting, loading snapshot of ..., replaying ..., ready or draining
    progress: float  # of the stage, 0 to 1
    ready: bool  # it answers from a state that it trusts
    reason: str | None  # why it is not ready
    log: Literal["connected", "cut off"]
    since: float | None  # seconds since it was cut off
    lag: int | None  # entries behind, over all models; None when unknown
    durability: Durability | None  # from the newest server info; None before the first connection
    history: str | None = None  # why the log is not moved to history, and how to fix it; None when that works


class Health:
    """Tracks the stage of a replica, the time since it was cut off, and whether the store takes events."""

    def __init__(self, follower: Follower, connection: ReconnectingConnection, keeping: StorageStatus) -> None:
        self._follower = follower
        self._connection = connection
        self._keeping = keeping
        self.stage = "connecting"
        self._progress = 0.0
        self._cut_off_at: float | None = None
        self._refusal: str | None = None

    def set_stage(self, stage: str, progress: float = 0.0) -> None:
        self.stage, self._progress = stage, progress

    async def run(self) -> None:
        """Record when the store becomes unavailable, and log when it takes no events."""
        while True:
            self._cut_off()
            self._log_refusal()
            await asyncio.sleep(WATCH_SECONDS)

    def status(self) -> ReplicaStatus:
        models = self._follower.models.values()
        reasons = [self._follower.failure] if self._follower.failure else []
        reasons += [model.failure for model in models if model.failure is not None]
        reasons += [
            f"{model.name} waits: {model.halted}" if model.halted else f"{model.name} is being reloaded"
            for model in models
            if not (model.ready or model.failure)
        ]
        if self.stage != "ready":
            reasons.append(f"{self.stage}, {self._progress:.0%}" if self._progress else self.stage)
        away = self._cut_off()
        info = self._connection.info
        lags = [model.lag for model in models if model.lag is not None]
        return ReplicaStatus(
            stage=self.stage,
            progress=self._progress,
            ready=not reasons,
            reason="; ".join(reasons) or None,
            log="connected" if away is None else "cut off",
            since=away,
            lag=sum(lags) if lags else None,
            durability=Durability(info.appendfsync, info.levels, info.warning) if info is not None else None,
            history=_some(self._keeping.failures()),
        )

    def _log_refusal(self) -> None:
        refusal = self._connection.info.refusal if self._connection.info is not None else None
        if refusal != self._refusal:
            self._refusal = refusal
            if refusal is not None:
                log.error("learning is refused", reason=refusal)
            else:
                log.info("learning is accepted again")

    def _cut_off(self) -> float | None:
        """Return for how many seconds reading or appending has been impossible; None when both work."""
        if self.stage == "connecting" or (self._follower.cut_off is None and self._connection.raw is not None):
            self._cut_off_at = None
            return None
        now = asyncio.get_running_loop().time()
        if self._cut_off_at is None:
            self._cut_off_at = now
        return now - self._cut_off_at


def _some(troubles: list[str]) -> str | None:
    more = [f"and {len(troubles) - MAX_FAILURES} more"] if len(troubles) > MAX_FAILURES else []
    return "; ".join([*troubles[:MAX_FAILURES], *more]) or None
