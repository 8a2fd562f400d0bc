"""Copies of versions on this machine (``service/artifacts/file_cache.py``): those of versions that are no more go.

    abound:copies:asked     a list of the last few times that it was asked for that such copies go, newest first

A copy says by its name what is in it, not whose it is, and several versions may share it. So every process that makes
copies looks, when it starts and whenever that was asked for, which files the versions that there are consist of, and
throws away all others. One too many costs that it is fetched again.

Who forgets asks for it when the versions are deleted, and waits until all replicas have said that they did it. Each
time has a random name, which a failover cannot give to another one; one that it loses is asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

import structlog

from abound.core.errors import ArtifactsUnavailable, StoreUnavailable
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.versions import repository as versions

log = structlog.get_logger(__name__)

COPIES_KEY = "abound:copies:asked"
N_ASKED = 8
LOOK_SECONDS = 1.0
POLL_SECONDS = 0.2


async def _nothing() -> None:
    """Nothing is being fetched."""


class Copies:
    """Those that one process makes.

    Parameters
    ----------
    models : callable
        The models that there are.
    fetched : async callable
        Waits for what is being fetched; it may be of a version that was deleted since.

    Attributes
    ----------
    swept : list of str or None
        The last times that it had been asked for when the last sweep began; None where no copies are made.
    """

    def __init__(
        self,
        store: Store,
        artifacts: Artifacts | None,
        models: Callable[[], Iterable[ModelKeys]],
        fetched: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._store = store
        self._artifacts = None
        if artifacts is not None and artifacts.cache is not None and not artifacts.is_directory:
            self._artifacts = artifacts
        self._models = models
        self._fetched = fetched
        self._looked = False
        self.swept: list[str] | None = None if self._artifacts is None else []

    async def keep(self) -> None:
        """Look every second whether it was asked for, for ever."""
        while self.swept is not None:
            with contextlib.suppress(StoreUnavailable, ArtifactsUnavailable):
                await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Throw away what nothing needs, if that was asked for since the last time.

        StoreUnavailable, ArtifactsUnavailable.
        """
        artifacts = self._artifacts
        if artifacts is None or artifacts.cache is None:
            return
        asked = await _asked(self._store)
        if self._looked and asked == self.swept:
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
        self.swept, self._looked = asked, True
        if n_gone:
            log.info("threw away copies of versions that are no more", files=n_gone)


async def _ask(store: Store, name: str) -> None:
    with reaching():
        async with store.client.pipeline(transaction=True) as pipe:
            pipe.lpush(COPIES_KEY, name)
            pipe.ltrim(COPIES_KEY, 0, N_ASKED - 1)
            await pipe.execute()


async def _asked(store: Store) -> list[str]:
    with reaching():
        return [name.decode() for name in await store.client.lrange(COPIES_KEY, 0, -1)]
