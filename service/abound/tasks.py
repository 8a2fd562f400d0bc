"""Helpers for asyncio tasks: repeat work, cancel tasks and wait for them, run several at once, slice long work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import Any, TypeVar

import structlog

from abound_core.errors import AboundError, ArtifactsUnavailable, StoreUnavailable

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 0.2

T = TypeVar("T")


async def do_nothing(*_: object) -> None:
    """The default of asynchronous callbacks."""


async def forever(work: Callable[[], Awaitable[object]], every: float, *, at_once: bool = True) -> None:
    """Call ``work`` every ``every`` seconds until cancelled; ignore StoreUnavailable, ArtifactsUnavailable.

    Other errors of this service end it. Unexpected ones, such as a lack of memory, are logged, and the next call may
    succeed. The first call is made at once, or after ``every`` seconds.
    """
    logged = ""
    if not at_once:
        await asyncio.sleep(every)
    while True:
        try:
            await work()
        except (StoreUnavailable, ArtifactsUnavailable):
            pass
        except AboundError:
            raise
        except Exception as error:
            if repr(error) != logged:
                logged = repr(error)
                log.exception("periodic work has failed; it is tried again", seconds=every)
        await asyncio.sleep(every)


async def wait_until(check: Callable[[], Awaitable[T]], every: float, seconds: float) -> T:
    """Await ``check`` every ``every`` seconds until it returns a true value or ``seconds`` have passed; return it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (result := await check()) and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(every)
    return result


async def retry(work: Callable[[], Awaitable[T]], error: type[Exception], every: float, seconds: float) -> T:
    """Return the result of ``work``. Repeat it every ``every`` seconds while it raises ``error``, for ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await work()
        except error:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(every)


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; ignore their results and errors.

    A task that continues is cancelled again. In Python 3.11, ``asyncio.wait_for`` drops a cancellation that arrives
    when the awaited call has just ended, and the Redis client uses it for every command.
    """
    while going := [task for task in tasks if not task.done()]:
        for task in going:
            task.cancel()
        await asyncio.wait(going, timeout=AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


SLICE_SECONDS = 0.001


class TimeSlice:
    """Slices long work: ``if time_slice.due(): await time_slice.pause()`` lets other tasks run."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + SLICE_SECONDS

    def due(self) -> bool:
        return perf_counter() > self._until

    async def pause(self) -> None:
        """Let every other ready task run once, then start a new slice."""
        await asyncio.sleep(0)
        self._until = perf_counter() + SLICE_SECONDS


async def run_together(*works: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until all have ended; when one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await cancel_and_wait(*tasks)
