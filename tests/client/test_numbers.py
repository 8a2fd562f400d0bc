"""Numbers that cannot be sent as what they are, given to either client."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from abound.client import AsyncClient, AsyncModel, Client, InputInstance, Labelled, Model, Refused

ANSWER = b'{"labels":[],"offset":"0-0.0","version":"live"}\n'
NONE_TO_JSON = (math.nan, math.inf, -math.inf, np.float32("nan"))


def answer(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=ANSWER)


async def answer_later(request: httpx.Request) -> httpx.Response:
    return answer(request)


def model() -> Model:
    return Model(Client("http://test", transport=httpx.MockTransport(answer)))


def amodel() -> AsyncModel:
    return AsyncModel(AsyncClient("http://test", transport=httpx.MockTransport(answer_later)))


@pytest.mark.parametrize("number", NONE_TO_JSON)
@pytest.mark.parametrize("field", ["threshold", "min_probability"])
async def test_a_bound_that_is_no_number_is_not_sent_as_none(field: str, number: float) -> None:
    asked: Any = {field: number}
    with pytest.raises(Refused, match=rf"^{field}: a number must be finite, not -?(nan|inf) \(422\)$"):
        model().classify(text="a", **asked)
    with pytest.raises(Refused, match=field):
        list(model().classify_many([InputInstance(text="a")], **asked))
    with pytest.raises(Refused, match=field):
        await amodel().classify(text="a", **asked)
    with pytest.raises(Refused, match=field):
        _ = [one async for one in amodel().classify_many([InputInstance(text="a")], **asked)]


@pytest.mark.parametrize(
    ("ask", "where"),
    [
        (lambda client: client.classify("m", {"text": "a", "threshold": math.nan}), "threshold"),
        (lambda client: client.configure("m", {"memory": math.nan}), "memory"),
        (
            lambda client: client.submit({"method": "refit", "params": {"passes": [1, math.inf]}}),
            r"params\.passes\[1\]",
        ),
    ],
)
def test_no_number_of_a_document_becomes_none(ask: Callable[[Client], object], where: str) -> None:
    with pytest.raises(Refused, match=f"^{where}: "):
        ask(model().client)


@pytest.mark.parametrize("number", NONE_TO_JSON)
async def test_a_weight_that_is_no_number_is_not_sent_as_none(number: float) -> None:
    one: Any = {"text": "a", "labels": ["x"], "weight": number}
    for ask in (
        lambda: model().learn(text="a", labels=["x"], weight=number),
        lambda: list(model().learn_many([Labelled(**one)])),
        lambda: list(model().learn_many([one], keyed=False)),
    ):
        with pytest.raises(Refused, match=r"^weight: a number must be finite, not -?(nan|inf) \(422\)$"):
            ask()
    with pytest.raises(Refused, match=r"^weight: "):
        _ = [answer async for answer in amodel().learn_many([one])]


def test_what_is_none_and_what_says_null_is_sent() -> None:
    assert model().classify(text="null and void", threshold=None).labels == []
    assert model().client.classify("m", {"text": "a", "threshold": None, "k": 3})["labels"] == []


@pytest.mark.parametrize(("wrong", "error"), [("3", TypeError), (2.5, TypeError), (None, TypeError), (0, ValueError)])
async def test_what_is_no_number_of_requests_is_told(wrong: Any, error: type[Exception]) -> None:
    for ask in (amodel().classify_many, amodel().learn_many):
        with pytest.raises(error, match="in_flight must be"):
            _ = [one async for one in ask([Labelled(text="a", labels=["b"])], in_flight=wrong)]


async def test_a_number_of_requests_may_be_one_of_numpy() -> None:
    asked = amodel().classify_many([InputInstance(text="a")], in_flight=np.int64(2))
    assert len([one async for one in asked]) == 1
