"""Ending tasks for certain.

Long work in short slices, so that the one event loop answers in between.

::

    pace = Pace()
    for line in lines:
        work(line)
        if pace.due():
            await pace.rest()
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Any

AGAIN_SECONDS = 0.2


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, whatever came of them.

    A task that is cancelled while it awaits several things deep may lose the cancellation on the way (some
    libraries do), so a task that goes on is cancelled again.
    """
    while going := [task for task in tasks if not task.done()]:
        for task in going:
            task.cancel()
        await asyncio.wait(going, timeout=AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


SLICE_SECONDS = 0.001


class Pace:
    """Says when the present slice is used up, and gives the others their turn."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + SLICE_SECONDS

    def due(self) -> bool:
        """Whether the slice is used up."""
        return perf_counter() > self._until

    async def rest(self) -> None:
        """Let everything else that is ready run once, then begin a new slice."""
        await asyncio.sleep(0)
        self._until = perf_counter() + SLICE_SECONDS


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run these until all have ended; when one fails the others are ended and its error is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
