"""The pool: a few threads for what would hold up the event loop, and a bound on what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from core.errors import Overloaded

T = TypeVar("T")


class Pool:
    """Threads.

    Parameters
    ----------
    threads : int
    waiting : int
        Calls that may wait for a thread.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, "rank")
        self._room = asyncio.Semaphore(threads + waiting)

    async def run(self, call: Callable[[], T], patient: bool = False) -> T:
        """What a call gives, made in a thread. ``patient``: wait for however long it takes until there is room.

        Overloaded when too many wait already.
        """
        if not patient and self._room.locked():
            raise Overloaded("too many requests wait to be ranked by a version; `version` live needs no waiting")
        async with self._room:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Take nothing more; what is being done is left to end."""
        self._executor.shutdown(wait=False, cancel_futures=True)
