"""Work of a stream in a thread of its own, which can be left; ``service.client.connections`` ends what it waits for.

A thread that is still connecting, or sends by a transport that was given, goes on until that has come to something or
the time to wait for it is over: it sends nothing more, and does not keep the program from ending.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from service.client.errors import Answer

LEAVING_SECONDS = 1.0
"""So long those that are left are waited for: who pauses, or waits for an answer, ends at once."""


class Sending(threading.Thread):
    """A request on its way, begun at once.

    Parameters
    ----------
    work : callable
        Sends it, and gives an answer a line.
    """

    def __init__(self, work: Callable[[], list[Answer]]) -> None:
        super().__init__(name="abound-client", daemon=True)
        self._work = work
        self._answers: list[Answer] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Do the work; what it raises is kept."""
        try:
            self._answers = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> list[Answer]:
        """What came of it, as soon as it is known; raises what the work has raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._answers


def first(sent: deque[Sending]) -> list[Answer]:
    """The answers of the request that was sent first; while it is waited for it stays in the queue."""
    answers = sent[0].result()
    sent.popleft()
    return answers


def in_order(sent: deque[Sending]) -> Iterator[Answer]:
    """The answers of all requests that are on their way."""
    while sent:
        yield from first(sent)


def leave(sent: deque[Sending]) -> None:
    """Wait a moment for those that are about to end; the others end by themselves."""
    deadline = time.monotonic() + LEAVING_SECONDS
    for one in sent:
        one.join(max(0.0, deadline - time.monotonic()))
