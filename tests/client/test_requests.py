"""What single requests carry: keys, numbers of numpy, files."""

import json
import math
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas
import polars
import pytest

from abound.client import AsyncClient, AsyncModel, Client, InputInstance, Interrupted, Labelled, Model, Refused
from abound.client import requests as calls
from tests.client.mock_service import Script, body, client, echo, problem


def test_the_key_travels_as_bearer_token() -> None:
    script = Script(200)
    Client("http://test", key="secret", transport=httpx.MockTransport(script)).models()
    assert script.requests[0].headers["Authorization"] == "Bearer secret"


def test_what_numpy_holds_is_sent_as_what_it_is() -> None:
    script = Script(body('{"offset": "1-0.0", "applied": true, "durability": "log", "rank": 2, "updated": true}'))
    model = Model(client(script), "m")
    features: Any = {np.str_("a"): np.float64(2.5), "b": np.float32(0.5), "c": np.int64(3), "d": np.bool_(True)}
    labels: Any = np.array(["x", "y"])
    model.learn(labels=labels, features=features)
    list(model.learn_many([Labelled(labels=labels, features=features, key="k")]))
    model.client.learn("m", {"features": features, "labels": labels})
    sent = {"features": {"a": 2.5, "b": 0.5, "c": 3, "d": True}, "labels": ["x", "y"]}
    assert [json.loads(request.content) for request in script.requests] == [sent, sent | {"key": "k"}, sent]
    for wrong in (1j, np.clongdouble(1), np.bytes_(b"red"), np.array([b"red"]), np.datetime64("2020-01-01", "ns")):
        with pytest.raises(TypeError, match="cannot be sent"):
            model.learn(labels=["x"], features={"a": wrong})
    wide = [np.longdouble(1.5), np.array([0.5], np.longdouble), np.array(["a", 1], object)]
    assert calls.encode(wide) == b'[1.5,[0.5],["a",1]]'


ROWS = {
    "title": ["wool socks", None],
    "topic": ["socks", "ties"],
    "code": [5812, 4111],
    "price": [np.float64(2.5), float("nan")],
    "on": [pandas.Timestamp("2026-02-02"), pandas.NaT],
}
READ = [
    {
        "text": "wool socks",
        "features": {"code": "5812", "price": 2.5, "on weekday": "Mon", "on month": "2", "on day": "2"},
    },
    {"text": "", "features": {"code": "4111"}},
]


@pytest.mark.parametrize(
    "given",
    [
        pandas.DataFrame(ROWS).astype({"code": "category"}),
        pandas.DataFrame(ROWS).astype({"code": "string"}),
        polars.DataFrame({**ROWS, "code": ["5812", "4111"], "on": [ROWS["on"][0].to_pydatetime(), None]}),
        [dict(zip(ROWS, row, strict=True)) | {"code": str(row[2])} for row in zip(*ROWS.values(), strict=True)],
    ],
    ids=["categories", "strings", "polars", "dicts"],
)
def test_rows_of_frames_and_dicts_have_roles(given: Any) -> None:
    script = Script(body('{"offset": "1-0.0", "applied": true, "durability": "log", "rank": 2, "updated": true}\n' * 2))
    list(Model(client(script), "m").learn_many(given, keyed=False, text="title", label="topic"))
    sent = [json.loads(line) for line in script.requests[0].content.splitlines()]
    assert sent == [one | {"labels": [label]} for one, label in zip(READ, ROWS["topic"], strict=True)]


async def test_a_bad_row_is_refused_at_its_place_and_the_others_are_sent() -> None:
    answer = body('{"offset": "1-0.0", "applied": true, "durability": "log", "rank": 2, "updated": true}\n' * 2)
    good = {"text": "a", "labels": ["x"]}
    rows = [good, {"txt": "b"}, good, {"features": {"z": 1j}}, {"features": {"z": math.inf}}]
    model = Model(client(Script(answer)), "m")
    amodel = AsyncModel(AsyncClient("http://test", transport=httpx.MockTransport(Script(answer))), "m")
    for answers in (list(model.learn_many(rows)), [one async for one in amodel.learn_many(rows)]):
        assert [isinstance(one, Refused) for one in answers] == [False, True, False, True, True]
        assert [str(answers[at]).partition(": ")[0] for at in (1, 3)] == ["instance 2", "instance 4"]
        assert answers[4].problem["field"] == "features.z"
    frame = pandas.DataFrame({"text": ["a", "b", "c"], "label": ["x", "y", "x"], "price": [1.0, float("inf"), 2.0]})
    assert [isinstance(one, Refused) for one in model.learn_many(frame)] == [False, True, False]


