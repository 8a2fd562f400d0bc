"""Threads for calls that may hang: they hold up neither each other's callers nor the end of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
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
