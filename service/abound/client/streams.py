"""Streams of any length, sent as successive NDJSON requests of bounded size.

A request sends its open lines until each has an answer: again those that were refused for now, or whose answer broke
off if that is safe. Its answers are returned in the order of the lines.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from operator import index

import msgspec

from abound.client.errors import Answer, ClientError, Interrupted, Refused, decode, refusal_of
from abound.client.retries import NOT_TAKEN, Attempts, is_retryable, requested_pause

STREAM_LINES = 1000  # most lines of an NDJSON request
STREAM_BYTES = 4 * 2**20  # a request of this size is complete; the last line may exceed it
STREAM_SECONDS = 1.0  # age of its first line at which the next line completes a request
CLASSIFY_IN_FLIGHT = 2  # concurrent requests of a classify stream


def check_in_flight(in_flight: int) -> int:
    """Return ``in_flight`` as an int. Raises TypeError if it is not a whole number, ValueError below 1."""
    try:
        n = index(in_flight)
    except TypeError:
        raise TypeError(f"in_flight must be a whole number, not {in_flight!r}") from None
    if n < 1:
        raise ValueError(f"in_flight must be at least 1, not {n}")
    return n


def bounded(lines: Iterable[bytes | None]) -> Iterator[list[bytes]]:
    """Cut a stream of lines into requests, each complete by its lines, its bytes or the age of its first line.

    No line is read ahead of its request, so a source that may be silent for long yields None, which completes a request
    that has lines. Raises ValueError for a line that is blank or has a line break inside, after the lines before it.
    """
    cut = _RequestCutter()
    for line in lines:
        if request := cut.add(line):
            yield request
        cut.check()
    if request := cut.flush():
        yield request


async def bounded_async(lines: Iterable[bytes | None] | AsyncIterable[bytes | None]) -> AsyncIterator[list[bytes]]:
    """Cut a stream of lines into requests like ``bounded``, from an iterable or an async iterable."""
    if not isinstance(lines, AsyncIterable):
        for request in bounded(lines):
            yield request
        return
    cut = _RequestCutter()
    async for line in lines:
        if request := cut.add(line):
            yield request
        cut.check()
    if request := cut.flush():
        yield request


class _RequestCutter:
    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0
        self._since = 0.0
        self._number = 0
        self._defect: str | None = None

    def add(self, line: bytes | None) -> list[bytes]:
        """Return the request that a line completes, or an empty list. After an invalid line, ``check`` raises."""
        if line is None:
            return self.flush()
        self._number += 1
        bare = line.rstrip(b"\r\n")
        # The service would skip the line, or read it as several: later answers would be matched to the wrong lines.
        if b"\n" in bare:
            self._defect = "has a line break inside; write each JSON document on one line"
        elif not bare or bare.isspace():
            self._defect = "is blank and would have no answer; leave it out"
        else:
            now = time.monotonic()
            if not self._lines:
                self._since = now
            self._lines.append(bare)
            self._size += len(line) + 1
            young = now - self._since < STREAM_SECONDS
            if young and len(self._lines) < STREAM_LINES and self._size < STREAM_BYTES:
                return []
        return self.flush()

    def check(self) -> None:
        if self._defect is not None:
            raise ValueError(f"line {self._number} of the stream {self._defect}")

    def flush(self) -> list[bytes]:
        request, self._lines, self._size = self._lines, [], 0
        return request


def read_answers(body: bytes, sent: int, url: str) -> list[Answer]:
    """Return an answer for each line sent, from a complete body. Raise Interrupted if some are missing."""
    answers = [decode(line) for line in body.splitlines() if line]
    if answers and len(answers) < sent and refusal_of(answers[-1]) is not None:
        # The service refused the rest of the request as a whole: it did not process the lines without an answer.
        answers += [answers[-1]] * (sent - len(answers))
    if len(answers) != sent:
        raise Interrupted(f"{url}: the answer broke off", answers[:sent], sent)
    return answers


def complete_answers(body: bytes, sent: int) -> list[Answer]:
    """Return the complete answers of a body that broke off, up to the first that is not JSON."""
    answers: list[Answer] = []
    try:
        for line in body[: body.rfind(b"\n") + 1].splitlines()[:sent]:
            answers.append(decode(line))
    except msgspec.DecodeError:
        return answers
    return answers


class LinesRequest:
    """The lines of one request, with their answers; ``before`` lines of the stream precede them."""

    def __init__(self, lines: list[bytes], repeatable: bool, before: int) -> None:
        self._lines = lines
        self._before = before
        self._answers: list[Answer | None] = [None] * len(lines)
        self._open = list(range(len(lines)))
        self._attempts = Attempts(repeatable)

    @property
    def n_open(self) -> int:
        return len(self._open)

    def body(self) -> bytes:
        return b"".join([self._lines[i] + b"\n" for i in self._open])

    def record_answers(self, answers: list[Answer]) -> float | None:
        """Record an answer for each open line. Returns the pause before the next attempt, None if no line is left."""
        refused = self._record(answers)
        if not refused:
            self._open = []
            return None
        # They stay open, and are sent again alone.
        self._set_open(list(refused))
        error = min(refused.values(), key=requested_pause)  # lines accepted then let the others wait further
        try:
            return self._attempts.pause_after(error)
        except ClientError:
            if self._attempts.outcome_unknown and error.status in NOT_TAKEN:
                raise self._interrupted(error) from error  # refused now, but perhaps processed by an earlier attempt
            self._open = []  # the refusals are the answers
            return None

    def record_failure(self, error: ClientError) -> float:
        """Return the pause before the next attempt at the open lines, or raise if there is none left."""
        if isinstance(error, Interrupted):
            refused = self._record(error.answers)
            unanswered = self._open[len(error.answers) :]
            self._set_open([*refused, *unanswered] if self._attempts.repeatable else unanswered)
        pause = self._attempts.start_pause(error)
        if pause is not None:
            return pause
        try:
            return self._attempts.pause_after(error)
        except ClientError as last:
            # Only if the service cannot have processed any line is the error raised as it is.
            some_taken = len(self._open) < len(self._lines) or self._attempts.outcome_unknown
            if some_taken or isinstance(last, Interrupted):
                raise self._interrupted(last) from error
            raise

    def answers(self) -> list[Answer]:
        """Return an answer for each line, in order. Call it when no line is open."""
        return [answer for answer in self._answers if answer is not None]

    def _record(self, answers: list[Answer]) -> dict[int, Refused]:
        """Record answers of the first open lines. Return the lines that are refused for now, with their refusals."""
        refused = {}
        for i, answer in zip(self._open, answers, strict=False):
            # The service numbers the lines of an attempt; the answer gets the number in the stream.
            self._answers[i] = answer | {"line": self._before + i + 1} if "line" in answer else answer
            refusal = refusal_of(answer)
            if refusal is not None and is_retryable(refusal, self._attempts.repeatable):
                refused[i] = refusal
        return refused

    def _set_open(self, still_open: list[int]) -> None:
        if len(still_open) < len(self._open):
            self._attempts.reset()
        self._open = still_open

    def _interrupted(self, error: ClientError) -> Interrupted:
        """Return the error with the answers up to the first line without one."""
        closed = self._answers[: self._open[0]] if self._open else self._answers
        return Interrupted(str(error), [answer for answer in closed if answer is not None], len(self._lines))
