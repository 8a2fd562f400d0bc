"""An event loop without a clock, without threads and without a world: the same seed gives the same run.

Everything of one history runs in one loop, in **processes**: an application, a replica, the store. Each callback
belongs to the process in whose context it was scheduled, and has that process's fate: it waits while the process is
paused and never runs after the process was killed.

What the loop decides by its seed: which process goes on and how far, how long that took, when a thread is done. What
it never does is to reorder two callbacks of one process that became ready one after the other: asyncio promises that
order. The clock goes on by what the callbacks are said to have cost, and jumps when nobody has anything to do.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

BEGIN = 1000.0
MOST_CALLBACKS = 400_000
"""A history that takes more of them does not come to an end by itself."""

_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class Endless(Exception):
    """A history does not come to an end."""


class Process:
    """What a crash takes with it: callbacks that run one at a time and in order."""

    def __init__(self, loop: SimLoop, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.alive = True
        self.paused = False
        self.steps = 0  # callbacks that have run
        self.fuse: int | None = None  # it is killed after this many steps
        self.at_end: list[Callable[[], None]] = []
        self.context = contextvars.Context()
        self.context.run(_process.set, self)
        self._loop = loop
        self.ready: deque[Callback] = deque()
        self.queued = False

    def run(self, coroutine: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        return self._loop.create_task(coroutine, name=name, context=self.context.copy())

    def call(self, callback: Callable[..., None], *args: Any, after: float = 0.0) -> Callback:
        if after:
            return self._loop.call_later(after, callback, *args, context=self.context)
        return self._loop.call_soon(callback, *args, context=self.context)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        if self.ready and self.alive:
            self._loop.enqueue(self)

    def kill(self) -> None:
        """End it at this very point; what its callbacks would have done in the end is not done."""
        if self.alive:
            self.alive = False
            for at_end in [*self.at_end]:  # each takes itself out
                at_end()


def here() -> Process:
    return _process.get()


class Callback:
    __slots__ = ("args", "call", "context", "dropped", "process")

    def __init__(self, call: Any, args: Any, context: contextvars.Context) -> None:
        self.call = call
        self.args = args
        self.context = context
        self.process = context[_process]
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True
        self.call = self.args = None

    def cancelled(self) -> bool:
        return self.dropped


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. ``network`` is asked for connections."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"schedule {seed}")
        self.errors: list[str] = []  # exceptions in callbacks and tasks that nobody has looked at
        self.network: Any = None
        self.processes: list[Process] = []
        self.n_callbacks = 0
        self._now = BEGIN
        self._timers: list[tuple[float, int, Callback]] = []
        self._n_timers = 0
        self._runnable: list[Process] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False
        self._is_over = False
        self.world = self.process("world")

    def process(self, name: str) -> Process:
        process = Process(self, name, 100 + len(self.processes))
        self.processes.append(process)
        return process

    def enqueue(self, process: Process) -> None:
        if not process.queued:
            process.queued = True
            self._runnable.append(process)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        asyncio.set_event_loop(self)
        asyncio._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=lambda agen: None, finalizer=self._close_generator)
        try:
            task = self.world.run(main)
            self._turn(task.done, MOST_CALLBACKS)
            self._is_over = True
            self._bury()
            return task.result()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
            asyncio.set_event_loop(None)
            self._closed = True
            self.network.end()

    def _turn(self, done: Callable[[], bool], most: int) -> None:
        runnable, timers, rng = self._runnable, self._timers, self.rng
        rand = rng.random
        while not done():
            if self.n_callbacks > most:
                raise Endless(f"not at an end after {self.n_callbacks} callbacks")
            now = self._now
            while timers and timers[0][0] <= now:
                timer = heapq.heappop(timers)[2]
                if not timer.dropped:
                    self._put(timer)
            if not runnable:
                if not timers:
                    raise Endless("everything waits for something that never comes")
                self._now = max(now, timers[0][0])
                continue
            at = int(rand() * len(runnable))
            process = runnable[at]
            runnable[at] = runnable[-1]
            runnable.pop()
            process.queued = False
            if process.paused or not process.alive:
                continue
            n = ran = len(process.ready)
            if n > 1 and rand() < 0.25:
                n = ran = 1 + int(rand() * n)
            ready = process.ready
            while n and ready and process.alive and not process.paused:
                n -= 1
                callback = ready.popleft()
                if callback.dropped:
                    continue
                process.steps += 1
                try:
                    callback.context.run(callback.call, *callback.args)
                except Exception as error:  # as asyncio does: the next callback runs all the same
                    self._note(f"{process.name}: {type(error).__name__}: {error} in {callback.call}")
                if process.fuse is not None and process.steps >= process.fuse:
                    process.kill()
            self.n_callbacks += ran
            self._now += (5 + 20 * rand()) * 1e-6 * ran
            if ready and process.alive and not process.paused:
                self.enqueue(process)

    def _bury(self) -> None:
        """Let all tasks end, those of dead processes too, so that nothing is left for the garbage collector."""
        self.network.close()
        for process in self.processes:
            process.fuse, process.alive = None, True
            process.resume()
        for _ in range(8):
            tasks = [task for task in self._tasks if not task.done()]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            until = self._now + 1.0
            self._timers = [timer for timer in self._timers if timer[0] < until]
            heapq.heapify(self._timers)
            self.world.call(lambda: None, after=1.0)

            def is_over(until: float = until, tasks: list[Any] = tasks) -> bool:
                return self._now >= until or all(task.done() for task in tasks)

            self._turn(is_over, self.n_callbacks + 100_000)

    def _note(self, error: str) -> None:
        if not self._is_over:
            self.errors.append(error)

    def _put(self, callback: Callback) -> None:
        process = callback.process
        process.ready.append(callback)
        if process.alive and not process.queued and not process.paused:
            process.queued = True
            self._runnable.append(process)

    # what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        called = Callback(callback, args, context or contextvars.copy_context())
        self._put(called)
        return called

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        called = Callback(callback, args, context or contextvars.copy_context())
        self._n_timers += 1
        heapq.heappush(self._timers, (when, self._n_timers, called))
        return called

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)  # a task of a process that was killed must not be ended by being forgotten
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Run it in this thread, all at once, some time from now."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self.rng.choice((0.0, 0.0005, 0.02)), run)
        return future

    async def create_connection(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.network.connect(protocol_factory)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._note(f"{context.get('message')}: {type(error).__name__}: {error}")

    def _close_generator(self, generator: Any) -> None:
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())
