"""Streams of any length as successive bounded NDJSON requests: what each holds, and what came of its lines.

1. ``bounded`` cuts the stream into requests. No line is read ahead of its request. One whose first line is old is
   closed by the next line, or by None in the place of one: a source that waits is waited for, so one that may wait long
   and has a clock gives None meanwhile. Line ends go; a line that the service would pass over, or read as several, is
   none: behind it every answer would stand at another line.
2. A request sends its open lines, at first all of them, and ``take`` closes those that were answered.
3. Lines refused with 429 or 503 stay open: they are sent again, alone, after the pause that the service asked for.
4. When the answer breaks off, ``failed`` closes what was answered; the others are sent again if that does no harm.
   What ends without an answer a line ends as Interrupted, unless nothing of the request can have been taken.
5. The answers of a request are given when all of its lines are closed, in the order of the lines.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from operator import index

import msgspec

from abound.service.client.errors import Answer, ClientError, Interrupted, Refused, decode, refusal_of
from abound.service.client.retries import NOT_TAKEN, Attempts, may_be_sent_again, pause_of

STREAM_LINES = 1000
"""Lines of one NDJSON request."""

STREAM_BYTES = 4 * 2**20
"""Bytes after which an NDJSON request takes no further line; a line may itself be large."""

STREAM_SECONDS = 1.0
"""Age of the first line at which an NDJSON request takes one further line and no more."""

CLASSIFYING = 2
"""Requests of a classified stream that are on their way at once."""


def checked(in_flight: int) -> int:
    """Requests on their way at once; TypeError or ValueError where that is no number of requests."""
    try:
        n = index(in_flight)
    except TypeError:
        raise TypeError(f"in_flight has to be a whole number, not {in_flight!r}") from None
    if n < 1:
        raise ValueError(f"in_flight has to be at least 1, not {n}")
    return n


def bounded(lines: Iterable[bytes | None]) -> Iterator[list[bytes]]:
    """Cut a stream of lines into requests: ``STREAM_LINES`` lines, fewer by ``STREAM_BYTES`` and ``STREAM_SECONDS``.

    None in the place of a line ends a request that has lines.

    Raises
    ------
    ValueError
        A line is blank, or holds a line end but at its own end. What stands before it is sent.
    """
    cut = _Cut()
    for line in lines:
        if request := cut.add(line):
            yield request
        cut.check()
    if request := cut.rest():
        yield request


async def abounded(lines: Iterable[bytes | None] | AsyncIterable[bytes | None]) -> AsyncIterator[list[bytes]]:
    """The same, of lines that may come from an event loop."""
    if not isinstance(lines, AsyncIterable):
        for request in bounded(lines):
            yield request
        return
    cut = _Cut()
    async for line in lines:
        if request := cut.add(line):
            yield request
        cut.check()
    if request := cut.rest():
        yield request


class _Cut:
    """Takes the lines of a stream one by one, and gives requests as they are full."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0
        self._since = 0.0
        self._number = 0
        self._wrong: str | None = None

    def add(self, line: bytes | None) -> list[bytes]:
        """The request that is full with this line, or that ends before it because it is none; else nothing."""
        if line is None:
            return self.rest()
        self._number += 1
        bare = line.rstrip(b"\r\n")
        if b"\n" in bare:
            self._wrong = "holds a line end: a JSON document has to stand on one line"
        elif not bare or bare.isspace():
            self._wrong = "is blank: it would have no answer"
        else:
            now = time.monotonic()
            if not self._lines:
                self._since = now
            self._lines.append(bare)
            self._size += len(line) + 1
            young = now - self._since < STREAM_SECONDS
            if young and len(self._lines) < STREAM_LINES and self._size < STREAM_BYTES:
                return []
        return self.rest()

    def check(self) -> None:
        """ValueError when the last line was none."""
        if self._wrong is not None:
            raise ValueError(f"line {self._number} of the stream {self._wrong}")

    def rest(self) -> list[bytes]:
        """What is no full request yet."""
        request, self._lines, self._size = self._lines, [], 0
        return request


