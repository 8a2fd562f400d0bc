"""Cleanup of the local file cache (``abound/artifacts/file_cache.py``): delete the files of deleted versions.

    abound:copies:asked     list of the newest cleanup requests, newest first

The name of a cached file gives its content, not its owner, and versions may share a file. At its start and at
every new request, each caching process therefore collects the files of all existing versions and deletes every
other file. A file deleted by mistake is merely fetched again.

A forget job requests a cleanup after it has deleted versions, and waits until all replicas report it done.
Requests have random names, so a failover cannot reuse one. A request that a failover lost is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.tasks import do_nothing, forever
from abound.versions import versions as versions

log = structlog.get_logger(__name__)

COPIES_KEY = "abound:copies:asked"
N_ASKED = 8
LOOK_SECONDS = 1.0
POLL_SECONDS = 0.2


class CacheCleaner:
    """Cleans the file cache of one process.

    ``fetched`` waits for downloads in progress, which may be of versions deleted since. ``done_requests`` are the
    requests known when the last cleanup began; None if this process has no cache.
    """

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactStore | None,
        models: Callable[[], Iterable[ModelKeys]],
        fetched: Callable[[], Awaitable[None]] = do_nothing,
    ) -> None:
        self._store = store
        self._artifacts = None
        if artifacts is not None and artifacts.cache is not None and not artifacts.is_directory:
            self._artifacts = artifacts
        self._models = models
        self._fetched = fetched
        self._looked = False
        self.done_requests: list[str] | None = None if self._artifacts is None else []

    async def run(self) -> None:
        if self.done_requests is not None:
            await forever(self.clean, LOOK_SECONDS)

    async def clean(self) -> None:
        """Delete unneeded files if a cleanup was requested since the last one."""
        artifacts = self._artifacts
        if artifacts is None or artifacts.cache is None:
            return
        asked = await cleanup_requests(self._store)
        if self._looked and asked == self.done_requests:
            return
        if not artifacts.id:
            await artifacts.join(self._store)
        await self._fetched()
        needed = {
            one.checksum
            for keys in list(self._models())
            for card in await versions.cards(artifacts, keys)
            for one in card.files
        }
        n_gone = await asyncio.to_thread(artifacts.cache.keep_only, needed)
        self.done_requests, self._looked = asked, True
        if n_gone:
            log.info("deleted cached files of deleted versions", files=n_gone)


async def request_cleanup(store: Store, name: str) -> None:
    with store_errors():
        async with store.client.pipeline(transaction=True) as pipe:
            pipe.lpush(COPIES_KEY, name)
            pipe.ltrim(COPIES_KEY, 0, N_ASKED - 1)
            await pipe.execute()


async def cleanup_requests(store: Store) -> list[str]:
    with store_errors():
        return [name.decode() for name in await store.client.lrange(COPIES_KEY, 0, -1)]
