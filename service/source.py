"""Where a shadow comes from: the index out of the artifact store, and the entries behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from core.limits import Limits
from core.live import LiveModel
from core.types import Offset
from service import indexes
from service import log as stream
from service.artifacts import Artifacts
from service.catalog import ModelKeys
from service.log import Element, LogParams
from service.store import Store


class Source:
    """The artifact store, if there is one, and the log.

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

    async def entries(self, keys: ModelKeys, after: Offset, until: Offset | None) -> AsyncIterator[list[Element]]:
        """The entries past ``after``, up to and with ``until``, a few at a time, without a gap. StoreUnavailable."""
        link = await self._store.open_link("past")
        try:
            seconds = self._store.params.reply_seconds
            async for elements in stream.read(
                link, keys.log, after, until, read_bytes=self._params.read_bytes, seconds=seconds
            ):
                yield elements
        finally:
            link.close()
