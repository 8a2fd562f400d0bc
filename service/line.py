"""A line: a link to the store that is opened again, for ever, whenever it is lost.

Opening asks the store what it is (``Facts``) first, so that a promise of durability is never made on behalf of a
server that was there before.
"""

from __future__ import annotations

import asyncio

import structlog

from core.errors import StoreUnavailable
from service.ending import end
from service.link import Link
from service.store import Facts, Store

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class Line:
    """Keeps one link open.

    Attributes
    ----------
    link : Link or None
        The open link; None from the moment at which it is lost.
    facts : Facts or None
        What the store said when the link was opened, or since.
    """

    def __init__(self, store: Store, purpose: str) -> None:
        self.facts: Facts | None = None
        self.link: Link | None = None
        self._store = store
        self._purpose = purpose
        self._lost = asyncio.Event()
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to keep a link open."""
        self._task = self._task or asyncio.create_task(self._keep_open(), name=f"line {self._purpose}")

    async def opened(self) -> None:
        """Wait until there is a link."""
        await self._opened.wait()

    async def stop(self) -> None:
        """Close the link and open no other."""
        if self._task is not None:
            await end(self._task)
        link, self.link = self.link, None
        if link is not None:
            link.close()

    async def _keep_open(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._lost.clear()
            try:
                facts = await self._store.facts()
                link = await self._store.open_link(self._purpose, self._on_lost)
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self.facts, self.link = facts, link
            self._opened.set()
            await self._lost.wait()

    def _on_lost(self) -> None:
        if self.link is not None:
            log.warning("lost a connection to the store", purpose=self._purpose)
        self.link = None
        self._opened.clear()
        self._lost.set()
