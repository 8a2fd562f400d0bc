"""Streams of lines: cut into requests, sent while the source goes on, answered in order."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest

from abound.client import bounded, refusal_of
from abound.client import streams as lines_of_a_request
from tests.client.mock_service import Script, body, client, cut, echo, lines, problem


def test_a_refused_line_has_its_number_in_the_stream() -> None:
    tried = set()

    def refuse(request: httpx.Request) -> httpx.Response:
        answers = []
        for number, line in enumerate(request.content.splitlines(), start=1):
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


def test_what_a_slow_source_gave_is_sent_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([5.0, 5.4, 5.9, 6.0, 6.3, 7.2, 7.3, 9.0, 9.1, *range(10, 100)])
    monkeypatch.setattr(lines_of_a_request, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    given, script = [], Script(echo)

    def source() -> Iterator[bytes]:
        for line in lines(9):
            given.append(line)
            yield line

    answers = client(script).learn_stream("m", source())
    assert next(answers)["n"] == 0
    assert script.numbers == [[0, 1, 2, 3]]
    assert len(given) == 4, "no line is read ahead of its request"
    assert [answer["n"] for answer in answers] == list(range(1, 9))
    assert script.numbers == [[0, 1, 2, 3], [4, 5, 6], [7, 8]]


def test_none_in_the_place_of_a_line_sends_what_came_before() -> None:
    assert list(bounded([None, *lines(2), None, None, *lines(1)])) == [lines(2), lines(1)]
    with pytest.raises(ValueError, match=r"^line 2 of the stream"):
        list(bounded([*lines(1), None, b""]))


NO_LINE = [b"", b"\n", b"\r\n", b" \t\n", b'{"n":\n2}', b'{"n": 2}\n{"n": 3}']


@pytest.mark.parametrize("line", NO_LINE)
def test_a_line_that_would_shift_the_answers_is_an_error_behind_those_before(line: bytes) -> None:
    answers = client(echo).classify_stream("m", [*lines(1000), b'{"n": 1000}', line, b'{"n": 1001}'])
    assert [next(answers)["n"] for _ in range(1001)] == list(range(1001))
    with pytest.raises(ValueError, match=r"^line 1002 of the stream"):
        next(answers)


def test_lines_may_have_their_ends() -> None:
    script = Script(echo)
    file = io.BytesIO(b'{"n": 0}\n{"n": 1}\r\n{"n": 2}')
    assert [answer["n"] for answer in client(script).learn_stream("m", file)] == [0, 1, 2]
    assert script.requests[0].content == b'{"n": 0}\n{"n": 1}\n{"n": 2}\n'


def test_refused_lines_are_sent_again_alone() -> None:
    busy = json.dumps(problem(503, retry_after=0.5))
    script = Script(body(f'{{"n": 0}}\n{busy}\n{{"n": 2}}\n{busy}'), echo)
    assert [answer["n"] for answer in client(script).learn_stream("m", lines(4))] == [0, 1, 2, 3]
    assert script.numbers == [[0, 1, 2, 3], [1, 3]]


def test_invalid_lines_are_answers_like_others() -> None:
    said = json.dumps(problem(422, field="text", line=1)) + '\n{"rank": 1}\n'
    first, second = client(body(said)).learn_stream("m", lines(2))
    assert str(refusal_of(first)) == "text: it is so (422)"
    assert refusal_of(second) is None


def test_a_stream_that_is_left_sends_nothing_more_and_keeps_the_client() -> None:
    script = Script(echo)
    made = client(script)
    answers = made.learn_stream("m", lines(3000))
    next(answers)
    answers.close()
    assert [len(one) for one in script.numbers] == [1000]
    assert len(list(made.classify_stream("m", lines(3)))) == 3


def test_only_what_was_not_answered_is_sent_again() -> None:
    """Every request makes progress, so attempts are counted from 0 again."""
    script = Script(*[lambda request: cut(request.content.splitlines()[0] + b"\n")(request)] * 7, echo)
    answers = client(script).learn_stream("m", lines(9), keyed=True)
    assert [answer["n"] for answer in answers] == list(range(9))
    assert [len(one) for one in script.numbers] == [9, 8, 7, 6, 5, 4, 3, 2]
