"""The pool: a few threads for what would hold up the event loop, and a bound on what waits for them.

What waits when a thread comes free is done by it together: many small calls cost little more than one. Nobody waits
for others to come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from core.errors import Overloaded

T = TypeVar("T")
R = TypeVar("R")

MOST_TOGETHER = 256
"""Items of several calls that are done together; one call may have more."""


class _Call(NamedTuple, Generic[T, R]):
    items: Sequence[T]
    done: asyncio.Future[list[R]]


class Pool(Generic[T, R]):
    """Threads that all do one kind of work.

    Parameters
    ----------
    work : callable
        Given items, a result for each. Called in a thread.
    threads : int
    waiting : int
        Calls that may wait for a thread.
    """

    def __init__(self, work: Callable[[Sequence[T]], list[R]], threads: int, waiting: int) -> None:
        self._work = work
        self._executor = ThreadPoolExecutor(threads, "rank")
        self._threads = threads
        self._most = waiting
        self._waiting: deque[_Call[T, R]] = deque()
        self._busy: set[asyncio.Task[None]] = set()

    async def run(self, items: Sequence[T], patient: bool = False) -> list[R]:
        """The result for each item. ``patient``: wait however many wait already; for who has one call at a time.

        Overloaded when too many wait.
        """
        if not patient and len(self._waiting) >= self._most:
            raise Overloaded("too many requests wait to be ranked by a version; `version` live needs no waiting")
        call: _Call[T, R] = _Call(items, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._begin()
        return await call.done

    def close(self) -> None:
        """Take nothing more; what is being done is left to end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Give what waits to the threads that are free."""
        while self._waiting and len(self._busy) < self._threads:
            together = [self._waiting.popleft()]
            size = len(together[0].items)
            while self._waiting and size + len(self._waiting[0].items) <= MOST_TOGETHER:
                together.append(self._waiting.popleft())
                size += len(together[-1].items)
            task = asyncio.create_task(self._do(together))
            self._busy.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        self._begin()

    async def _do(self, together: list[_Call[T, R]]) -> None:
        """Do calls together; where that fails, each alone, so that none fails for another one."""
        together = [call for call in together if not call.done.done()]  # whoever was to be told may be gone
        if not together:
            return
        items = [item for call in together for item in call.items]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._executor, self._work, items)
        except BaseException as error:
            if len(together) > 1 and isinstance(error, Exception):
                for call in together:
                    await self._do([call])
                return
            for call in together:
                if not call.done.done():
                    call.done.set_exception(error)
            return
        first = 0
        for call in together:
            if not call.done.done():
                call.done.set_result(results[first : first + len(call.items)])
            first += len(call.items)
