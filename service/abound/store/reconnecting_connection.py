"""Connection to the store that is reopened whenever it is lost.

The server info (``ServerInfo``) is queried over the connection itself, when it is opened and every second after that.
So durability is never promised on behalf of another server than the one at the end of the connection. This query
also detects a connection that is dead, so that an append seldom meets one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from abound.store.client import Store, fetch_server_info
from abound.store.raw_connection import StoreConnection
from abound.store.server_info import ServerInfo
from abound.tasks import cancel_and_wait, wait_for_event
from abound_core.errors import StoreUnavailable

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
INFO_SECONDS = 1.0


async def _accept_every_server(connection: StoreConnection, seconds: float) -> bool:
    return True


class ReconnectingConnection:
    """Keeps one connection open: ``raw``, None from the moment it is lost, with its newest server info ``info``.

    A reply may take ``wait_seconds`` longer, because of other commands on the connection. ``knows`` receives the
    seconds to wait for a reply, and returns whether the server may be appended to; the connection is closed if not.
    """

    def __init__(
        self,
        store: Store,
        purpose: str,
        wait_seconds: float = 0.0,
        knows: Callable[[StoreConnection, float], Awaitable[bool]] = _accept_every_server,
    ) -> None:
        self.info: ServerInfo | None = None
        self.raw: StoreConnection | None = None
        self._store = store
        self._purpose = purpose
        self.knows = knows
        self._patience = store.params.reply_seconds + wait_seconds
        self._lost = asyncio.Event()
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._task or asyncio.create_task(self._keep_open(), name=f"connection {self._purpose}")

    async def wait_open(self) -> None:
        await self._opened.wait()

    async def stop(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)
        connection, self.raw = self.raw, None
        if connection is not None:
            connection.close()

    async def _keep_open(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._lost.clear()
            try:
                connection, info = await self._open()
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if self._lost.is_set():
                continue
            pause = FIRST_PAUSE
            self.info, self.raw = info, connection
            self._opened.set()
            await self._refresh_info(connection)

    async def _open(self) -> tuple[StoreConnection, ServerInfo]:
        connection = await self._store.open_connection(self._purpose, self._on_lost)
        try:
            info = await fetch_server_info(connection, self._patience)
            if not await self.knows(connection, self._patience):
                raise StoreUnavailable("the store has lost the end of the catalogue, and models with it")
            return connection, info
        except BaseException:
            connection.close()
            raise

    async def _refresh_info(self, connection: StoreConnection) -> None:
        while not await wait_for_event(self._lost, INFO_SECONDS):
            with contextlib.suppress(StoreUnavailable):
                self.info = await fetch_server_info(connection, self._patience)
                if not await self.knows(connection, self._patience):
                    connection.close()

    def _on_lost(self) -> None:
        if self.raw is not None:
            log.warning("lost a connection to the store", purpose=self._purpose)
        self.raw = None
        self._opened.clear()
        self._lost.set()
