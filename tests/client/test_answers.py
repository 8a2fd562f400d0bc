"""Errors, and answers that cannot be read, are exceptions of the client."""

from __future__ import annotations

import json

import httpx
import pytest

from abound.client import (
    ClientError,
    InputInstance,
    Interrupted,
    Labelled,
    Model,
    Refused,
)
from tests.client.mock_service import Handler, broken_gzip, client, lines, problem


def test_the_rest_of_a_request_that_was_refused_as_a_whole() -> None:
    content = b'{"n": 0}\n' + json.dumps(problem(413, line=2)).encode()
    answers = list(client(lambda request: httpx.Response(200, content=content)).learn_stream("m", lines(4)))
    assert [answer.get("status") for answer in answers] == [None, 413, 413, 413]


def test_problem_documents_are_exceptions() -> None:
    made = client(lambda request: httpx.Response(404, json=problem(404)))
    with pytest.raises(Refused, match=r"it is so \(404\)") as raised:
        made.describe("x")
    assert raised.value.status == 404


def test_what_is_no_problem_document_says_where_it_came_from() -> None:
    made = client(lambda request: httpx.Response(502, content=b"<html>"))
    with pytest.raises(Refused, match="http://test/models answers 502"):
        made.models()


def test_another_service_altogether() -> None:
    with pytest.raises(Refused, match="does not answer like this service"):
        client(lambda request: httpx.Response(200, content=b"hello")).models()


@pytest.mark.parametrize(
    "answer",
    [
        broken_gzip,
        lambda request: httpx.Response(200, content=b'{"n": "\xff"}\n'),
        lambda request: httpx.Response(200, content=b"[1]\n"),
        lambda request: httpx.Response(200, json={"labels": "none", "applied": 3}),
        lambda request: httpx.Response(200, content=b'{"n":' + b"[" * 100_000),
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


@pytest.mark.parametrize("answer", [broken_gzip, lambda request: httpx.Response(200, content=b'data: {"n": 1}\n\n')])
def test_files_and_events_that_cannot_be_read(answer: Handler) -> None:
    made = client(answer)
    with pytest.raises(Interrupted):
        list(made.follow("j"))
    if answer is broken_gzip:
        with pytest.raises(Interrupted, match="the file cannot be read"):
            list(made.export("m"))