def test_many_instances_are_texts_structs_or_dicts() -> None:
    refuse = json.dumps(problem(422))
    script = Script(lambda request: body("\n".join([refuse] * request.content.count(b"\n")))(request))

    def sent() -> list[dict[str, Any]]:
        return [json.loads(line) for line in script.requests[-1].content.splitlines()]

    model = Model(client(script), "m")
    given: list[Any] = ["wheat", InputInstance(features={"a": 1}), {"text": "b", "vector": np.ones(1, "f4")}]
    list(model.classify_many(given, k=3))
    vector = {"base64": "AACAPw==", "dtype": "float32"}
    asked = [{"text": "wheat"}, {"features": {"a": 1}}, {"text": "b", "vector": vector}]
    assert sent() == [one | {"k": 3} for one in asked]
    list(model.learn_many([Labelled(text="a", labels=["x"]), {"text": "b", "labels": ["y"], "key": "k"}, {}]))
    taught = sent()
    keys = [one.pop("key") for one in taught]
    assert taught == [{"text": "a", "labels": ["x"]}, {"text": "b", "labels": ["y"]}, {}]
    assert (len(set(keys)), keys[1]) == (3, "k")


def test_no_cookie_is_kept() -> None:
    cookies = [(b"Set-Cookie", b"replica=2"), (b"Set-Cookie", b"\xff=1")]
    script = Script(lambda request: httpx.Response(200, headers=cookies, json={}))
    made = client(script)
    made.models()
    made.models()
    assert ["cookie" in request.headers for request in script.requests] == [False, False]


@pytest.mark.parametrize("key", ["abk_é", "abk_1\n", "abk_1\r\nX: y"])
def test_a_key_that_cannot_travel_is_refused_at_once(key: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(ValueError, match="printable ASCII"):
            make("http://test", key=key)
    with pytest.raises(ValueError, match="printable ASCII"):
        client(echo).submit({}, key=key)


@pytest.mark.parametrize("name", [None, "other"])
async def test_a_data_set_is_a_file(name: str | None, tmp_path: Path) -> None:
    file = tmp_path / "news.jsonl.gz"
    file.write_bytes(bytes(range(256)) * 5000)
    script = Script(body("{}", 201))
    client(script).put_dataset(file, name)
    async with AsyncClient("http://test", transport=httpx.MockTransport(script)) as other:
        await other.put_dataset(str(file), name)
    url = f"http://test/datasets/{name or 'news'}?filename=news.jsonl.gz"
    assert [(str(request.url), request.content) for request in script.requests] == [(url, file.read_bytes())] * 2
    with pytest.raises(FileNotFoundError):
        client(script).put_dataset(tmp_path / "missing.jsonl")


def test_what_is_no_instance_is_an_error() -> None:
    model, wrong = Model(client(echo), "m"), list[Any]
    with pytest.raises(TypeError, match="an instance is a Labelled or a dict of its fields, not tuple"):
        list(model.learn_many(wrong([("a", ["x"])])))
    with pytest.raises(TypeError, match="a text, an InputInstance or a dict of its fields, not int"):
        list(model.classify_many(wrong([3])))
    [refused] = model.classify_many(wrong([{"txt": "a"}]))
    assert isinstance(refused, Refused)
    assert "'txt'" in str(refused)


# numbers that cannot be sent as what they are are refused before a request, not sent as null


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


def test_a_client_can_be_closed_by_the_thread_of_its_calls() -> None:
    """The garbage collector may close a client anywhere, also there."""
    errors: list[RuntimeError] = []

    def answer(request: httpx.Request) -> httpx.Response:
        try:
            closing.close()
        except RuntimeError as error:
            errors.append(error)
        return httpx.Response(200, json={"models": []})

    closing = client(answer)
    with suppress(CancelledError, Interrupted):  # the call may be the last one, or too late
        closing.models()
    assert errors == []
