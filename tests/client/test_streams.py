"""Streams of lines: cut into requests, sent while the source goes on, answered in order."""

import io
import json
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest

from abound.client import ClientError, InputInstance, Interrupted, Labelled, Model, Refused, bounded, refusal_of
from abound.client import streams as lines_of_a_request
from tests.client.mock_service import Handler, Script, body, broken_gzip, client, cut, echo, lines, problem


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


# errors, and answers that cannot be read, are exceptions of the client


def test_the_rest_of_a_request_that_was_refused_as_a_whole() -> None:
    answers = list(client(body('{"n": 0}\n' + json.dumps(problem(413, line=2)))).learn_stream("m", lines(4)))
    assert [answer.get("status") for answer in answers] == [None, 413, 413, 413]


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (404, json.dumps(problem(404)), r"it is so \(404\)"),
        (502, "<html>", "http://test/models answers 502"),
        (200, "hello", "does not answer like this service"),
    ],
    ids=["problem", "proxy", "another service"],
)
def test_a_refusal_says_why_or_where_it_came_from(status: int, content: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        client(body(content, status)).models()


@pytest.mark.parametrize(
    "answer",
    [
        broken_gzip,
        body(b'{"n": "\xff"}\n'),
        body(b"[1]\n"),
        body('{"labels": "none", "applied": 3}'),
        body(b'{"n":' + b"[" * 100_000),
    ],
    ids=["gzip", "utf-8", "no object", "another shape", "too deep"],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_the_client(answer: Handler) -> None:
    model = Model(client(answer), "m")
    for ask in (
        lambda: model.classify(text="a"),
        lambda: model.learn("a", ["x"]),
        lambda: list(model.classify_many([InputInstance(text="a")])),
        lambda: list(model.learn_many([Labelled(text="a", labels=["x"])])),
    ):
        with pytest.raises(ClientError, match=r"cannot be read|does not answer like this service"):
            ask()


@pytest.mark.parametrize("answer", [broken_gzip, body(b'data: {"n": 1}\n\n')])
def test_files_and_events_that_cannot_be_read(answer: Handler) -> None:
    made = client(answer)
    with pytest.raises(Interrupted):
        list(made.follow("j"))
    if answer is broken_gzip:
        with pytest.raises(Interrupted, match="the file cannot be read"):
            list(made.export("m"))
