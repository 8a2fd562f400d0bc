"""Patience with calls that may never return: a slow one is waited for, one to a store that is silent is not.

Threads for calls that may hang: they hold up neither each other's callers nor the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from abound.core.errors import ArtifactsUnavailable

NO_ANSWER = "the artifact store does not answer; it is tried on"

T = TypeVar("T")


class Patience:
    """Ends the waiting for an artifact store that is silent.

    When a call has taken some seconds a question is asked that costs little. While that is answered, in as many
    seconds, the call is slow and is waited for. If not, this call ends, and all others at once, until the question
    has its answer.

    Parameters
    ----------
    seconds : float or None
        None: calls are waited for however long they take.
    question : callable
        Called in a thread; any end of it is an answer, be it an error.
    """

    def __init__(self, seconds: float | None, question: Callable[[], object]) -> None:
        self._seconds = seconds
        self._ask = question
        self._threads = DaemonThreads(1, "any answer")
        self._question: Future[object] | None = None
        self._is_silent = False

    def check(self) -> None:
        """ArtifactsUnavailable while it is known to be silent."""
        if self._is_silent and self._question is not None and not self._question.done():
            raise ArtifactsUnavailable(NO_ANSWER)

    async def wait(self, call: asyncio.Future[T]) -> T:
        """What comes of a call; ArtifactsUnavailable."""
        try:
            while not (await asyncio.wait({call}, timeout=self._seconds))[0]:
                if not await self._is_answered():
                    raise ArtifactsUnavailable(NO_ANSWER)
            return call.result()
        finally:
            call.cancel()

    async def _is_answered(self) -> bool:
        if self._question is None or self._question.done():
            self._question = self._threads.submit(self._ask)
        answer = asyncio.wrap_future(self._question)
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
    """Up to ``most`` calls at one time, the others in their order behind them; a thread ends when none is left."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._busy = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        """Call in a thread, as soon as one is free."""
        future: Future[T] = Future()
        work = partial(call, *given, **named)
        with self._lock:
            if self._busy == self._most:
                self._waiting.append((future, work))
                return future
            self._busy += 1
        threading.Thread(target=self._run, args=(future, work), name=self._name, daemon=True).start()
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