def read_answers(body: bytes, sent: int, url: str) -> list[Answer]:
    """An answer for each line sent, out of a body that arrived whole.

    Raises
    ------
    Interrupted
        There are fewer, and the last one is no refusal of the rest.
    msgspec.DecodeError
        A line is not JSON.
    """
    answers = [decode(line) for line in body.splitlines() if line]
    if answers and len(answers) < sent and refusal_of(answers[-1]) is not None:
        # The service refused the rest of the request as a whole: what it did not answer, it did not take.
        answers += [answers[-1]] * (sent - len(answers))
    if len(answers) != sent:
        raise Interrupted(f"{url}: the answer broke off", answers[:sent], sent)
    return answers


def whole_lines(body: bytes, sent: int) -> list[Answer]:
    """The answers that arrived whole of a body that broke off; none behind one that is not JSON."""
    answers: list[Answer] = []
    try:
        for line in body[: body.rfind(b"\n") + 1].splitlines()[:sent]:
            answers.append(decode(line))
    except msgspec.DecodeError:
        return answers
    return answers


class LinesRequest:
    """The lines of one request.

    Parameters
    ----------
    lines : list of bytes
    repeatable : bool
        Whether a line may be taken twice.
    """

    def __init__(self, lines: list[bytes], repeatable: bool) -> None:
        self._lines = lines
        self._answers: list[Answer | None] = [None] * len(lines)
        self._open = list(range(len(lines)))
        self._attempts = Attempts(repeatable)

    @property
    def n_open(self) -> int:
        """Lines that the next request sends."""
        return len(self._open)

    def body(self) -> bytes:
        """The open lines."""
        return b"".join([self._lines[i] + b"\n" for i in self._open])

    def take(self, answers: list[Answer]) -> float | None:
        """Note an answer for each open line; the pause before what is left is sent again, None when nothing is."""
        again: list[int] = []
        error: Refused | None = None
        pause = 0.0
        for i, answer in zip(self._open, answers, strict=True):
            self._answers[i] = answer
            refusal = refusal_of(answer)
            if refusal is not None and may_be_sent_again(refusal, self._attempts.repeatable):
                again.append(i)
                error, pause = refusal, max(pause, pause_of(answer))
        if error is None:
            self._open = []
            return None
        self._narrow(again)
        try:
            self._attempts.pause_after(error)
        except ClientError:
            if self._attempts.unknown and error.status in NOT_TAKEN:
                raise self._interrupted(error) from error  # refused now, but perhaps taken before
            self._open = []  # the refusals are the answers
            return None
        return pause

    def failed(self, error: ClientError) -> float:
        """The pause before another attempt at what is open; raises where there is to be none."""
        if isinstance(error, Interrupted):
            for i, answer in zip(self._open, error.answers, strict=False):
                self._answers[i] = answer
            self._narrow(self._open[len(error.answers) :])
        pause = self._attempts.start_pause(error)
        if pause is not None:
            return pause
        try:
            return self._attempts.pause_after(error)
        except ClientError as last:
            some_taken = len(self._open) < len(self._lines) or self._attempts.unknown
            if some_taken or isinstance(last, Interrupted):
                raise self._interrupted(last) from error
            raise

    def answers(self) -> list[Answer]:
        """An answer a line, in order, when none is open."""
        return [answer for answer in self._answers if answer is not None]

    def _narrow(self, still_open: list[int]) -> None:
        if len(still_open) < len(self._open):
            self._attempts.progress()
        self._open = still_open

    def _interrupted(self, error: ClientError) -> Interrupted:
        """An error with the answers up to the first line that has none."""
        closed = self._answers[: self._open[0]] if self._open else self._answers
        return Interrupted(str(error), [answer for answer in closed if answer is not None], len(self._lines))
