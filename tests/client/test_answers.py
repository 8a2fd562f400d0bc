"""Errors, and answers that cannot be read, are exceptions of the client."""

from __future__ import annotations

import json

import pytest

from abound.client import ClientError, InputInstance, Interrupted, Labelled, Model, Refused
from tests.client.mock_service import Handler, body, broken_gzip, client, lines, problem


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
