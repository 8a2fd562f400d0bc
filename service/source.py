"""Where a shadow comes from: the index out of the artifact store, and the entries behind it, out of history and log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from core.limits import Limits
from core.live import LiveModel
from core.types import Offset
from service import indexes, past
from service.artifacts import Artifacts
from service.catalog import ModelKeys
from service.log import Element, LogParams
from service.store import Store


class Source:
    """The artifact store, if there is one, history and log.

    Attributes
    ----------
    artifacts : Artifacts or None
    """

    def __init__(self, store: Store, artifacts: Artifacts | None, params: LogParams | None = None) -> None:
        self.artifacts = artifacts
        self._store = store
        self._params = params or LogParams()

    async def load(
        self,
        keys: ModelKeys,
        index: str,
        digest: str,
        limits: Limits,
        progress: Callable[[float], None] = lambda done: None,
    ) -> LiveModel:
        """An index. Damaged, UnknownApplyVersion, UnknownArtifact or ArtifactsUnavailable when it cannot be had."""
        if self.artifacts is not None and not self.artifacts.id:
            await self.artifacts.join(self._store)
        return await indexes.load(self.artifacts, keys, index, digest, limits, progress)

    def entries(self, keys: ModelKeys, after: Offset, until: Offset | None) -> AsyncIterator[list[Element]]:
        """The entries past ``after``, up to and with ``until``; see ``past.entries``."""
        return past.entries(self._store, self.artifacts, keys, after, until, params=self._params)
