"""Availability of the artifact store, checked without a long wait.

An unreachable bucket may take minutes to fail. A process that can work without it waits a few seconds, continues, and
checks again later; the attempt to join goes on in the background.
"""

from __future__ import annotations

import asyncio

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.timeouts import NO_ANSWER
from abound.artifacts.times import JOIN_SECONDS
from abound.store.client import Store
from abound.tasks import cancel_and_wait
from abound_core.errors import ArtifactsUnavailable

log = structlog.get_logger(__name__)


class AvailabilityMonitor:
    """Checks whether the artifact store can be used, and logs ``lost`` when it no longer can.

    ``trouble`` is why it cannot be used; None while it can, and before the first check.
    """

    def __init__(self, store: Store, artifacts: ArtifactStore, lost: str) -> None:
        self.trouble: str | None = None
        self._store = store
        self._artifacts = artifacts
        self._lost = lost
        self._attempt: asyncio.Task[str] | None = None

    async def poll(self) -> ArtifactStore | None:
        """Return the artifact store, or None while it cannot be used. Raises StoreUnavailable."""
        patience = 0.0
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._artifacts.join(self._store), name="artifact store")
            patience = JOIN_SECONDS
        await asyncio.wait({self._attempt}, timeout=patience)
        if not self._attempt.done():
            self._log_trouble(self.trouble or NO_ANSWER)
            return None
        joined, self._attempt = self._attempt, None
        try:
            joined.result()
        except ArtifactsUnavailable as error:
            self._log_trouble(str(error))
            return None
        if self.trouble is not None:
            log.info("the artifact store is available again")
        self.trouble = None
        return self._artifacts

    def _log_trouble(self, trouble: str) -> None:
        if self.trouble != trouble:
            log.error(self._lost, reason=trouble)
        self.trouble = trouble

    async def stop(self) -> None:
        if self._attempt is not None:
            await cancel_and_wait(self._attempt)
