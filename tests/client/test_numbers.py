"""Numbers that cannot be sent as what they are are refused before a request, not sent as null."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from abound.client import InputInstance, Labelled, Model, Refused
from tests.client.mock_service import body, client

ANSWER = body(b'{"labels":[],"offset":"0-0.0","version":"live"}\n')
MODEL = Model(client(ANSWER))
LESSON: Any = {"text": "a", "labels": ["x"]}


def raised(answers: Iterable[object]) -> None:
    [one] = answers
    assert isinstance(one, Refused)
    raise one


CASES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "classify": ("threshold", lambda number: MODEL.classify(text="a", threshold=number)),
    "classify_many": (
        "min_probability",
        lambda number: list(MODEL.classify_many([InputInstance(text="a")], min_probability=number)),
    ),
    "learn": ("weight", lambda number: MODEL.learn(**LESSON, weight=number)),
    "learn_many": ("weight", lambda number: raised(MODEL.learn_many([Labelled(**LESSON, weight=number)]))),
    "configure": ("memory", lambda number: MODEL.client.configure("m", {"memory": number})),
    "submit": (r"params\.passes\[1\]", lambda number: MODEL.client.submit({"params": {"passes": [1, number]}})),
}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float32("nan")])
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_number_is_not_sent(case: str, number: float) -> None:
    where, ask = CASES[case]
    with pytest.raises(Refused, match=rf"^{where}: (instance 1: )?a number must be finite, not -?(nan|inf) \(422\)$"):
        ask(number)


def test_what_is_none_and_what_says_null_is_sent() -> None:
    assert MODEL.classify(text="null and void", threshold=None).labels == []
    assert MODEL.client.classify("m", {"text": "a", "threshold": None, "k": 3})["labels"] == []
