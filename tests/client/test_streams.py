"""Streams of lines: cut into requests, sent while the source goes on, answered in order."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest

from abound.client import (
    bounded,
    refusal_of,
)
from abound.client import streams as lines_of_a_request
from tests.client.mock_service import Cut, client, echo, lines, problem


def test_long_streams_are_cut_into_requests_and_answered_in_order() -> None:
    sizes = []

    def count(request: httpx.Request) -> httpx.Response:
        sizes.append(request.read().count(b"\n"))
        assert request.headers["Content-Type"] == "application/x-ndjson"
        return echo(request)

    answers = list(client(count).learn_stream("a/b", lines(2500)))
    assert [answer["n"] for answer in answers] == list(range(2500))
    assert sizes == [1000, 1000, 500]


def test_a_refused_line_has_its_number_in_the_stream() -> None:
    tried = set()

    def refuse(request: httpx.Request) -> httpx.Response:
        answers = []
        for number, line in enumerate(request.read().splitlines(), start=1):
            n = json.loads(line)["n"]
            busy = n % 10 == 8 and n not in tried
            tried.add(n)
            bad = {8: problem(429, line=number, retry_after=0) if busy else {"n": n}, 9: problem(422, line=number)}
            answers.append(json.dumps(bad.get(n % 10, {"n": n})))
        return httpx.Response(200, content="\n".join(answers))

    answers = list(client(refuse).learn_stream("m", lines(1020)))
    assert [one["line"] for one in answers if "line" in one] == list(range(10, 1021, 10))
    assert [i for i, one in enumerate(answers, start=1) if "line" in one] == list(range(10, 1021, 10))


def test_requests_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_of_a_request, "STREAM_BYTES", 300)
    assert [len(request) for request in bounded(lines(7, 80))] == [3, 3, 1]


def test_a_request_of_a_slow_source_is_closed_by_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([5.0, 5.4, 5.9, 6.0, 6.3, 7.2, 7.3, 9.0, 9.1])
    monkeypatch.setattr(lines_of_a_request, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert [len(request) for request in bounded(lines(9))] == [4, 3, 2]


def test_what_a_slow_source_gave_is_sent_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(lines_of_a_request, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    given, sent = [], []

    def source() -> Iterator[bytes]:
        for line in lines(10):
            given.append(line)
            yield line

    def keep(request: httpx.Request) -> httpx.Response:
        sent.extend(request.read().splitlines())
        return echo(request)

    answers = client(keep).learn_stream("m", source())
    assert [next(answers)["n"] for _ in range(5)] == list(range(5))
    assert sent == given == lines(6)


def test_none_in_the_place_of_a_line_sends_what_came_before() -> None:
    assert list(bounded([None, *lines(2), None, None, *lines(1)])) == [lines(2), lines(1)]
    with pytest.raises(ValueError, match=r"^line 2 of the stream"):
        list(bounded([*lines(1), None, b""]))


def test_no_line_is_read_ahead_of_its_request() -> None:
    read = []

    def source() -> Iterator[bytes]:
        for line in lines(2000):
            read.append(line)
            yield line

    next(client(echo).learn_stream("m", source()))
    assert len(read) == 1000


NO_LINE = [b"", b"\n", b"\r\n", b" \t\n", b'{"n":\n2}', b'{"n": 2}\n{"n": 3}']


@pytest.mark.parametrize("line", NO_LINE)
def test_a_line_that_would_shift_the_answers_is_an_error_behind_those_before(line: bytes) -> None:
    answers = client(echo).classify_stream("m", [*lines(1000), b'{"n": 1000}', line, b'{"n": 1001}'])
    assert [next(answers)["n"] for _ in range(1001)] == list(range(1001))
    with pytest.raises(ValueError, match=r"^line 1002 of the stream"):
        next(answers)


def test_lines_may_have_their_ends() -> None:
    bodies = []

    def keep(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read())
        return echo(request)

    file = io.BytesIO(b'{"n": 0}\n{"n": 1}\r\n{"n": 2}')
    assert [answer["n"] for answer in client(keep).learn_stream("m", file)] == [0, 1, 2]
    assert bodies == [b'{"n": 0}\n{"n": 1}\n{"n": 2}\n']


def test_refused_lines_are_sent_again_alone() -> None:
    bodies = []

    def half(request: httpx.Request) -> httpx.Response:
        sent = [json.loads(line) for line in request.read().splitlines()]
        bodies.append([line["n"] for line in sent])
        first = len(bodies) == 1
        answers = [problem(503, retry_after=0.5) if first and line["n"] % 2 else line for line in sent]
        return httpx.Response(200, content="\n".join(map(json.dumps, answers)))

    assert [answer["n"] for answer in client(half).learn_stream("m", lines(4))] == [0, 1, 2, 3]
    assert bodies == [[0, 1, 2, 3], [1, 3]]


def test_invalid_lines_are_answers_like_others() -> None:
    def bad(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(problem(422, field="text", line=1)) + '\n{"rank": 1}\n')

    first, second = client(bad).learn_stream("m", lines(2))
    refusal = refusal_of(first)
    assert refusal is not None
    assert str(refusal) == "text: it is so (422)"
    assert refusal_of(second) is None


def test_a_stream_that_is_left_sends_nothing_more_and_keeps_the_client() -> None:
    sizes = []

    def count(request: httpx.Request) -> httpx.Response:
        sizes.append(request.read().count(b"\n"))
        return echo(request)

    made = client(count)
    answers = made.learn_stream("m", lines(3000))
    next(answers)
    answers.close()
    assert sizes == [1000]
    assert len(list(made.classify_stream("m", lines(3)))) == 3


def test_only_what_was_not_answered_is_sent_again() -> None:
    bodies = []

    def cut(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read().splitlines())
        if len(bodies) < 8:  # every request makes progress, so attempts are counted from 0 again
            return httpx.Response(200, stream=Cut(bodies[-1][0] + b"\n"))
        return httpx.Response(200, content=request.content)

    answers = client(cut).learn_stream("m", lines(9), keyed=True)
    assert [answer["n"] for answer in answers] == list(range(9))
    assert [len(body) for body in bodies] == [9, 8, 7, 6, 5, 4, 3, 2]


def test_an_error_of_the_source_comes_behind_the_answers_of_what_was_sent() -> None:
    n_sent = []

    def keep(request: httpx.Request) -> httpx.Response:
        n_sent.append(request.read().count(b"\n"))
        return echo(request)

    def source() -> Iterator[bytes]:
        yield from lines(2400)
        raise OSError("the disk is gone")

    answers = client(keep).learn_stream("m", source())
    assert [next(answers)["n"] for _ in range(2000)] == list(range(2000))
    with pytest.raises(OSError, match="the disk is gone"):
        next(answers)
    assert n_sent == [1000, 1000]
