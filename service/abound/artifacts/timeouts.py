"""Timeouts for calls that may never return: the caller waits for a slow store, and not for a silent one.

The calls run in daemon threads, so one that hangs blocks neither other calls nor the exit of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from abound_core.errors import ArtifactsUnavailable

NO_ANSWER = "the artifact store does not answer; the service keeps trying"

T = TypeVar("T")


class ResponseTimeout:
    """Ends the wait for an artifact store that is silent.

    When a call has taken ``seconds`` (None: no limit), a cheap ``question`` is asked in a thread. If it returns or
    raises within another ``seconds``, the store is only slow, and the wait for the call goes on. If not, this call
    fails, and all other calls fail at once until the question is answered.
    """

    def __init__(self, seconds: float | None, question: Callable[[], object]) -> None:
        self._seconds = seconds
        self._ask = question
        self._threads = DaemonThreads(1, "any answer")
        self._pending_probe: Future[object] | None = None
        self._is_silent = False

    def check(self) -> None:
        if self._is_silent and self._pending_probe is not None and not self._pending_probe.done():
            raise ArtifactsUnavailable(NO_ANSWER)

    async def wait(self, call: asyncio.Future[T]) -> T:
        try:
            while not (await asyncio.wait({call}, timeout=self._seconds))[0]:
                if not await self._is_answered():
                    raise ArtifactsUnavailable(NO_ANSWER)
            return call.result()
        finally:
            call.cancel()

    async def _is_answered(self) -> bool:
        if self._pending_probe is None or self._pending_probe.done():
            self._pending_probe = self._threads.submit(self._ask)
        answer = asyncio.wrap_future(self._pending_probe)
        try:
            answered = bool((await asyncio.wait({answer}, timeout=self._seconds))[0])
        finally:
            answer.cancel()
        if answered and not answer.cancelled():
            answer.exception()
        self._is_silent = not answered
        return answered


P = ParamSpec("P")


class DaemonThreads(Executor):
    """An executor for up to ``most`` calls at a time; others wait in order. A thread ends when no call is left."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._busy = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        work = partial(call, *given, **named)
        with self._lock:
            if self._busy == self._most:
                self._waiting.append((future, work))
                return future
            threading.Thread(target=self._run, args=(future, work), name=self._name, daemon=True).start()
            self._busy += 1  # not if no thread could be started
        return future

    def _run(self, future: Future[Any], work: Callable[[], Any]) -> None:
        while True:
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, work
            with self._lock:
                if not self._waiting:
                    self._busy -= 1
                    return
                future, work = self._waiting.popleft()
