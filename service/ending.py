"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
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
