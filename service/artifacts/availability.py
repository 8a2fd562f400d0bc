"""Joining the artifact store without waiting long for one that does not answer.

A bucket that cannot be reached may take minutes to fail. Whoever can do without it waits a few seconds, goes on, and
looks again; the attempt goes on meanwhile.
"""

from __future__ import annotations

import asyncio

import structlog

from abound.core.errors import ArtifactsUnavailable
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.artifacts.timeouts import NO_ANSWER
from abound.service.store.client import Store
from abound.service.tasks import end

log = structlog.get_logger(__name__)

JOIN_SECONDS = 3.0
"""Longest wait for one attempt."""


class Joining:
    """Sees whether the artifact store can be used, and tells the log when that changes.

    Parameters
    ----------
    lost : str
        What is not to be had without it, for the log.

    Attributes
    ----------
    trouble : str or None
        Why it cannot be used; None while it can, and before the first look.
    """

    def __init__(self, store: Store, artifacts: Artifacts, lost: str) -> None:
        self.trouble: str | None = None
        self._store = store
        self._artifacts = artifacts
        self._lost = lost
        self._attempt: asyncio.Task[str] | None = None

    async def look(self) -> Artifacts | None:
        """The artifact store while it can be used. StoreUnavailable when the store is away."""
        patience = 0.0
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._artifacts.join(self._store), name="artifact store")
            patience = JOIN_SECONDS
        await asyncio.wait({self._attempt}, timeout=patience)
        if not self._attempt.done():
            self._tell(self.trouble or NO_ANSWER)
            return None
        joined, self._attempt = self._attempt, None
        try:
            joined.result()
        except ArtifactsUnavailable as error:
            self._tell(str(error))
            return None
        if self.trouble is not None:
            log.info("the artifact store is there again")
        self.trouble = None
        return self._artifacts

    def _tell(self, trouble: str) -> None:
        if self.trouble != trouble:
            log.error(self._lost, reason=trouble)
        self.trouble = trouble

    async def stop(self) -> None:
        """Wait for nothing any more."""
        if self._attempt is not None:
            await end(self._attempt)
